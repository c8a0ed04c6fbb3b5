//! Steps of the wall clock: forward ones end no lease and no wait of this process, and a clock that is behind at a start
//! changes no recorded time.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "compared with the wall clock, which a paused clock does not stop"
)]

use std::time::{Duration, Instant, SystemTime};

use crate::{inventory::InventoryState, leases::Leases};

/// A smaller difference is a slewed clock, or a wait between the reads of both clocks.
const STEP_MIN: Duration = Duration::from_secs(1);
/// Concurrent callers read the wall clock this much earlier.
const BEHIND_MIN: Duration = Duration::from_mins(5);
/// A record further ahead is that of a clock that was wrong: it counts as now.
pub(super) const BEHIND_MAX: Duration = Duration::from_hours(24);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    pub(super) wall: SystemTime,
    pub(super) steady: Instant,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }

    /// How far the wall clock stepped forward since then.
    pub(super) fn forward_step(self, since: Self) -> Duration {
        let wall = self.wall.duration_since(since.wall).unwrap_or_default();
        let step = wall.saturating_sub(self.steady.duration_since(since.steady));
        if step < STEP_MIN { Duration::ZERO } else { step }
    }
}

impl InventoryState {
    /// Moves the leases and waits of this process with the wall clock, for a pass of this time.
    pub(super) fn follow(&mut self, clocks: Clocks, now: SystemTime, leases: &mut Leases) {
        let step = self.clocks.map_or(Duration::ZERO, |since| clocks.forward_step(since));
        // The caller has read the clock before the step: the next pass moves them.
        if clocks.wall.duration_since(now).unwrap_or_default() > step / 2 && !step.is_zero() {
            return;
        }
        self.clocks = Some(clocks);
        if step.is_zero() {
            return;
        }
        tracing::warn!(seconds = step.as_secs(), "the wall clock stepped forward; leases last as long as before");
        leases.shift(step);
        self.waits().for_each(|at| *at += step);
    }

    /// The starts of waits that end by the wall clock.
    pub(super) fn waits(&mut self) -> impl Iterator<Item = &mut SystemTime> {
        let released = self.memory.images.values_mut().filter_map(|usage| usage.times.released_at.as_mut());
        self.watch.vanished_at.iter_mut().chain(released)
    }

    /// The wall clock, or the last recorded time where the wall clock is behind it by less than [`BEHIND_MAX`].
    pub(super) fn time(&self, wall: SystemTime) -> SystemTime {
        let is_step = |last: &SystemTime| {
            last.duration_since(wall).is_ok_and(|behind| (BEHIND_MIN..=BEHIND_MAX).contains(&behind))
        };
        self.seen_at.filter(is_step).unwrap_or(wall)
    }
}
