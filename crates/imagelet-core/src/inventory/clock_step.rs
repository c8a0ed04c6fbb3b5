//! Jumps of the wall clock. A jump forward does not end leases and waits of this process early. If the clock at a start
//! is behind the last recorded time, the recorded times are kept unchanged.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "compared with the wall clock, which a paused clock does not stop"
)]

use std::time::{Duration, Instant, SystemTime};

use crate::{inventory::InventoryState, leases::Leases};

/// A smaller difference is no step: it comes from a slewed clock, or from the time between the reads of the two clocks.
const STEP_MIN: Duration = Duration::from_secs(1);
/// If the clock is behind by less, it was not set back: a concurrent caller read it earlier.
const BEHIND_MIN: Duration = Duration::from_mins(5);
/// A recorded time that is further ahead of the clock was written with a wrong clock and counts as now.
pub(super) const BEHIND_MAX: Duration = Duration::from_hours(24);

#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    pub(super) wall: SystemTime,
    pub(super) steady: Instant,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }

    pub(super) fn forward_step(self, since: Self) -> Duration {
        let wall = self.wall.duration_since(since.wall).unwrap_or_default();
        let step = wall.saturating_sub(self.steady.duration_since(since.steady));
        if step < STEP_MIN { Duration::ZERO } else { step }
    }
}

impl InventoryState {
    /// Moves the leases and waits of this process by a forward step of the wall clock. `now` is the caller's time.
    pub(super) fn follow(&mut self, clocks: Clocks, now: SystemTime, leases: &mut Leases) {
        let step = self.clocks.map_or(Duration::ZERO, |since| clocks.forward_step(since));
        // The caller read `now` before the step, so the next pass moves the leases.
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

    pub(super) fn waits(&mut self) -> impl Iterator<Item = &mut SystemTime> {
        let released = self.memory.images.values_mut().filter_map(|usage| usage.times.released_at.as_mut());
        self.watch.vanished_at.iter_mut().chain(released)
    }

    /// The wall clock, or the last recorded time if the clock is [`BEHIND_MIN`] to [`BEHIND_MAX`] behind this time.
    pub(super) fn time(&self, wall: SystemTime) -> SystemTime {
        let is_step = |last: &SystemTime| {
            last.duration_since(wall).is_ok_and(|behind| (BEHIND_MIN..=BEHIND_MAX).contains(&behind))
        };
        self.seen_at.filter(is_step).unwrap_or(wall)
    }
}
