//! The wait before the next attempt to reach an unreachable peer (`docs/spec/cri.md §2`), as in gRPC clients.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use imagelet_core::backoff::{grown, scattered};
use tokio::time::Instant;

const BASE: Duration = Duration::from_millis(100);
const FACTOR: f64 = 1.6;
/// The random deviation as a share of the wait.
const JITTER: f64 = 0.2;
const WAIT_MAX: Duration = Duration::from_secs(3);

/// Failed attempts in a row. During the wait, calls fail without an attempt.
#[derive(Debug, Default)]
pub(crate) struct Backoff(Mutex<Attempts>);

#[derive(Debug, Default)]
struct Attempts {
    failures: u32,
    until: Option<Instant>,
    why: String,
}

impl Backoff {
    /// Fails with the last error during the wait.
    pub(crate) fn check(&self, now: Instant) -> io::Result<()> {
        let state = self.lock();
        match state.until {
            Some(until) if now < until => Err(io::Error::new(io::ErrorKind::NotConnected, state.why.clone())),
            _ => Ok(()),
        }
    }

    /// Records a failed attempt. `random` is between 0 and 1.
    pub(crate) fn failed(&self, why: String, now: Instant, random: f64) {
        let mut state = self.lock();
        state.until = Some(now + wait(state.failures, random));
        state.failures = state.failures.saturating_add(1);
        state.why = why;
    }

    pub(crate) fn reset(&self) {
        *self.lock() = Attempts::default();
    }

    fn lock(&self) -> MutexGuard<'_, Attempts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wait(failures: u32, random: f64) -> Duration {
    scattered(grown(BASE, FACTOR, WAIT_MAX, failures).mul_f64(1.0 + JITTER), 2.0 * JITTER / (1.0 + JITTER), random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_from_a_tenth_of_a_second_to_three_and_scatter_by_a_fifth() {
        let milliseconds = |failures, random| wait(failures, random).as_millis();
        assert_eq!(
            [0, 1, 2, 7, 8, 1000].map(|failures| milliseconds(failures, 0.5)),
            [100, 160, 256, 2684, 3000, 3000]
        );
        assert_eq!((milliseconds(0, 0.0), milliseconds(0, 1.0)), (120, 80));
        assert_eq!((milliseconds(99, 0.0), milliseconds(99, 1.0)), (3600, 2400));
    }

    #[tokio::test(start_paused = true)]
    async fn no_connection_is_tried_before_the_wait_is_over_and_success_resets_it() {
        let backoff = Backoff::default();
        let failed = || "connection refused".to_owned();
        let now = Instant::now();
        assert!(backoff.check(now).is_ok());
        backoff.failed(failed(), now, 0.5);
        assert_eq!(backoff.check(now + Duration::from_millis(99)).unwrap_err().to_string(), "connection refused");
        let second = now + Duration::from_millis(100);
        assert!(backoff.check(second).is_ok());
        backoff.failed(failed(), second, 0.5);
        assert!(backoff.check(second + Duration::from_millis(159)).is_err());
        backoff.reset();
        assert!(backoff.check(second).is_ok());
        backoff.failed(failed(), second, 0.5);
        assert!(backoff.check(second + Duration::from_millis(100)).is_ok(), "counted anew");
    }
}
