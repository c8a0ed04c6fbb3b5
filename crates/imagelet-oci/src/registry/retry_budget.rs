//! The time that one pull may spend on retries, over all its requests (`docs/spec/pull.md §13.5`).

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use imagelet_core::runtime::Patience;
use tokio::time::Instant;

use super::{attempts::Next, locked};

/// Time passes while at least one request of the pull is between a failure and its next success; requests that fail at
/// the same time spend it once.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    total: Duration,
    /// Holds until the party that failed has served something.
    patience: Patience,
    hosts_served: AtomicBool,
    redirects_served: AtomicBool,
    spent: Mutex<Spent>,
}

#[derive(Debug)]
struct Spent {
    time: Duration,
    running: usize,
    counted: Instant,
}

/// A request that retries; the budget is spent until it is dropped.
#[derive(Debug)]
pub(crate) struct Retrying<'a>(&'a RetryBudget);

impl RetryBudget {
    pub(crate) fn new(total: Duration, patience: Patience) -> Self {
        let spent = Spent { time: Duration::ZERO, running: 0, counted: Instant::now() };
        let (hosts_served, redirects_served) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { total, patience, hosts_served, redirects_served, spent: Mutex::new(spent) }
    }

    /// A host, or the target of its redirect, has served something of the pull: it is worth the whole budget.
    pub(crate) fn served(&self, is_redirected: bool) {
        self.served_by(is_redirected).store(true, Ordering::Relaxed);
    }

    fn served_by(&self, is_redirected: bool) -> &AtomicBool {
        if is_redirected { &self.redirects_served } else { &self.hosts_served }
    }

    /// The time of all retries before this one: less than the total while nothing was served, as the pull may as well
    /// begin anew.
    pub(crate) fn allowed(&self, next: &Next) -> Duration {
        let Patience { retries_max, requested_max, .. } = self.patience;
        match (self.served_by(next.is_redirected).load(Ordering::Relaxed), next.is_requested) {
            (true, _) => self.total,
            (false, true) => self.total.min(requested_max),
            (false, false) => self.total.min(retries_max),
        }
    }

    /// Whether the wait fits; `tried` is the time since the request's first attempt.
    pub(crate) fn permits(&self, next: &Next, tried: Duration) -> bool {
        let has_served = self.served_by(next.is_redirected).load(Ordering::Relaxed);
        (has_served || tried <= self.patience.attempt_max) && self.left(next) >= next.wait
    }

    fn left(&self, next: &Next) -> Duration {
        self.allowed(next).saturating_sub(self.spent())
    }

    pub(crate) fn spent(&self) -> Duration {
        let mut spent = locked(&self.spent);
        spent.pass(Instant::now());
        spent.time
    }

    pub(crate) fn retrying(&self) -> Retrying<'_> {
        let mut spent = locked(&self.spent);
        spent.pass(Instant::now());
        spent.running += 1;
        Retrying(self)
    }
}

impl Spent {
    fn pass(&mut self, now: Instant) {
        if self.running > 0 {
            self.time += now.saturating_duration_since(self.counted);
        }
        self.counted = now;
    }
}

impl Drop for Retrying<'_> {
    fn drop(&mut self) {
        let mut spent = locked(&self.0.spent);
        spent.pass(Instant::now());
        spent.running = spent.running.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn next(is_requested: bool, is_redirected: bool) -> Next {
        Next { host: 0, wait: Duration::ZERO, is_requested, is_redirected }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_retry_at_the_same_time_spend_the_budget_once() {
        let budget = RetryBudget::new(Duration::from_mins(1), Patience::FULL);
        let left = |is_requested| budget.left(&next(is_requested, false)).as_secs();
        advance(Duration::from_mins(9)).await;
        assert_eq!(left(true), 60, "nothing failed");
        assert_eq!(left(false), 10, "a pull that has received nothing");
        let (first, second) = (budget.retrying(), budget.retrying());
        advance(Duration::from_secs(20)).await;
        drop(first);
        assert_eq!(left(true), 40);
        advance(Duration::from_secs(5)).await;
        drop(second);
        advance(Duration::from_mins(9)).await;
        assert_eq!(left(true), 35, "a success ends it");
        let _third = budget.retrying();
        advance(Duration::from_mins(9)).await;
        assert_eq!(left(true), 0);
    }

    #[test]
    fn patience_bounds_the_retries_at_a_party_that_has_served_nothing() {
        let (seconds, brief) = (Duration::from_secs, Patience::ONE_RETRY.retries_max);
        for (patience, served, redirected, failure, requested) in [
            (Patience::FULL, None, false, seconds(10), seconds(60)),
            (Patience::FULL, None, true, seconds(10), seconds(60)),
            (Patience::FULL, Some(false), false, seconds(60), seconds(60)),
            (Patience::FULL, Some(false), true, seconds(10), seconds(60)),
            (Patience::FULL, Some(true), true, seconds(60), seconds(60)),
            (Patience::ONE_RETRY, None, false, brief, brief),
            (Patience::ONE_RETRY, Some(false), false, seconds(60), seconds(60)),
            (Patience::ONE_RETRY, Some(false), true, brief, brief),
            (Patience::ONE_RETRY, Some(true), true, seconds(60), seconds(60)),
        ] {
            let budget = RetryBudget::new(Duration::from_mins(1), patience);
            if let Some(is_redirected) = served {
                budget.served(is_redirected);
            }
            let allowed = [false, true].map(|is_requested| budget.allowed(&next(is_requested, redirected)));
            assert_eq!(allowed, [failure, requested], "{patience:?}, {served:?} served, redirected: {redirected}");
            let is_repeated = budget.permits(&next(false, redirected), seconds(5));
            assert_eq!(is_repeated, allowed[0] > brief, "after an attempt of 5 s");
        }
    }
}
