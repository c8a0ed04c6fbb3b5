//! Amounts as Kubernetes writes them: `150Mi`, `1.5Gi`, `100k`, `1e3`.

/// The finest step Kubernetes keeps.
pub(super) const NANOS: i128 = 1_000_000_000;
const LENGTH_MAX: usize = 64;

const FORMAT: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const NUMBER: &str = "unable to parse numeric part of quantity";
const SUFFIX: &str = "unable to parse quantity's suffix";

/// The amount in billionths, rounded up and saturated at 64 bits; the error is Kubernetes' text.
pub(super) fn parse(text: &str) -> Result<i128, &'static str> {
    if text.is_empty() || text.len() > LENGTH_MAX {
        return Err(FORMAT);
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let count = |text: &str, of: fn(char) -> bool| text.find(|c| !of(c)).unwrap_or(text.len());
    let (whole, rest) = unsigned.split_at(count(unsigned, |c| c.is_ascii_digit()));
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(count(rest, |c| c.is_ascii_digit())),
        None => ("", rest),
    };
    let tail = &suffix[count(suffix, |c| "eEinumkKMGTP".contains(c))..];
    let digits = tail.strip_prefix(['+', '-']).unwrap_or(tail);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(FORMAT);
    }
    if whole.is_empty() && fraction.is_empty() {
        return Err(NUMBER);
    }
    let (factor, tens) = scale(suffix)?;
    let nanos = scaled(whole, fraction, factor, tens);
    Ok(if text.starts_with('-') { -nanos } else { nanos })
}

/// A factor and a power of ten.
fn scale(suffix: &str) -> Result<(i128, i32), &'static str> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    if let Some((_, power)) = BINARY.iter().zip(1..).find(|(unit, _)| **unit == suffix) {
        return Ok((1024_i128.pow(power), 0));
    }
    if let Some((_, power)) = DECIMAL.iter().zip(-3..).find(|(unit, _)| **unit == suffix) {
        return Ok((1, 3 * power));
    }
    let power: Option<i32> = suffix.strip_prefix(['e', 'E']).and_then(|power| power.parse().ok());
    Ok((1, power.ok_or(SUFFIX)?.clamp(-64, 64)))
}

fn scaled(whole: &str, fraction: &str, factor: i128, tens: i32) -> i128 {
    let max = i128::from(i64::MAX) * NANOS;
    // An overflowing number saturates, whatever its unit.
    let value: Option<i128> = format!("{whole}{fraction}").parse().ok();
    let Some(mut value) = value.and_then(|value: i128| value.checked_mul(factor)) else { return max };
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let mut shift = 9 + tens - places;
    while shift > 0 && value < max {
        value = value.saturating_mul(10);
        shift -= 1;
    }
    let mut is_cut = false;
    while shift < 0 && value > 0 {
        is_cut |= value % 10 != 0;
        value /= 10;
        shift += 1;
    }
    (value + i128::from(is_cut)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_as_kubernetes_reads_them() {
        for (text, nanos) in [
            ("0", 0),
            ("0Mi", 0),
            ("150Mi", (150 << 20) * NANOS),
            ("1.5Gi", (3 << 29) * NANOS),
            ("1024Ki", (1 << 20) * NANOS),
            ("100k", 100_000 * NANOS),
            ("0.5", NANOS / 2),
            ("1e3", 1000 * NANOS),
            ("-150Mi", -(150 << 20) * NANOS),
            ("1n", 1),
            ("0.1n", 1),
            ("+5", 5 * NANOS),
            (".5Ki", 512 * NANOS),
            ("100E", i128::from(i64::MAX) * NANOS),
            ("7e99", i128::from(i64::MAX) * NANOS),
        ] {
            assert_eq!(parse(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_in_kubernetes_words() {
        for (text, error) in [
            ("", FORMAT),
            ("1 Gi", FORMAT),
            ("1.2.3", FORMAT),
            ("10%", FORMAT),
            ("Mi", NUMBER),
            ("-", NUMBER),
            (".", NUMBER),
            ("1KiB", FORMAT),
            ("1K", SUFFIX),
            ("1MM", SUFFIX),
            ("1e", SUFFIX),
            ("ten", FORMAT),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }
}
