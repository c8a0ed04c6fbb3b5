//! The section `pulls` of the configuration: how long a pull may take for nothing.

use std::time::Duration;

use imagelet_core::image::ByteSize;
use imagelet_oci::Trickle;
use serde::{Deserialize, Serialize};

use super::{GoDuration, validate::Complaints};
use crate::size::parse_size;

/// What is shorter ends pulls that are only slow to begin.
const TIME_MIN: GoDuration = GoDuration::seconds(1);

/// `pulls` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PullsFile {
    /// How long the daemon goes on with a pull that nobody asks for any more, so that whoever comes back finds it further. 0 ends it at once.
    #[serde(rename = "grace", skip_serializing_if = "Option::is_none")]
    grace: Option<GoDuration>,
    /// A pull of the embedded store ends when none of its connections brought a byte for this long, retries included, at least 1s. 0: it ends when its retries do; a connection that is silent for 20s is given up either way.
    #[serde(rename = "progressDeadline", skip_serializing_if = "Option::is_none")]
    progress_deadline: Option<GoDuration>,
    /// A pull of the embedded store that brings fewer bytes a second than this, such as `16Ki`, gives its places to layers of others that wait, and goes on when places are free. 0: never.
    #[serde(rename = "trickleRate", skip_serializing_if = "Option::is_none")]
    trickle_rate: Option<String>,
    /// Over this time of waiting for the network the rate is taken, at least 1s.
    #[serde(rename = "trickleWindow", skip_serializing_if = "Option::is_none")]
    trickle_window: Option<GoDuration>,
}

/// How long a pull may take for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PullPatience {
    /// How long a pull that nobody asks for any more goes on.
    pub(crate) grace: Duration,
    /// The longest time without a byte from anywhere; `None`: as long as the retries take.
    pub(crate) silence_max: Option<Duration>,
    /// When a pull trickles; `None`: never.
    pub(crate) trickle: Option<Trickle>,
}

impl PullsFile {
    pub(super) fn defaults() -> Self {
        Self {
            grace: Some(GoDuration::seconds(2)),
            progress_deadline: Some(GoDuration::minutes(1)),
            trickle_rate: Some("16Ki".into()),
            trickle_window: Some(GoDuration::minutes(1)),
        }
    }

    pub(super) fn checked(&self, complaints: &mut Complaints) -> PullPatience {
        let grace = self.grace.unwrap_or_default();
        if grace.0 < 0 {
            complaints.add("pulls.grace", format!("pulls.grace {grace} must not be negative"));
        }
        let deadline = self.progress_deadline.unwrap_or_default();
        if deadline.0 != 0 && deadline < TIME_MIN {
            const KEY: &str = "pulls.progressDeadline";
            complaints.add(KEY, format!("{KEY} {deadline} must be 0, or at least {TIME_MIN}"));
        }
        let window = self.trickle_window.unwrap_or(TIME_MIN);
        if window < TIME_MIN {
            const KEY: &str = "pulls.trickleWindow";
            complaints.add(KEY, format!("{KEY} {window} must be at least {TIME_MIN}"));
        }
        let rate = self.trickle_rate.as_deref().map_or(Ok(ByteSize::ZERO), parse_size).unwrap_or_else(|error| {
            complaints.add("pulls.trickleRate", format!("pulls.trickleRate: {error}"));
            ByteSize::ZERO
        });
        PullPatience {
            grace: grace.to_std(),
            silence_max: (deadline.0 > 0).then(|| deadline.to_std()),
            trickle: (rate.0 > 0).then(|| Trickle { bytes_per_second: rate.0, window: window.to_std() }),
        }
    }
}
