//! A clock that no setting of the wall clock changes: the boot clock, carried across boots.
//!
//! The boot clock counts while the machine is up or suspended. Only the wall clock shows how long the machine was off.
//! That time is trusted up to [`OFF_MAX`], and read again shortly after boot, because a machine without a battery gets
//! its time from the network. The error of an age is at most that bound, whatever the wall clock shows, and disappears
//! once the wall clock is right.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

/// The longest counted time off: a clock years ahead after a boot makes no image older than this.
pub(super) const OFF_MAX: Duration = Duration::from_hours(7 * 24);
/// How long after a boot a corrected wall clock is accepted.
const CORRECTED_UNTIL: Duration = Duration::from_hours(1);
const CORRECTION_MIN: Duration = Duration::from_secs(10);
/// Longest boot id; Linux writes a UUID.
const BOOT_LENGTH_MAX: u64 = 64;

pub(crate) trait BootClock: fmt::Debug + Send + Sync {
    fn uptime(&self) -> Duration;
    /// The unique id of this boot; empty if unknown.
    fn boot(&self) -> String;
}

#[derive(Debug)]
pub(super) struct Linux;

impl BootClock for Linux {
    fn uptime(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), u32::try_from(now.tv_nsec).unwrap_or_default())
    }

    fn boot(&self) -> String {
        use std::io::Read as _;
        let mut text = String::new();
        let read = std::fs::File::open("/proc/sys/kernel/random/boot_id")
            .and_then(|file| file.take(BOOT_LENGTH_MAX).read_to_string(&mut text));
        read.map(|_| text.trim().to_owned()).unwrap_or_default()
    }
}

/// Relates one boot's clock to the steady time, as stored on disk. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Anchor {
    pub(super) boot: String,
    pub(super) uptime: u64,
    pub(super) steady: u64,
    pub(super) wall: u64,
    /// The end of the previous boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Before>,
}

/// The last known times of the previous boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Before {
    pub(super) steady: u64,
    pub(super) wall: u64,
    /// How long the machine is assumed to have been off.
    pub(super) off: u64,
}

#[derive(Debug, Default)]
pub(super) struct AgeClock {
    /// `None`: the caller's times are used unchanged.
    ticking: Option<Ticking>,
}

#[derive(Debug)]
struct Ticking {
    clock: Box<dyn BootClock>,
    boot: String,
    /// The steady time at boot; before 1970 for a long uptime.
    base: i128,
    before: Option<Before>,
}

/// Moves the stamps made since boot after a corrected wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Correction {
    /// Only later stamps move.
    pub(super) later_than: SystemTime,
    /// Nanoseconds to add.
    pub(super) by: i128,
}

impl Correction {
    pub(super) fn apply(self, stamp: SystemTime) -> SystemTime {
        if stamp <= self.later_than { stamp } else { moved(stamp, self.by).max(self.later_than) }
    }
}

impl AgeClock {
    /// Continues the steady time from an anchor; `wall` is the wall clock.
    pub(super) fn start(clock: Box<dyn BootClock>, anchor: Option<&Anchor>, wall: SystemTime) -> Self {
        let (boot, uptime, wall) = (clock.boot(), nanos(clock.uptime()), since_epoch(wall));
        let (base, before) = match anchor {
            None => (wall - uptime, None),
            Some(anchor) if anchor.boot == boot && !boot.is_empty() && i128::from(anchor.uptime) <= uptime => {
                (i128::from(anchor.steady) - i128::from(anchor.uptime), anchor.before)
            }
            Some(anchor) => {
                let off = off(wall - uptime, anchor.wall);
                let before = Before { steady: anchor.steady, wall: anchor.wall, off };
                (i128::from(anchor.steady) + i128::from(off), Some(before))
            }
        };
        Self { ticking: Some(Ticking { clock, boot, base, before }) }
    }

    /// The steady time. Without a boot clock: the caller's time.
    pub(super) fn now(&self, wall: SystemTime) -> SystemTime {
        let Some(ticking) = &self.ticking else { return wall };
        stamp(ticking.base + nanos(ticking.clock.uptime()))
    }

    /// Nanoseconds to add to a steady time to convert it to the wall clock.
    pub(super) fn shift(steady: SystemTime, wall: SystemTime) -> i128 {
        since_epoch(wall) - since_epoch(steady)
    }

    /// Detects a wall clock corrected since boot. The caller must apply the result to all stamps.
    pub(super) fn correct(&mut self, wall: SystemTime) -> Option<Correction> {
        let ticking = self.ticking.as_mut()?;
        let uptime = ticking.clock.uptime();
        let before = ticking.before.as_mut().filter(|_| uptime < CORRECTED_UNTIL)?;
        let off = off(since_epoch(wall) - nanos(uptime), before.wall);
        let by = i128::from(off) - i128::from(before.off);
        if by.unsigned_abs() < CORRECTION_MIN.as_nanos() {
            return None;
        }
        before.off = off;
        ticking.base += by;
        Some(Correction { later_than: stamp(i128::from(before.steady)), by })
    }

    pub(super) fn anchor(&self, wall: SystemTime) -> Option<Anchor> {
        let ticking = self.ticking.as_ref()?;
        let uptime = nanos(ticking.clock.uptime());
        let cut = |nanos: i128| u64::try_from(nanos.max(0)).unwrap_or(u64::MAX);
        Some(Anchor {
            boot: ticking.boot.clone(),
            uptime: cut(uptime),
            steady: cut(ticking.base + uptime),
            wall: cut(since_epoch(wall)),
            before: ticking.before,
        })
    }
}

/// How long the machine was off, from the wall clock at boot; at most [`OFF_MAX`].
fn off(booted: i128, ended: u64) -> u64 {
    u64::try_from((booted - i128::from(ended)).clamp(0, nanos(OFF_MAX))).unwrap_or_default()
}

/// A time moved by nanoseconds, clamped to 1970 to 2554.
pub(super) fn moved(time: SystemTime, by: i128) -> SystemTime {
    stamp(since_epoch(time) + by)
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX)
}

fn since_epoch(time: SystemTime) -> i128 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => nanos(since),
        Err(before) => -nanos(before.duration()),
    }
}

fn stamp(nanos: i128) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Debug, Default)]
    pub(crate) struct Machine(Arc<Mutex<(u32, Duration)>>);

    impl Machine {
        pub(crate) fn passes(&self, time: Duration) {
            self.0.lock().unwrap().1 += time;
        }

        pub(crate) fn reboots(&self) {
            let mut state = self.0.lock().unwrap();
            *state = (state.0 + 1, Duration::from_secs(20));
        }

        pub(crate) fn clock(&self) -> Box<dyn BootClock> {
            Box::new(self.clone())
        }
    }

    impl BootClock for Machine {
        fn uptime(&self) -> Duration {
            self.0.lock().unwrap().1
        }

        fn boot(&self) -> String {
            format!("boot-{}", self.0.lock().unwrap().0)
        }
    }

    const YEARS: Duration = Duration::from_hours(10 * 365 * 24);

    fn at(hours: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + YEARS * 5 + Duration::from_hours(hours)
    }

    #[test]
    fn no_setting_of_the_wall_clock_moves_the_steady_time() {
        let machine = Machine::default();
        let mut clock = AgeClock::start(machine.clock(), None, at(0));
        assert_eq!(clock.now(at(0)), at(0));
        machine.passes(Duration::from_hours(5));
        let hour = Duration::from_hours(1);
        for wall in [at(5), at(5) + hour, at(5) - hour, at(5) + YEARS, at(5) - YEARS, SystemTime::UNIX_EPOCH] {
            assert_eq!(clock.correct(wall), None);
            assert_eq!(clock.now(wall), at(5));
        }
        // A process of the same boot continues from the anchor, whatever the wall clock shows.
        let anchor = clock.anchor(at(5) + YEARS).unwrap();
        machine.passes(Duration::from_hours(1));
        let next = AgeClock::start(machine.clock(), Some(&anchor), at(0) - YEARS);
        assert_eq!(next.now(at(0)), at(6));
    }

    #[test]
    fn a_boot_with_a_wrong_clock_is_put_right_when_the_clock_is() {
        let machine = Machine::default();
        machine.passes(Duration::from_hours(100));
        let clock = AgeClock::start(machine.clock(), None, at(0));
        let anchor = clock.anchor(at(0)).unwrap();
        machine.reboots();
        // The machine was off for ten hours with a dead clock battery.
        let mut clock = AgeClock::start(machine.clock(), Some(&anchor), SystemTime::UNIX_EPOCH);
        assert_eq!(clock.now(SystemTime::UNIX_EPOCH), at(0) + Duration::from_secs(20));
        let used = clock.now(SystemTime::UNIX_EPOCH);
        machine.passes(Duration::from_secs(30));
        let wall = at(10) + Duration::from_secs(50);
        let correction = clock.correct(wall).unwrap();
        assert_eq!(clock.now(wall), wall);
        assert_eq!(correction.apply(used), at(10) + Duration::from_secs(20));
        assert_eq!(correction.apply(at(0)), at(0), "what was before the boot stays");
        assert_eq!(clock.correct(wall), None);
    }

    #[test]
    fn a_clock_years_ahead_after_a_boot_costs_at_most_a_week() {
        let machine = Machine::default();
        let anchor = AgeClock::start(machine.clock(), None, at(0)).anchor(at(0)).unwrap();
        machine.reboots();
        let mut clock = AgeClock::start(machine.clock(), Some(&anchor), at(1) + YEARS);
        assert!(clock.now(at(1) + YEARS) <= at(0) + OFF_MAX + Duration::from_secs(20));
        // A correction within the hour removes the whole error.
        let right = at(1) + Duration::from_secs(20);
        assert!(clock.correct(right).is_some());
        assert_eq!(clock.now(right), right);
        // A later change is manual and is ignored.
        machine.passes(CORRECTED_UNTIL);
        assert_eq!(clock.correct(right + YEARS), None);
    }

    #[test]
    fn a_correction_survives_a_restart_within_the_boot() {
        let machine = Machine::default();
        let anchor = AgeClock::start(machine.clock(), None, at(0)).anchor(at(0)).unwrap();
        machine.reboots();
        let wrong = SystemTime::UNIX_EPOCH;
        let anchor = AgeClock::start(machine.clock(), Some(&anchor), wrong).anchor(wrong).unwrap();
        let mut clock = AgeClock::start(machine.clock(), Some(&anchor), wrong);
        let right = at(3) + Duration::from_secs(20);
        assert!(clock.correct(right).is_some());
        assert_eq!(clock.now(right), right);
    }

    #[test]
    fn without_a_boot_clock_the_caller_is_believed() {
        let mut clock = AgeClock::default();
        assert_eq!((clock.now(at(3)), clock.correct(at(9)), clock.anchor(at(3))), (at(3), None, None));
    }
}
