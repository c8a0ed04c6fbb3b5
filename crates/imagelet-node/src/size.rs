//! Parses sizes as users write them: `1Gi`, `500M`, `1.5 GB`.

use imagelet_core::image::ByteSize;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no size such as `500M`, `1Gi` or `1048576`")]
pub struct SizeError(String);

/// Parses a number with an optional decimal (`k M G T P`) or binary (`Ki Mi Gi Ti Pi`) unit and an optional `B`.
pub fn parse_size(text: &str) -> Result<ByteSize, SizeError> {
    let size = text.trim().parse::<bytesize::ByteSize>().map(|size| ByteSize(size.0));
    // For a number that is too large, the parser returns the maximum, which is therefore rejected.
    size.ok().filter(|size| size.0 < u64::MAX).ok_or_else(|| SizeError(text.chars().take(64).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_with_a_decimal_or_binary_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("1Ki", 1024),
            ("1KiB", 1024),
            ("500M", 500_000_000),
            ("500MB", 500_000_000),
            ("1.5G", 1_500_000_000),
            ("0.5Gi", 1 << 29),
            ("2 Ti", 2 << 40),
            (".5k", 500),
        ] {
            assert_eq!(parse_size(text), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "G", "1X", "-1G", "1..5G", "1.2.3", "99999999999999P", "1e9", "ten"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
