//! The observation window: how long images were observed without a gap, and whether all containers vanished at once.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// After a longer gap between passes, the observation starts again, because uses may be missing.
pub const WATCH_GAP_MAX: Duration = Duration::from_hours(1);
/// A missing last container of the node or an image counts as gone after this time. A runtime restart is shorter.
pub const VANISHED_WAIT: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ObservationWindow {
    pub(super) since: Option<SystemTime>,
    pub(super) last_pass: Option<SystemTime>,
    pub(super) containers: usize,
    pub(super) vanished_at: Option<SystemTime>,
}

impl ObservationWindow {
    pub(super) fn advance(&mut self, containers: usize, now: SystemTime, wall: SystemTime) {
        let gap = self.last_pass.map(|last| now.duration_since(last).unwrap_or_default());
        if gap.is_none_or(|gap| gap > WATCH_GAP_MAX) || self.since.is_none() {
            self.since = Some(now);
        }
        self.vanished_at = match self.vanished_at {
            _ if containers > 0 => None,
            None if self.containers > 0 => Some(wall),
            Some(vanished) if wall.duration_since(vanished).unwrap_or_default() >= VANISHED_WAIT => None,
            other => other,
        };
        self.last_pass = Some(now);
        self.containers = containers;
    }
}

pub(super) fn settling(lease: Duration) -> Duration {
    VANISHED_WAIT.min(lease)
}
