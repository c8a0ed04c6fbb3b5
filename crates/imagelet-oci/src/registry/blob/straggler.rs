//! Decides when a connection that is far slower than the others of its pull gets a rival; does no I/O.
//!
//! The rate of a connection is measured in windows of waiting time. The usual rate is the median of the pull's last
//! windows. A connection far below the usual rate is a straggler if a rival saves enough time.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::registry::locked;

const WINDOW: Duration = Duration::from_secs(1);
const WINDOW_BYTES: u64 = 1 << 20;
/// The minimum waiting time in a rate. Otherwise bytes that arrive without a wait have an infinite rate.
const WINDOW_MIN: Duration = Duration::from_millis(10);
const RATES_MAX: usize = 16;
const RATES_MIN: usize = 3;
const SLOW_SHARE: f64 = 0.125;
const GAIN_MIN: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Window {
    pub(super) bytes: u64,
    pub(super) waited: Duration,
}

impl Window {
    fn rate(self) -> f64 {
        self.bytes as f64 / self.waited.max(WINDOW_MIN).as_secs_f64()
    }
}

/// Whether a connection that still has to deliver `left` bytes gets a rival. `usual` is in bytes per second.
pub(super) fn is_straggler(window: Window, left: u64, usual: Option<f64>) -> bool {
    let Some(usual) = usual.filter(|_| window.waited >= WINDOW) else { return false };
    let rate = window.rate();
    let gain = left as f64 / rate - left as f64 / usual;
    rate < usual * SLOW_SHARE && gain >= GAIN_MIN.as_secs_f64()
}

#[derive(Default)]
pub(crate) struct ConnectionRates(Mutex<VecDeque<f64>>);

impl ConnectionRates {
    fn record(&self, window: Window) {
        let mut rates = locked(&self.0);
        if rates.len() == RATES_MAX {
            rates.pop_front();
        }
        rates.push_back(window.rate());
    }

    pub(crate) fn usual(&self) -> Option<f64> {
        let rates = locked(&self.0);
        let mut sorted: Vec<f64> = rates.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() >= RATES_MIN)
    }
}

/// Measures one connection. Other tasks read the meter while the connection waits.
#[derive(Default)]
pub(super) struct WindowMeter(Mutex<Metered>);

#[derive(Default)]
struct Metered {
    host: usize,
    window: Window,
    last: Option<Window>,
    waits_since: Option<Instant>,
}

impl WindowMeter {
    pub(super) fn attempts(&self, host: usize) {
        locked(&self.0).host = host;
    }

    pub(super) fn host(&self) -> usize {
        locked(&self.0).host
    }

    pub(super) fn wait(&self, now: Instant) {
        locked(&self.0).waits_since = Some(now);
    }

    /// Ends a wait. A completed window is recorded in the pull's rates.
    pub(super) fn received(&self, bytes: u64, rates: &ConnectionRates, now: Instant) {
        let mut metered = locked(&self.0);
        let since = metered.waits_since.take();
        metered.window.bytes += bytes;
        metered.window.waited += since.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        if metered.window.waited >= WINDOW || metered.window.bytes >= WINDOW_BYTES {
            rates.record(metered.window);
            metered.last = Some(std::mem::take(&mut metered.window));
        }
    }

    pub(super) fn take_last(&self) -> Option<Window> {
        locked(&self.0).last.take()
    }

    pub(super) fn window(&self, now: Instant) -> Window {
        let metered = locked(&self.0);
        let waits = metered.waits_since.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        Window { waited: metered.window.waited + waits, ..metered.window }
    }

    /// The time until the current window ends if the wait continues, or a whole [`WINDOW`] if the window is over.
    pub(super) fn ends_in(&self, now: Instant) -> Duration {
        WINDOW.checked_sub(self.window(now).waited).filter(|left| !left.is_zero()).unwrap_or(WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_connection_far_below_the_usual_rate_gets_a_rival_if_that_saves_time() {
        let usual = Some(4.0 * MIB as f64);
        for (what, kib, millis, left, usual, wanted) in [
            ("silent", 0, 1000, 2 * MIB, usual, true),
            ("a trickle", 20, 1000, 2 * MIB, usual, true),
            ("silent, and one byte is left", 0, 1000, 1, usual, true),
            ("just below an eighth", 511, 1000, 2 * MIB, usual, true),
            ("an eighth", 512, 1000, 2 * MIB, usual, false),
            ("slow, and almost done", 256, 1000, MIB / 4, usual, false),
            ("slow over a longer window", 512, 2000, 2 * MIB, usual, true),
            ("too early", 0, 999, 2 * MIB, usual, false),
            ("no others to compare with", 0, 5000, 2 * MIB, None, false),
            ("all are slow", 20, 1000, 2 * MIB, Some(30.0 * 1024.0), false),
            ("all are silent", 0, 1000, 2 * MIB, Some(0.0), false),
        ] {
            let window = Window { bytes: kib << 10, waited: Duration::from_millis(millis) };
            assert_eq!(is_straggler(window, left, usual), wanted, "{what}");
        }
    }

    #[test]
    fn the_usual_rate_is_the_median_of_the_last_windows() {
        let rates = ConnectionRates::default();
        let second = |bytes| Window { bytes, waited: WINDOW };
        for (bytes, usual) in [(100, None), (1, None), (90, Some(90.0)), (95, Some(95.0)), (1, Some(90.0))] {
            rates.record(second(bytes));
            assert_eq!(rates.usual(), usual);
        }
        (0..RATES_MAX).for_each(|_| rates.record(second(7)));
        assert_eq!(rates.usual(), Some(7.0), "old windows do not count");
        let unwaited = ConnectionRates::default();
        (0..RATES_MIN).for_each(|_| unwaited.record(Window { bytes: 100, waited: Duration::ZERO }));
        assert_eq!(unwaited.usual(), Some(10_000.0), "not infinite");
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_counts_waits_and_not_the_time_in_which_nothing_is_read() {
        let (meter, rates) = (WindowMeter::default(), ConnectionRates::default());
        let pass = |millis| tokio::time::advance(Duration::from_millis(millis));
        let now = Instant::now;
        for _ in 0..3 {
            meter.wait(now());
            pass(200).await;
            meter.received(10, &rates, now());
            pass(9000).await;
        }
        assert_eq!(meter.window(now()), Window { bytes: 30, waited: Duration::from_millis(600) });
        meter.wait(now());
        pass(300).await;
        assert_eq!(meter.window(now()).waited.as_millis(), 900);
        assert_eq!(meter.ends_in(now()).as_millis(), 100);
        pass(300).await;
        assert_eq!(meter.ends_in(now()), WINDOW);
        meter.received(10, &rates, now());
        assert_eq!(meter.window(now()), Window::default(), "the next one begins");
        assert_eq!(meter.take_last(), Some(Window { bytes: 40, waited: Duration::from_millis(1200) }));
        assert_eq!(meter.take_last(), None, "it is looked at once");
        for _ in 0..2 {
            meter.received(MIB, &rates, now());
        }
        assert_eq!(rates.usual(), Some(MIB as f64 * 100.0), "bytes end a window, too");
    }
}
