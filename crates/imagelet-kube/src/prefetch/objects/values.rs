//! Structured values of a spec: durations and numbers of nodes.

use std::time::Duration;

use imagelet_core::text::GoDuration;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

use crate::names::shown;

const DURATION_MAX: Duration = Duration::from_hours(24 * 365);
const DURATION_LENGTH_MAX: usize = 32;
/// Kubernetes supports clusters of 5,000 nodes.
const NODES_MAX: u32 = 100_000;

/// A duration above zero in Go's format: `90s`, `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct SetDuration(pub(crate) Duration);

impl TryFrom<String> for SetDuration {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed = Some(&text).filter(|text| text.len() <= DURATION_LENGTH_MAX).and_then(|text| text.parse().ok());
        let duration = parsed.and_then(|GoDuration(nanos)| u64::try_from(nanos).ok()).map(Duration::from_nanos);
        let duration = duration.filter(|duration| !duration.is_zero() && *duration <= DURATION_MAX);
        let invalid = || format!("`{}` is no duration above zero and up to 8760h, as `90s` or `1h30m`", shown(&text));
        duration.map(Self).ok_or_else(invalid)
    }
}

/// The maximum number of nodes that pull concurrently: a number, or a share of the selected nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "IntOrString")]
pub(crate) enum NodeLimit {
    Count(u32),
    Percent(u32),
}

impl NodeLimit {
    pub(crate) fn of(self, nodes: usize) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::Percent(percent) => nodes.saturating_mul(percent as usize).div_ceil(100).max(1),
        }
    }
}

impl TryFrom<IntOrString> for NodeLimit {
    type Error = String;

    fn try_from(written: IntOrString) -> Result<Self, String> {
        let within = |number: u32, max| Some(number).filter(|number| (1..=max).contains(number));
        let (text, limit) = match written {
            IntOrString::Int(count) => {
                let limit = u32::try_from(count).ok().and_then(|count| within(count, NODES_MAX)).map(Self::Count);
                (count.to_string(), limit)
            }
            IntOrString::String(text) => {
                let digits = text.strip_suffix('%').filter(|digits| !digits.starts_with(['+', '0']));
                let percent = digits.and_then(|digits| within(digits.parse().ok()?, 100));
                (shown(&text), percent.map(Self::Percent))
            }
        };
        limit.ok_or_else(|| {
            format!("`{text}` is no number of nodes: a number from 1 to 100000, or a share from `1%` to `100%`")
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

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
        }
    }

    #[test]
    fn a_duration_is_above_zero_and_at_most_a_year() {
        for (text, seconds) in [("90s", Some(90)), ("1h30m", Some(5400)), ("8760h", Some(31_536_000))] {
            assert_eq!(SetDuration::try_from(text.to_owned()).ok().map(|it| it.0.as_secs()), seconds, "{text}");
        }
        for text in ["", "0s", "-1s", "1", "8761h", "1 h", "999999999999999999999h", &"1h".repeat(20)] {
            assert!(SetDuration::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
