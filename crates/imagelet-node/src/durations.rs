//! Ages and durations as people read them.

use std::time::Duration;

use imagelet_core::text::duration_text;
use jiff::Timestamp;

/// Age since an RFC 3339 time, with about two digits: `42s`, `7m`, `3h`, `12d`. `-`: there is no valid time.
pub fn age(since: Option<&str>, now: Timestamp) -> String {
    let Some(since) = since.and_then(|since| since.parse::<Timestamp>().ok()) else { return "-".into() };
    match now.duration_since(since).as_secs() {
        seconds @ ..=119 => format!("{}s", seconds.max(0)),
        seconds @ 120..=7199 => format!("{}m", seconds / 60),
        seconds @ 7200..=172_799 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

/// Formats milliseconds as seconds, rounded up, for example as `1m30s`.
pub fn milliseconds(milliseconds: u64) -> String {
    duration_text(Duration::from_secs(milliseconds.div_ceil(1000)))
}

/// Formats the duration of an operation in milliseconds, for example as `40ms`, `3s` or `1m2s`.
pub fn took(taken: u64) -> String {
    if taken < 1000 { format!("{taken}ms") } else { milliseconds(taken) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now = Timestamp::from_second(10_000_000).expect("a time");
        let before = |ago: u64| (now - Duration::from_secs(ago)).to_string();
        for (ago, text) in [(5, "5s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")] {
            assert_eq!(age(Some(&before(ago)), now), text);
        }
        assert_eq!(age(None, now), "-");
        assert_eq!([40, 2500, 62_000].map(took), ["40ms", "3s", "1m2s"]);
        assert_eq!(age(Some(&(now + Duration::from_secs(5)).to_string()), now), "0s");
    }
}
