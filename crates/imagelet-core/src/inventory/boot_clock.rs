//! A time that nobody sets: what the wall clock would say had it never been touched.
//!
//! While a machine is up its boot clock counts, suspended or not. From one boot to the next only the wall clock tells how
//! long the machine was off. It is believed up to [`OFF_MAX`], and asked again while the machine is freshly booted, since a
//! machine without a battery learns the time from its network. Ages so never shrink below nor grow beyond what was lived
//! through by more than that, whatever the wall clock is set to, and they are right again as soon as it is.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

/// The longest time off that counts: a clock that runs years ahead after a boot makes no image older than this.
pub(super) const OFF_MAX: Duration = Duration::from_hours(7 * 24);
/// How long after a boot the wall clock may still be put right.
const CORRECTED_UNTIL: Duration = Duration::from_hours(1);
/// Corrections smaller than this are not worth a change.
const CORRECTION_MIN: Duration = Duration::from_secs(10);
/// Longest name of a boot; Linux writes a UUID.
const BOOT_LENGTH_MAX: u64 = 64;

/// Reads a clock that counts from the machine's boot and is never set.
pub(super) trait BootClock: Send + Sync {
    /// Since boot, with the time it was suspended.
    fn uptime(&self) -> Duration;
    /// Which boot this is; different for each. Empty: nobody knows.
    fn boot(&self) -> String;
}

/// Linux's.
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

/// What ties one boot's clock to the steady time, as kept on disk. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Anchor {
    /// Which boot.
    pub(super) boot: String,
    /// Its clock,
    pub(super) uptime: u64,
    /// when the steady time was this,
    pub(super) steady: u64,
    /// and the wall clock said this.
    pub(super) wall: u64,
    /// How the boot before ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Before>,
}

/// The last that is known of the boot before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Before {
    pub(super) steady: u64,
    pub(super) wall: u64,
    /// How long the machine is taken to have been off.
    pub(super) off: u64,
}

/// What time it is, whatever the wall clock is set to.
#[derive(Default)]
pub(super) struct AgeClock {
    /// `None`: the times one is reported are taken as they are.
    ticking: Option<Ticking>,
}

struct Ticking {
    clock: Box<dyn BootClock>,
    boot: String,
    /// The steady time at which this boot's clock was zero; before 1970 for a machine that is up for long.
    base: i128,
    before: Option<Before>,
}

/// The stamps made since a boot have to be moved, as the machine was off for longer or shorter than thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Correction {
    /// Stamps later than this
    pub(super) later_than: SystemTime,
    /// are moved by so many nanoseconds.
    pub(super) by: i128,
}

impl fmt::Debug for AgeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let boot = self.ticking.as_ref().map(|ticking| &ticking.boot);
        f.debug_struct("AgeClock").field("boot", &boot).finish_non_exhaustive()
    }
}

impl Correction {
    /// The stamp put right.
    pub(super) fn apply(self, stamp: SystemTime) -> SystemTime {
        if stamp <= self.later_than { stamp } else { moved(stamp, self.by).max(self.later_than) }
    }
}

impl AgeClock {
    /// Takes up the time where an anchor left it; the wall clock says `wall`.
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

    /// Now. Without a boot clock: what the caller says.
    pub(super) fn now(&self, wall: SystemTime) -> SystemTime {
        let Some(ticking) = &self.ticking else { return wall };
        stamp(ticking.base + nanos(ticking.clock.uptime()))
    }

    /// What to add to a steady time to tell it by the wall clock, given one moment reported by both.
    pub(super) fn shift(steady: SystemTime, wall: SystemTime) -> i128 {
        since_epoch(wall) - since_epoch(steady)
    }

    /// Looks whether the wall clock was put right since the boot. What it answers has to be applied to all stamps.
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

    /// What to keep on disk.
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

/// How long the machine was off, by a wall clock that said `booted` when it booted; at most [`OFF_MAX`].
fn off(booted: i128, ended: u64) -> u64 {
    u64::try_from((booted - i128::from(ended)).clamp(0, nanos(OFF_MAX))).unwrap_or_default()
}

/// A time moved by nanoseconds; never out of 1970 to 2554.
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

    /// A machine whose clocks a test sets.
    #[derive(Clone, Default)]
    pub(in crate::inventory) struct Machine(Arc<Mutex<(u32, Duration)>>);

    impl Machine {
        pub(in crate::inventory) fn passes(&self, time: Duration) {
            self.0.lock().unwrap().1 += time;
        }

        pub(in crate::inventory) fn reboots(&self) {
            let mut state = self.0.lock().unwrap();
            *state = (state.0 + 1, Duration::from_secs(20));
        }

        pub(in crate::inventory) fn clock(&self) -> Box<dyn BootClock> {
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
        for wall in [at(5), at(5) + YEARS, at(5) - YEARS, SystemTime::UNIX_EPOCH] {
            assert_eq!(clock.correct(wall), None);
            assert_eq!(clock.now(wall), at(5));
        }
        // A process that starts in the same boot goes on from there, by whichever wall clock.
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
        // Off for ten hours, and the clock battery is dead.
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
        // Put right within the hour, nothing is left of it.
        let right = at(1) + Duration::from_secs(20);
        assert!(clock.correct(right).is_some());
        assert_eq!(clock.now(right), right);
        // Later it is a person who plays with the clock.
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
