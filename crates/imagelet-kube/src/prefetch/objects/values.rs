//! Values of a spec that are more than a text or a number: durations, numbers of nodes, times.

use std::time::{Duration, SystemTime};

use imagelet_core::text::{GoDuration, file_time};
use serde::{Deserialize, Serialize};

use crate::names::shown;

const DURATION_MAX: Duration = Duration::from_hours(24 * 365);
const DURATION_LENGTH_MAX: usize = 32;
/// Most nodes of a limit; Kubernetes supports clusters of 5000.
const NODES_MAX: u32 = 100_000;

/// A duration above zero, as Go writes it: `90s`, `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SetDuration(Duration);

impl SetDuration {
    pub(crate) fn get(self) -> Duration {
        self.0
    }
}

impl TryFrom<String> for SetDuration {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let error = || format!("`{}` is no duration above zero and up to 8760h, as `90s` or `1h30m`", shown(&text));
        if text.len() > DURATION_LENGTH_MAX {
            return Err(error());
        }
        let GoDuration(nanos) = text.parse().map_err(|_| error())?;
        let duration = u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| error())?;
        let is_valid = !duration.is_zero() && duration <= DURATION_MAX;
        is_valid.then_some(Self(duration)).ok_or_else(error)
    }
}

impl From<SetDuration> for String {
    fn from(SetDuration(duration): SetDuration) -> Self {
        GoDuration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)).to_string()
    }
}

/// How many nodes may pull at once: a number of them, or a share of the nodes that the set selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "WrittenLimit", into = "WrittenLimit")]
pub(crate) enum NodeLimit {
    /// At least one.
    Count(u32),
    /// 1 to 100.
    Percent(u32),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
enum WrittenLimit {
    Count(u32),
    Text(String),
}

impl NodeLimit {
    /// The number of nodes, of so many; at least one.
    pub(crate) fn of(self, nodes: usize) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::Percent(percent) => nodes.saturating_mul(percent as usize).div_ceil(100).max(1),
        }
    }
}

impl TryFrom<WrittenLimit> for NodeLimit {
    type Error = String;

    fn try_from(written: WrittenLimit) -> Result<Self, String> {
        let error = |text: &str| {
            format!("`{text}` is no number of nodes: a number from 1 to 100000, or a share from `1%` to `100%`")
        };
        match written {
            WrittenLimit::Count(count) if (1..=NODES_MAX).contains(&count) => Ok(Self::Count(count)),
            WrittenLimit::Count(count) => Err(error(&count.to_string())),
            WrittenLimit::Text(text) => {
                let digits = text.strip_suffix('%').filter(|digits| !digits.starts_with(['+', '0']));
                let percent = digits.and_then(|digits| digits.parse::<u32>().ok());
                let percent = percent.filter(|percent| (1..=100).contains(percent));
                percent.map(Self::Percent).ok_or_else(|| error(&shown(&text)))
            }
        }
    }
}

impl From<NodeLimit> for WrittenLimit {
    fn from(limit: NodeLimit) -> Self {
        match limit {
            NodeLimit::Count(count) => Self::Count(count),
            NodeLimit::Percent(percent) => Self::Text(format!("{percent}%")),
        }
    }
}

/// RFC 3339, whole seconds, UTC.
pub(crate) fn moment(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = i64::try_from(seconds).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// A time of the API; `None`: the text is not one.
pub(crate) fn parse_moment(text: &str) -> Option<SystemTime> {
    let time: jiff::Timestamp = text.parse().ok()?;
    file_time(u64::try_from(time.as_second()).ok()?)
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn a_limit_is_a_number_or_a_share_of_nodes_and_never_zero() {
        for (written, nodes, expected) in [
            (json!(1), 5000, Some(1)),
            (json!(100_000), 10, Some(100_000)),
            (json!("10%"), 5000, Some(500)),
            (json!("10%"), 5, Some(1)),
            (json!("1%"), 101, Some(2)),
            (json!("100%"), 0, Some(1)),
            (json!(0), 1, None),
            (json!(-1), 1, None),
            (json!(100_001), 1, None),
            (json!("0%"), 1, None),
            (json!("101%"), 1, None),
            (json!("+5%"), 1, None),
            (json!("05%"), 1, None),
            (json!("5"), 1, None),
            (json!("%"), 1, None),
            (json!(1.5), 1, None),
            (json!(null), 1, None),
        ] {
            let limit = from_value::<NodeLimit>(written.clone()).ok();
            assert_eq!(limit.map(|limit| limit.of(nodes)), expected, "{written}");
            if let Some(limit) = limit {
                assert_eq!(to_value(limit).unwrap(), written);
            }
        }
    }

    #[test]
    fn a_duration_is_above_zero_and_at_most_a_year() {
        for (text, seconds) in [("90s", Some(90)), ("1h30m", Some(5400)), ("8760h", Some(31_536_000))] {
            assert_eq!(SetDuration::try_from(text.to_owned()).ok().map(|it| it.get().as_secs()), seconds, "{text}");
        }
        for text in ["", "0s", "-1s", "1", "8761h", "1 h", "999999999999999999999h", &"1h".repeat(20)] {
            assert!(SetDuration::try_from(text.to_owned()).is_err(), "{text}");
        }
        assert_eq!(to_value(SetDuration::try_from("90m".to_owned()).unwrap()).unwrap(), "1h30m0s");
    }

    #[test]
    fn a_time_reads_back_and_another_text_is_refused() {
        let text = "2026-11-26T14:10:29Z";
        assert_eq!(parse_moment(text).map(moment).as_deref(), Some(text));
        for text in ["", "yesterday", "1969-01-01T00:00:00Z", "2026-13-01T00:00:00Z"] {
            assert_eq!(parse_moment(text), None, "{text}");
        }
    }
}
