//! Amounts as Kubernetes writes them: `150Mi`, `1.5Gi`, `100k`, `1e3`.

use std::{fmt, str::FromStr};

/// The finest step Kubernetes keeps.
const NANOS: i128 = 1_000_000_000;
const LENGTH_MAX: usize = 64;

/// A quantity, exact to nanos. Compares by value, not by notation.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    form: Form,
}

/// The notation of the input, which is also the output's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Binary,
    Decimal,
    Exponent,
}

/// The text is not a quantity; prints what Kubernetes prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text is not a number with a unit.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The number is malformed.
    #[error("unable to parse numeric part of quantity")]
    Number,
    /// The unit is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    /// A whole count.
    pub const fn whole(count: i64) -> Self {
        Self { nanos: count as i128 * NANOS, form: Form::Decimal }
    }

    pub(super) fn nanos(self) -> i128 {
        self.nanos
    }

    /// The next whole number, rounded as in Kubernetes.
    pub fn value(self) -> i64 {
        let up = self.nanos.div_euclid(NANOS) + i128::from(self.nanos.rem_euclid(NANOS) > 0);
        i64::try_from(up).unwrap_or(if up < 0 { i64::MIN } else { i64::MAX })
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() || text.len() > LENGTH_MAX {
            return Err(QuantityError::Format);
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let count = |text: &str, of: fn(char) -> bool| text.find(|c| !of(c)).unwrap_or(text.len());
        let (whole, rest) = rest.split_at(count(rest, |c| c.is_ascii_digit()));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(count(rest, |c| c.is_ascii_digit())),
            None => ("", rest),
        };
        let letters = count(suffix, |c| "eEinumkKMGTP".contains(c));
        let tail = &suffix[letters..];
        let digits = tail.strip_prefix(['+', '-']).unwrap_or(tail);
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        if whole.is_empty() && fraction.is_empty() {
            return Err(QuantityError::Number);
        }
        let (scale, form) = scale(suffix)?;
        let nanos = scaled(whole, fraction, scale);
        Ok(Self { nanos: if negative { -nanos } else { nanos }, form })
    }
}

#[derive(Clone, Copy)]
enum Scale {
    Times(i128),
    Tens(i32),
}

fn scale(suffix: &str) -> Result<(Scale, Form), QuantityError> {
    let binary = |power: u32| Ok((Scale::Times(1 << (10 * power)), Form::Binary));
    let tens = |power| Ok((Scale::Tens(power), Form::Decimal));
    match suffix {
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        "n" => tens(-9),
        "u" => tens(-6),
        "m" => tens(-3),
        "" => tens(0),
        "k" => tens(3),
        "M" => tens(6),
        "G" => tens(9),
        "T" => tens(12),
        "P" => tens(15),
        "E" => tens(18),
        _ => {
            let power = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
            let power: i32 = power.parse().map_err(|_| QuantityError::Suffix)?;
            Ok((Scale::Tens(power.clamp(-64, 64)), Form::Exponent))
        }
    }
}

/// Rounds up below a nano and saturates at 64 bits.
fn scaled(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let max = i128::from(i64::MAX) * NANOS;
    let digits = || whole.bytes().chain(fraction.bytes()).map(|byte| i128::from(byte - b'0'));
    let (factor, tens) = match scale {
        Scale::Times(factor) => (factor, 0),
        Scale::Tens(power) => (1, power),
    };
    let mut value: i128 = 0;
    for digit in digits() {
        // An overflowing number saturates at the end unless a small unit scales it down.
        value = match value.checked_mul(10).and_then(|value| value.checked_add(digit)) {
            Some(value) => value,
            None => return max,
        };
    }
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let Some(mut value) = value.checked_mul(factor) else { return max };
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

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        let is_binary = self.form == Form::Binary && self.nanos.abs() >= 1024 * NANOS && self.nanos % NANOS == 0;
        if is_binary {
            let (mut number, mut unit) = (self.nanos / NANOS, 0);
            while number % 1024 == 0 && unit + 1 < BINARY.len() {
                number /= 1024;
                unit += 1;
            }
            return write!(f, "{number}{}", BINARY[unit]);
        }
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let (mut number, mut unit) = (self.nanos, 0);
        while number % 1000 == 0 && unit + 1 < DECIMAL.len() {
            number /= 1000;
            unit += 1;
        }
        match (self.form, i32::try_from(unit).map_or(0, |unit| unit * 3 - 9)) {
            (Form::Exponent, power) if power != 0 => write!(f, "{number}e{power}"),
            _ => write!(f, "{number}{}", DECIMAL[unit]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_and_print_as_kubernetes_reads_and_prints_them() {
        for (text, value, printed) in [
            ("0", 0, "0"),
            ("0Mi", 0, "0"),
            ("150Mi", 150 << 20, "150Mi"),
            ("1.5Gi", 3 << 29, "1536Mi"),
            ("1024Ki", 1 << 20, "1Mi"),
            ("100k", 100_000, "100k"),
            ("1500", 1500, "1500"),
            ("2000", 2000, "2k"),
            ("0.5", 1, "500m"),
            ("1e3", 1000, "1e3"),
            ("-150Mi", -150 << 20, "-150Mi"),
            ("-1500", -1500, "-1500"),
            ("1n", 1, "1n"),
            ("0.1n", 1, "1n"),
            ("+5", 5, "5"),
            (".5Ki", 512, "512"),
            ("100E", i64::MAX, "9223372036854775807"),
        ] {
            let quantity: Quantity = text.parse().unwrap();
            assert_eq!((quantity.value(), quantity.to_string().as_str()), (value, printed), "{text}");
        }
        assert_eq!("1Gi".parse::<Quantity>(), "1024Mi".parse());
    }

    #[test]
    fn what_is_no_amount_is_refused_in_kubernetes_words() {
        use QuantityError::{Format, Number, Suffix};
        for (text, error) in [
            ("", Format),
            ("1 Gi", Format),
            ("1.2.3", Format),
            ("10%", Format),
            ("Mi", Number),
            ("-", Number),
            (".", Number),
            ("1KiB", Format),
            ("1K", Suffix),
            ("1MM", Suffix),
            ("1e", Suffix),
            ("ten", Format),
        ] {
            assert_eq!(text.parse::<Quantity>(), Err(error), "{text}");
        }
    }
}
