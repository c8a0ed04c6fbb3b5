//! Durations in Go's text form (`2m30s`), the form in the kubelet's configuration.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Nanoseconds. May be negative: validation rejects that in the kubelet's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GoDuration(pub(crate) i64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no duration such as `2m30s`, `300ms` or `24h`")]
pub(crate) struct DurationError(String);

const MICROSECOND: i64 = 1_000;
const MILLISECOND: i64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

impl GoDuration {
    pub(crate) const fn seconds(seconds: i64) -> Self {
        Self(seconds * SECOND)
    }

    pub(crate) const fn minutes(minutes: i64) -> Self {
        Self(minutes * MINUTE)
    }

    /// Negative durations become zero.
    pub(crate) fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Durations that are too long become the longest.
    pub(crate) fn from_std(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let refuse = || DurationError(text.chars().take(64).collect());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(refuse());
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let number_end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).ok_or_else(refuse)?;
            let (number, tail) = rest.split_at(number_end);
            let unit_end = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_end);
            total += term(number, unit).ok_or_else(refuse)?;
            if total > i128::from(i64::MAX) {
                return Err(refuse());
            }
            rest = tail;
        }
        let total = if negative { -total } else { total };
        i64::try_from(total).map(Self).map_err(|_| refuse())
    }
}

fn term(number: &str, unit: &str) -> Option<i128> {
    let scale = i128::from(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    });
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() > 19 || fraction.contains('.') {
        return None;
    }
    let mut value = if whole.is_empty() { 0 } else { whole.parse::<i128>().ok()? } * scale;
    let mut step = scale;
    for digit in fraction.bytes() {
        step /= 10;
        value += i128::from(digit - b'0') * step;
    }
    Some(value)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.unsigned_abs();
        if nanoseconds == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let second = SECOND.unsigned_abs();
        if nanoseconds < second {
            let (scale, unit) = if nanoseconds < MICROSECOND.unsigned_abs() {
                (1, "ns")
            } else if nanoseconds < MILLISECOND.unsigned_abs() {
                (MICROSECOND.unsigned_abs(), "µs")
            } else {
                (MILLISECOND.unsigned_abs(), "ms")
            };
            return write!(f, "{}{unit}", decimal(nanoseconds, scale));
        }
        let (hours, minutes) = (nanoseconds / HOUR.unsigned_abs(), nanoseconds / MINUTE.unsigned_abs() % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", decimal(nanoseconds % MINUTE.unsigned_abs(), second))
    }
}

/// `value / scale` with as many decimals as needed.
fn decimal(value: u64, scale: u64) -> String {
    let (whole, rest) = (value / scale, value % scale);
    if rest == 0 {
        return whole.to_string();
    }
    let places = scale.ilog10() as usize;
    format!("{whole}.{}", format!("{rest:0places$}").trim_end_matches('0'))
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_as_the_kubelet_prints_them() {
        for case in imagelet_core::testing::vectors("gc-duration-text.json") {
            let nanoseconds = case["input"]["nanoseconds"].as_i64().expect("the vector has a number");
            let text = case["expected"]["text"].as_str().expect("the vector has a text");
            assert_eq!(GoDuration(nanoseconds).to_string(), text);
            assert_eq!(text.parse(), Ok(GoDuration(nanoseconds)), "{text}");
        }
    }

    #[test]
    fn a_duration_needs_a_number_and_a_unit_each_time() {
        for (text, nanoseconds) in
            [("0", 0), ("1.5h", 90 * MINUTE), (".5s", SECOND / 2), ("+2m", 2 * MINUTE), ("-1ns", -1)]
        {
            assert_eq!(text.parse(), Ok(GoDuration(nanoseconds)), "{text}");
        }
        for text in ["", "-", "5", "5 m", "m", "1d", "1..5s", "99999999999999999999h", "1h-5m", "9223372036854775807s"]
        {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
    }
}
