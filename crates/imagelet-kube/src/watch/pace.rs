//! How long the watch waits before it starts again, and how long it waits for an answer.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchPace {
    /// The wait after the end of a watch that lived for long; it doubles with each failure in a row.
    pub(crate) wait_first: Duration,
    pub(crate) wait_max: Duration,
    /// A watch that ends earlier counts as failed, however it ends.
    pub(crate) life_min: Duration,
    /// A server that sends nothing for so long is away: it sends a bookmark each minute.
    pub(crate) silence_max: Duration,
    pub(crate) answer_max: Duration,
    /// The wait for a collection that the API server does not have, or does not permit to read: an administrator changes
    /// that, and a fleet does not ask for it all the time.
    pub(crate) absent: Duration,
}

impl Default for WatchPace {
    fn default() -> Self {
        Self {
            wait_first: Duration::from_secs(1),
            wait_max: Duration::from_mins(1),
            life_min: Duration::from_secs(10),
            silence_max: Duration::from_mins(3),
            answer_max: Duration::from_mins(1),
            absent: Duration::from_mins(2),
        }
    }
}

/// The wait after so many failures in a row, each of which doubles it: between half of it and all of it, so that the agents
/// of a fleet do not return together. `random` is between 0 and 1.
pub(crate) fn backoff(first: Duration, longest: Duration, failures: u32, random: f64) -> Duration {
    scattered(first.saturating_mul(2_u32.saturating_pow(failures)).min(longest), random)
}

/// Between half of a wait and all of it.
pub(super) fn scattered(wait: Duration, random: f64) -> Duration {
    wait.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
}

/// Each `RandomState` has its own seed: random enough for jitter.
pub(crate) fn random() -> f64 {
    f64::from(u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_a_minute_and_scatter_over_their_second_half() {
        let pace = WatchPace::default();
        let wait = |failures, random| backoff(pace.wait_first, pace.wait_max, failures, random);
        let longest = [0, 1, 2, 5, 6, 7, u32::MAX].map(|failures| wait(failures, 1.0).as_millis());
        assert_eq!(longest, [1000, 2000, 4000, 32_000, 60_000, 60_000, 60_000]);
        assert_eq!([0, 1, 99].map(|failures| wait(failures, 0.0).as_millis()), [500, 1000, 30_000]);
        assert_eq!([0.0, 1.0].map(|random| scattered(pace.absent, random).as_secs()), [60, 120]);
        let scattered = [random(), random(), random()].map(|random| wait(9, random));
        assert!(scattered[0] != scattered[1] || scattered[1] != scattered[2], "{scattered:?}");
    }
}
