//! Values of flags as users write them: percentages, log levels, waits, times.

use std::time::Duration;

use imagelet_core::{
    image::Percent,
    text::{GoDuration, PlainError},
};
use jiff::Timestamp;

pub(super) fn parse_percent(text: &str) -> Result<Percent, String> {
    let number: i64 = text.trim_end_matches('%').parse().map_err(|_| format!("`{text}` is no percentage"))?;
    Percent::new(number).map_err(|error| error.to_string())
}

pub(super) fn parse_log(text: &str) -> Result<String, String> {
    let parsed = text.parse::<tracing_subscriber::filter::Targets>();
    parsed.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

pub(super) fn parse_wait(text: &str) -> Result<Duration, String> {
    let wait: GoDuration = text.parse().map_err(|error: PlainError| error.to_string())?;
    if wait.0 < 0 { Err(format!("`{text}` is below zero")) } else { Ok(wait.to_std()) }
}

pub(super) fn parse_since(text: &str) -> Result<Timestamp, String> {
    start_time(text, Timestamp::now())
}

fn start_time(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let ago = |_| parse_wait(text).map(|ago| now.checked_sub(ago).unwrap_or(Timestamp::MIN));
    let is_neither = "is neither a duration such as `2h` nor a time such as `2026-01-31T12:00:00Z`";
    text.parse::<Timestamp>().or_else(ago).map_err(|_| format!("`{text}` {is_neither}"))
}

/// Whether a record's RFC 3339 time `at` is the start time or later. A record without a time is excluded by any start.
pub(crate) fn is_since(start: Option<Timestamp>, at: Option<&str>) -> bool {
    start.is_none_or(|start| at.and_then(|at| at.parse().ok()).is_some_and(|at: Timestamp| at >= start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_duration_ago_or_a_time() {
        let now: Timestamp = "2026-08-01T12:00:00Z".parse().expect("a time");
        for (since, at, included) in [
            ("2h", Some("2026-08-01T10:00:00Z"), true),
            ("2h", Some("2026-08-01T09:59:59.999Z"), false),
            ("2h", None, false),
            ("2026-08-01T11:00:00+02:00", Some("2026-08-01T09:00:00Z"), true),
            ("2026-08-01T11:00:00Z", Some("2026-08-01T10:00:00Z"), false),
            ("2000000h", Some("1900-01-01T00:00:00Z"), true),
        ] {
            let start = start_time(since, now).expect(since);
            assert_eq!(is_since(Some(start), at), included, "{since} {at:?}");
        }
        for text in ["", "yesterday", "-2h", "5"] {
            assert!(parse_since(text).is_err(), "{text}");
        }
    }
}
