//! How far observations can be trusted: for how long images have been watched, and whether containers vanished at once.

use std::time::{Duration, SystemTime};

/// How long nobody may have looked before uses could have been missed: a few of the five-minute passes.
pub const WATCH_GAP_MAX: Duration = Duration::from_hours(1);
/// How long an empty list of containers is doubted after a list with some: longer than a runtime takes to restart.
pub(super) const VANISHED_WAIT: Duration = Duration::from_mins(1);

/// How far the observations can be trusted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObservationWindow {
    /// Since when images were watched without a long gap.
    pub(super) since: Option<SystemTime>,
    pub(super) last_pass: Option<SystemTime>,
    /// Containers of the last pass.
    pub(super) containers: usize,
    /// When the last of them was gone all at once.
    pub(super) vanished_at: Option<SystemTime>,
}

impl ObservationWindow {
    /// A pass found so many containers.
    pub(super) fn advance(&mut self, containers: usize, now: SystemTime) {
        let gap = self.last_pass.map(|last| now.duration_since(last).unwrap_or_default());
        if gap.is_none_or(|gap| gap > WATCH_GAP_MAX) || self.since.is_none() {
            self.since = Some(now);
        }
        self.vanished_at = match self.vanished_at {
            _ if containers > 0 => None,
            None if self.containers > 0 => Some(now),
            Some(vanished) if now.duration_since(vanished).unwrap_or_default() >= VANISHED_WAIT => None,
            other => other,
        };
        self.last_pass = Some(now);
        self.containers = containers;
    }
}
