//! Values of flags as users type them: percentages, log levels, waits.

use std::time::Duration;

use imagelet_core::{
    image::Percent,
    text::{DurationError, GoDuration},
};

pub(super) fn parse_percent(text: &str) -> Result<Percent, String> {
    let number: i64 = text.trim_end_matches('%').parse().map_err(|_| format!("`{text}` is no percentage"))?;
    Percent::new(number).map_err(|error| error.to_string())
}

pub(super) fn parse_log(text: &str) -> Result<String, String> {
    let parsed = text.parse::<tracing_subscriber::filter::Targets>();
    parsed.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

pub(super) fn parse_wait(text: &str) -> Result<Duration, String> {
    let wait: GoDuration = text.parse().map_err(|error: DurationError| error.to_string())?;
    if wait.0 < 0 { Err(format!("`{text}` is below zero")) } else { Ok(wait.to_std()) }
}
