//! The types for bytes and percents, and a number with its noun.

use std::{fmt, ops::Add};

use serde::{Deserialize, Serialize};

use crate::text::PlainError;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub const ZERO: Self = Self(0);

    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for ByteSize {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::iter::Sum for ByteSize {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, Add::add)
    }
}

/// Prints decimal units with three significant digits: `742kB`, `1.15MB`.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1000.0;
            unit += 1;
        }
        let places = match value {
            _ if unit == 0 => 0,
            99.95.. => 0,
            9.995.. => 1,
            _ => 2,
        };
        let text = format!("{value:.places$}");
        let text = if places > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        f.pad(&format!("{text}{}", UNITS[unit]))
    }
}

/// A number with a noun whose plural ends in `s`: `1 image`, `2 images`.
pub fn counted<N: fmt::Display + PartialEq + From<u8> + Copy>(number: N, noun: &str) -> String {
    let plural = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// A percentage, 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    pub fn new(value: i64) -> Result<Self, PlainError> {
        let percent = u8::try_from(value).ok().filter(|percent| *percent <= 100);
        percent.map(Self).ok_or_else(|| PlainError(format!("`{value}` is not between 0 and 100")))
    }

    pub fn get(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_three_significant_digits() {
        for (bytes, text) in [
            (0, "0B"),
            (999, "999B"),
            (1000, "1kB"),
            (742_000, "742kB"),
            (1_154_361, "1.15MB"),
            (12_340_000, "12.3MB"),
            (999_999, "1MB"),
            (u64::MAX, "18.4EB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_number_has_the_noun_that_agrees() {
        assert_eq!([0_u64, 1, 2].map(|number| counted(number, "image")), ["0 images", "1 image", "2 images"]);
    }

    #[test]
    fn a_percent_refuses_what_is_not_one() {
        for value in [101, -1] {
            let refused = Percent::new(value).unwrap_err().to_string();
            assert_eq!(refused, format!("`{value}` is not between 0 and 100"));
        }
        assert_eq!(Percent::new(100).map(Percent::get), Ok(100));
    }
}
