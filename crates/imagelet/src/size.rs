//! Sizes as users type them: `1Gi`, `500M`, `1.5 GB`.

use imagelet_core::image::ByteSize;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no size such as `500M`, `1Gi` or `1048576`")]
pub(crate) struct SizeError(String);

/// Parses a number with an optional decimal (`k M G T P`) or binary (`Ki Mi Gi Ti Pi`) unit and an optional `B`.
pub(crate) fn parse_size(text: &str) -> Result<ByteSize, SizeError> {
    let refuse = || SizeError(text.chars().take(64).collect());
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim_start();
    let unit = unit.strip_suffix(['B', 'b']).unwrap_or(unit);
    let scale: u128 = match unit {
        "" => 1,
        "k" | "K" => 1000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        "t" | "T" => 1_000_000_000_000,
        "p" | "P" => 1_000_000_000_000_000,
        "ki" | "Ki" => 1 << 10,
        "mi" | "Mi" => 1 << 20,
        "gi" | "Gi" => 1 << 30,
        "ti" | "Ti" => 1 << 40,
        "pi" | "Pi" => 1 << 50,
        _ => return Err(refuse()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() > 20 || fraction.len() > 12 || fraction.contains('.') {
        return Err(refuse());
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| refuse())? };
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| refuse())? };
    let places = u32::try_from(fraction.len()).map_err(|_| refuse())?;
    let bytes = whole * scale + parts * scale / 10_u128.pow(places);
    u64::try_from(bytes).map(ByteSize).map_err(|_| refuse())
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
