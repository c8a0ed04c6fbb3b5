//! Decides the number of connections of one blob; does no I/O.
//!
//! While the next stage of the pipeline waits for bytes, connections are added one at a time, as long as each raises
//! the rate. When that stage no longer waits, a connection is removed.

use std::time::Duration;

pub(crate) const RANGED_MIN: u64 = 16 << 20;
/// The first range of a blob of [`RANGED_MIN`] or more. It is short, so that the rate is measured early.
pub(crate) const RANGE_FIRST: u64 = 4 << 20;
const RANGE_GROWTH: u64 = 4;
/// Maximum range of a single connection. It is limited, because a host that becomes slow is used until its range ends.
const RANGE_MAX: u64 = 32 << 20;
pub(crate) const PART: u64 = 2 << 20;
/// The next range is requested when at least this many bytes of the current range are left, to hide the round trip.
const LEAD_MIN: u64 = 2 << 20;
const LEAD_MAX: u64 = RANGE_MAX / 2;
const CONNECTIONS_MAX: usize = 8;

const WINDOW: Duration = Duration::from_millis(50);
const WINDOW_BYTES: u64 = 128 << 10;
const WINDOW_MAX: Duration = Duration::from_secs(1);
/// If the reader waits for more than this share of the time, the network is the bottleneck.
const READER_WAIT_HIGH: f64 = 0.25;
const READER_WAIT_LOW: f64 = 0.05;
/// A new connection must reach this share of its expected gain, which is `1 / (n - 1)` of the rate for `n` connections.
const GAIN_SHARE: f64 = 0.3;
const HOLD: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferSample {
    pub(crate) at: Duration,
    pub(crate) received: u64,
    pub(crate) reader_wait: Duration,
    pub(crate) answered: usize,
    pub(crate) has_room: bool,
}

#[derive(Default)]
pub(crate) struct Pace {
    pub(crate) connections: usize,
    rate: u64,
    range: u64,
    mark: Option<TransferSample>,
    /// The rate before the newest connection, until that connection is accepted or removed.
    on_trial: Option<f64>,
    hold_until: Duration,
    /// Rates are measured once this many parts have begun to arrive: then they include the newest connection.
    settled_at: usize,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { connections: 1, range: RANGE_FIRST, ..Self::default() }
    }

    pub(crate) fn next_range(&mut self) -> u64 {
        if self.connections > 1 {
            self.range = RANGE_FIRST;
            return PART;
        }
        let range = self.range;
        self.range = (range * RANGE_GROWTH).min(RANGE_MAX);
        range
    }

    /// The next range is requested when this many bytes are left: as many bytes as arrive until its answer.
    pub(crate) fn lead(&self, answer: Duration) -> u64 {
        let milliseconds = u64::try_from(answer.as_millis()).unwrap_or(u64::MAX);
        (self.rate.saturating_mul(milliseconds) / 1000).clamp(LEAD_MIN, LEAD_MAX)
    }

    pub(crate) fn observe(&mut self, seen: TransferSample) {
        let Some(mark) = self.mark.filter(|_| seen.answered >= self.settled_at) else {
            // The trial of a connection starts with its first byte, so the time to open the connection is not measured.
            self.mark = Some(seen);
            return;
        };
        let (took, bytes) = (seen.at.saturating_sub(mark.at), seen.received - mark.received);
        if took < WINDOW || (bytes < WINDOW_BYTES && took < WINDOW_MAX) {
            return;
        }
        self.mark = Some(seen);
        let rate = bytes as f64 / took.as_secs_f64();
        self.rate = bytes.saturating_mul(1000) / u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let share = seen.reader_wait.saturating_sub(mark.reader_wait).as_secs_f64() / took.as_secs_f64();
        self.decide(rate, share, &seen);
    }

    fn decide(&mut self, rate: f64, share: f64, seen: &TransferSample) {
        let before = self.on_trial.take();
        if share <= READER_WAIT_LOW {
            self.connections = (self.connections - 1).max(1);
            return;
        }
        if share < READER_WAIT_HIGH {
            return;
        }
        if let Some(before) = before
            && rate < before * (1.0 + GAIN_SHARE / (self.connections - 1) as f64)
        {
            self.connections -= 1;
            self.hold_until = seen.at + HOLD;
            return;
        }
        if self.connections < CONNECTIONS_MAX && seen.has_room && seen.at >= self.hold_until {
            self.connections += 1;
            self.on_trial = Some(rate);
            self.settled_at = seen.answered + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays windows of 100 ms: megabytes received, percent of time the reader waits; returns the connections after
    /// each.
    fn play(windows: &[(u64, u64)]) -> Vec<usize> {
        let mut pace = Pace::new();
        let mut seen = TransferSample {
            at: Duration::ZERO,
            received: 0,
            reader_wait: Duration::ZERO,
            answered: 0,
            has_room: true,
        };
        pace.observe(seen);
        windows
            .iter()
            .map(|(megabytes, percent)| {
                seen.at += Duration::from_millis(100);
                seen.received += megabytes << 20;
                seen.answered += 1;
                seen.reader_wait += Duration::from_millis(*percent);
                pace.observe(seen);
                pace.connections
            })
            .collect()
    }

    #[test]
    fn connections_follow_what_the_stage_behind_can_use() {
        for (what, windows, wanted) in [
            ("busy behind: one is enough", vec![(10, 0), (10, 4), (10, 20), (10, 24)], vec![1, 1, 1, 1]),
            ("each connection adds its share", vec![(1, 90), (2, 80), (3, 70), (4, 50)], vec![2, 3, 4, 5]),
            ("until the stage behind is busy", vec![(4, 60), (8, 20), (8, 10), (8, 3)], vec![2, 2, 2, 1]),
            ("one that adds nothing goes again", vec![(10, 90), (10, 90), (10, 90)], vec![2, 1, 1]),
            (
                "the third adds nothing, the second stays",
                vec![(10, 90), (20, 80), (20, 80), (20, 80)],
                vec![2, 3, 2, 2],
            ),
            (
                "no more than the bound",
                vec![(1, 90), (2, 90), (3, 90), (4, 90), (5, 90), (6, 90), (7, 90), (8, 90), (9, 90)],
                vec![2, 3, 4, 5, 6, 7, 8, 8, 8],
            ),
            ("a rate that falls takes the newest away", vec![(4, 90), (1, 90)], vec![2, 1]),
        ] {
            assert_eq!(play(&windows), wanted, "{what}");
        }
    }

    #[test]
    fn after_a_vain_try_the_next_comes_only_after_a_while() {
        let mut windows = vec![(4, 90); 23];
        windows.extend([(8, 90), (12, 90)]);
        let connections = play(&windows);
        assert_eq!(connections[..2], [2, 1]);
        assert!(connections[2..21].iter().all(|count| *count == 1), "{connections:?}");
        assert_eq!(connections[21..], [2, 1, 1, 1], "{connections:?}");
    }

    #[test]
    fn nothing_is_decided_on_too_little() {
        let mut pace = Pace::new();
        let seen = |millis, received, answered, has_room| TransferSample {
            at: Duration::from_millis(millis),
            received,
            reader_wait: Duration::from_millis(millis),
            answered,
            has_room,
        };
        for (millis, received, answered, has_room, wanted) in [
            (0, 0, 0, true, 1),
            (49, 1 << 20, 0, true, 1),     // too soon
            (999, 1000, 0, true, 1),       // long enough, too few bytes to know a rate
            (1000, 1000, 0, true, 2),      // a trickle for a second: another connection may do better
            (1100, 1 << 20, 0, true, 2),   // the new one has not answered
            (5000, 2 << 20, 0, true, 2),   // still not
            (5040, 40 << 20, 1, true, 2),  // its window begins with its answer
            (5100, 90 << 20, 2, false, 2), // it helps, and there is no room for more
        ] {
            pace.observe(seen(millis, received, answered, has_room));
            assert_eq!(pace.connections, wanted, "at {millis} ms");
        }
    }

    #[test]
    fn ranges_grow_while_one_connection_is_enough_and_are_short_while_several_read() {
        let mut pace = Pace::new();
        let ranges: Vec<u64> = (0..4).map(|_| pace.next_range()).collect();
        assert_eq!(ranges, [RANGE_FIRST, 4 * RANGE_FIRST, RANGE_MAX, RANGE_MAX]);
        pace.connections = 2;
        assert_eq!(pace.next_range(), PART);
        pace.connections = 1;
        assert_eq!(pace.next_range(), RANGE_FIRST, "trust begins anew");
    }

    #[test]
    fn the_next_range_is_requested_a_round_trip_before_the_end() {
        for (megabytes, answer, wanted) in [(1, 0, 2), (10, 1, 2), (10, 40, 4), (100, 200, 16)] {
            let mut pace = Pace::new();
            for (moment, received) in [(0, 0), (100, megabytes << 20)] {
                let at = Duration::from_millis(moment);
                let reader_wait = Duration::ZERO;
                pace.observe(TransferSample { at, received, reader_wait, answered: 0, has_room: true });
            }
            let lead = pace.lead(Duration::from_millis(answer));
            assert_eq!(lead >> 20, wanted, "{megabytes} MiB in 100 ms, {answer} ms");
        }
    }
}
