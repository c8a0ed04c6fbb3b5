//! Shared resources between tenants: when a holder releases a resource, and when a pull waits for another's fetch.
//!
//! The rules cover unpack memory, the fetch of a layer, a disk reservation, a fetch slot and the running prefetch. If
//! another pull waits, the holder keeps the resource only while its receive rate is above a minimum. A pull waits for
//! another tenant's fetch only if that fetch is expected to end soon.

use std::{
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{lock::locked, text::named_enum};

/// Bytes per second.
const RATE_MIN_DEFAULT: u64 = 256 << 10;
/// The rate of a holder counts only after this time, because connections start slowly.
pub const GRACE: Duration = Duration::from_secs(5);
/// The maximum time between two checks of a rate. A slow holder releases the resource within twice [`GRACE`].
pub const CHECK_PERIOD: Duration = Duration::from_millis(500);
/// A pull always waits for another tenant's fetch that is expected to end within this time.
const JOIN_WAIT: Duration = Duration::from_secs(5);
/// The assumed minimum rate of a pull's own fetch, in bytes per second, if the rate of its registry is unknown.
const RATE_ASSUMED: u64 = 1 << 20;
/// After another pull has waited this long, the slowest holder releases the resource, whatever its rate.
pub const WAIT_FAIR: Duration = Duration::from_secs(10);

named_enum! {
    /// A resource that one pull has and another pull waits for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum SharedThing {
        Memory = "memory",
        /// One of the slots in which layers are fetched.
        Place = "place",
        Layer = "layer",
        Space = "space",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullWait {
    pub thing: SharedThing,
    /// The image of the pull that has the resource. If several pulls share it, the pull with the largest part counts.
    pub holder: Option<String>,
}

impl fmt::Display for PullWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holder = self.holder.as_ref().map_or("another pull".into(), |image| format!("the pull of {image}"));
        match self.thing {
            SharedThing::Memory => write!(f, "waits for memory, most of which {holder} has"),
            SharedThing::Place => write!(f, "waits for a place behind {holder}"),
            SharedThing::Layer => write!(f, "waits for a layer that {holder} fetches"),
            SharedThing::Space => write!(f, "waits for space on the disk that {holder} reserved"),
        }
    }
}

/// Measures the receive rate of a holder since it got the resource. Counts only time in which the holder waits for its
/// network, so that a slow disk or another wait does not look like a slow registry.
#[derive(Debug)]
pub struct HoldMeter {
    bytes: AtomicU64,
    clock: Mutex<Clock>,
}

#[derive(Debug)]
struct Clock {
    /// The counted time up to the last pause.
    counted: Duration,
    /// The time at which counting began again. `None`: the clock is paused.
    resumed: Option<Instant>,
    /// The counted time and the bytes at the ends of the last two windows. A window lasts at least [`GRACE`].
    marks: [(Duration, u64); 2],
}

impl HoldMeter {
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { bytes: AtomicU64::new(0), clock: Mutex::new(Clock::new(now)) }
    }

    pub fn restart(&self, now: Instant) {
        let mut clock = locked(&self.clock);
        self.bytes.store(0, Ordering::Relaxed);
        *clock = Clock::new(now);
    }

    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Stops the clock until [`HoldMeter::resume`], while the holder does not wait for its network.
    pub fn pause(&self, now: Instant) {
        let mut clock = locked(&self.clock);
        clock.counted = clock.counted(now);
        clock.resumed = None;
    }

    pub fn resume(&self, now: Instant) {
        locked(&self.clock).resumed.get_or_insert(now);
    }

    /// How long the holder has had the resource, without pauses.
    #[must_use]
    pub fn held_for(&self, now: Instant) -> Duration {
        locked(&self.clock).counted(now)
    }

    /// The lower of two rates in bytes per second: since the start, and over the last one to two [`GRACE`]. So a fast
    /// start does not hide a slow end.
    #[must_use]
    pub fn rate(&self, now: Instant) -> u64 {
        let (mut clock, bytes) = (locked(&self.clock), self.bytes());
        let counted = clock.counted(now);
        if counted.saturating_sub(clock.marks[1].0) >= GRACE {
            clock.marks = [clock.marks[1], (counted, bytes)];
        }
        let (marked, marked_bytes) = clock.marks[0];
        let recent = per_second(bytes.saturating_sub(marked_bytes), counted.saturating_sub(marked));
        per_second(bytes, counted).min(recent)
    }
}

impl Clock {
    fn new(now: Instant) -> Self {
        Self { counted: Duration::ZERO, resumed: Some(now), marks: [(Duration::ZERO, 0); 2] }
    }

    fn counted(&self, now: Instant) -> Duration {
        self.counted + self.resumed.map_or(Duration::ZERO, |resumed| now.saturating_duration_since(resumed))
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos();
    if nanos == 0 {
        return if bytes == 0 { 0 } else { u64::MAX };
    }
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldPolicy {
    /// The minimum receive rate of a holder for which another pull waits, in bytes per second. 0: there is no minimum.
    pub rate_min: u64,
}

impl Default for HoldPolicy {
    fn default() -> Self {
        Self { rate_min: RATE_MIN_DEFAULT }
    }
}

impl HoldPolicy {
    /// Whether a holder for which another pull waits is too slow, so that it must release the resource.
    #[must_use]
    pub fn gives_up(&self, meter: &HoldMeter, now: Instant) -> bool {
        meter.held_for(now) >= GRACE && meter.rate(now) < self.rate_min
    }

    /// Whether a pull waits for another tenant's fetch of the same `size` bytes, of which `left` bytes are missing.
    ///
    /// `own_rate`: the rate of the pull's own registry. If it is unknown, the rate of `fetch` is assumed, but at least
    /// 1 MiB/s. A pull always waits for a fetch that has just started, because the fetch has no known rate yet.
    #[must_use]
    pub fn waits_for(&self, fetch: &HoldMeter, left: u64, size: u64, own_rate: Option<u64>, now: Instant) -> bool {
        if self.rate_min == 0 || fetch.held_for(now) < GRACE / 5 {
            return true;
        }
        let rate = fetch.rate(now);
        expected(left, rate) <= own_expected(size, own_rate.unwrap_or(rate.max(RATE_ASSUMED)))
    }

    /// Like [`Self::waits_for`], for a fetch that received its last byte `whole_for` ago but has not ended.
    #[must_use]
    pub fn waits_for_whole(&self, whole_for: Duration, size: u64, own_rate: Option<u64>) -> bool {
        self.rate_min == 0 || whole_for <= own_expected(size, own_rate.unwrap_or(RATE_ASSUMED))
    }
}

fn own_expected(size: u64, rate: u64) -> Duration {
    JOIN_WAIT.max(expected(size, rate).saturating_mul(2))
}

fn expected(bytes: u64, rate: u64) -> Duration {
    match (bytes, rate) {
        (0, _) => Duration::ZERO,
        (_, 0) => Duration::MAX,
        _ => Duration::from_secs_f64(bytes as f64 / rate as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type JoinCase = (&'static str, u64, u64, u64, Option<u64>, bool);

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A meter that has received so many bytes in each of these seconds, looked at every second.
    fn metered(seconds: impl IntoIterator<Item = u64>) -> (HoldMeter, Instant) {
        let mut now = Instant::now();
        let meter = HoldMeter::new(now);
        for bytes in seconds {
            meter.add(bytes);
            now += after(1);
            let _ = meter.rate(now);
        }
        (meter, now)
    }

    #[test]
    fn a_holder_that_is_waited_for_gives_up_below_its_rate_within_ten_seconds_and_not_before_it_could_reach_it() {
        let policy = HoldPolicy::default();
        let cases: [(&str, Vec<u64>, bool); 8] = [
            ("just begun", vec![100; 4], false),
            ("100 B/s", vec![100; 5], true),
            ("20 KiB/s", vec![20 * KIB; 5], true),
            ("silent", vec![0; 5], true),
            ("at its rate", vec![256 * KIB; 30], false),
            ("a quick start, then 100 B/s", [vec![500 * MIB], vec![100; 10]].concat(), true),
            ("a pause of three seconds in a good fetch", [vec![MIB; 20], vec![0; 3]].concat(), false),
            ("a slow start that became good", [vec![0; 4], vec![10 * MIB; 8]].concat(), false),
        ];
        for (what, seconds, expected) in cases {
            let (meter, now) = metered(seconds);
            assert_eq!(policy.gives_up(&meter, now), expected, "{what}: {} B/s", meter.rate(now));
        }
        let (meter, now) = metered([0; 60]);
        assert!(!HoldPolicy { rate_min: 0 }.gives_up(&meter, now), "switched off");
    }

    #[test]
    fn a_fetch_of_another_tenant_is_waited_for_while_it_ends_soon_or_sooner_than_twice_an_own_one() {
        let policy = HoldPolicy::default();
        // Rate of the fetch, bytes left, size, own rate.
        let cases: [JoinCase; 12] = [
            ("a junk blob at 120 B/s", 120, 30 * MIB, 30 * MIB, None, false),
            ("20 KiB/s", 20 * KIB, 30 * MIB, 30 * MIB, None, false),
            ("20 KiB/s, nearly whole", 20 * KIB, 80 * KIB, 30 * MIB, None, true),
            ("five seconds left", 100, 500, 30 * MIB, Some(100 * MIB), true),
            ("a large base layer that comes well", 50 * MIB, 900 * MIB, 1000 * MIB, Some(50 * MIB), true),
            ("the same, from a registry not known", 2 * MIB, 900 * MIB, 1000 * MIB, None, true),
            ("a slow link that both share", 500 * KIB, 90 * MIB, 100 * MIB, Some(500 * KIB), true),
            ("a blob that claims a gigabyte for a small layer", 300 * KIB, 1000 * MIB, 30 * MIB, None, false),
            ("a registry that is much faster", MIB, 900 * MIB, 1000 * MIB, Some(100 * MIB), false),
            ("silent", 0, 1, MIB, None, false),
            ("whole, and being unpacked", 0, 0, MIB, None, true),
            ("a small layer just above the minimum", 257 * KIB, 30 * MIB, 30 * MIB, None, false),
        ];
        for (what, rate, left, size, own_rate, expected) in cases {
            let (meter, now) = metered([rate; 6]);
            assert_eq!(policy.waits_for(&meter, left, size, own_rate, now), expected, "{what}");
        }
        let (meter, now) = metered([]);
        assert!(policy.waits_for(&meter, MIB, MIB, None, now), "it has just begun");
        for (seconds, size, expected) in [(5, MIB, true), (6, MIB, false), (59, 30 * MIB, true), (61, 30 * MIB, false)]
        {
            assert_eq!(policy.waits_for_whole(after(seconds), size, None), expected, "{seconds} s");
        }
    }

    #[test]
    fn paused_time_is_not_counted_and_a_restart_forgets_all() {
        let began = Instant::now();
        let meter = HoldMeter::new(began);
        meter.add(MIB);
        meter.pause(began + after(1));
        meter.resume(began + after(100));
        meter.resume(began + after(100));
        assert_eq!(meter.held_for(began + after(101)), after(2));
        assert_eq!(meter.rate(began + after(101)), MIB / 2);
        meter.restart(began + after(200));
        assert_eq!((meter.held_for(began + after(200)), meter.bytes()), (Duration::ZERO, 0));
    }
}
