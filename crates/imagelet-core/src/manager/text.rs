//! Texts in the form Go prints them, which is the form people filter events by.

use std::time::Duration;

pub(crate) use crate::text::quoted;

/// A duration cut to whole milliseconds, as Go prints it: `0s`, `350ms`, `1.5s`, `2m3.004s`.
pub(crate) fn whole_milliseconds(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    if milliseconds == 0 {
        return "0s".into();
    }
    if milliseconds < 1000 {
        return format!("{milliseconds}ms");
    }
    let (minutes, rest) = (milliseconds / 60_000, milliseconds % 60_000);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let (seconds, fraction) = (rest / 1000, rest % 1000);
    let mut text = String::new();
    if hours > 0 {
        text = format!("{hours}h");
    }
    if hours > 0 || minutes > 0 {
        text = format!("{text}{minutes}m");
    }
    let fraction = format!("{fraction:03}");
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() { format!("{text}{seconds}s") } else { format!("{text}{seconds}.{fraction}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_cut_to_milliseconds() {
        for (microseconds, expected) in [
            (0, "0s"),
            (999, "0s"),
            (350_999, "350ms"),
            (1_500_000, "1.5s"),
            (123_004_900, "2m3.004s"),
            (60_000_000, "1m0s"),
            (3_600_000_000, "1h0m0s"),
        ] {
            assert_eq!(whole_milliseconds(Duration::from_micros(microseconds)), expected);
        }
    }
}
