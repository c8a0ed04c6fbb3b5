//! The time that one pull may spend on retries, over all its requests (`docs/spec/pull.md §13.5`).

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::locked;

/// A registry that restarts is back by then; one that is away for longer is reported soon.
const BEGIN_MAX: Duration = Duration::from_secs(10);

/// Time passes while at least one request of the pull is between a failure and its next success; requests that fail at
/// the same time spend it once.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    total: Duration,
    /// A request of the pull has succeeded.
    has_begun: AtomicBool,
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
    pub(crate) fn new(total: Duration) -> Self {
        let spent = Spent { time: Duration::ZERO, running: 0, counted: Instant::now() };
        Self { total, has_begun: AtomicBool::new(false), spent: Mutex::new(spent) }
    }

    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// The time of all retries: less than the total while the pull has received nothing and may as well begin anew,
    /// unless the wait is one that the registry requests.
    pub(crate) fn allowed(&self, is_requested: bool) -> Duration {
        let is_whole = is_requested || self.has_begun.load(Ordering::Relaxed);
        if is_whole { self.total } else { self.total.min(BEGIN_MAX) }
    }

    pub(crate) fn left(&self, is_requested: bool) -> Duration {
        let mut spent = locked(&self.spent);
        spent.pass(Instant::now());
        self.allowed(is_requested).saturating_sub(spent.time)
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

    #[tokio::test(start_paused = true)]
    async fn requests_that_retry_at_the_same_time_spend_the_budget_once() {
        let budget = RetryBudget::new(Duration::from_mins(1));
        advance(Duration::from_mins(9)).await;
        assert_eq!(budget.left(true).as_secs(), 60, "nothing failed");
        assert_eq!(budget.left(false).as_secs(), 10, "a pull that has received nothing");
        let (first, second) = (budget.retrying(), budget.retrying());
        advance(Duration::from_secs(20)).await;
        drop(first);
        assert_eq!(budget.left(true).as_secs(), 40);
        advance(Duration::from_secs(5)).await;
        drop(second);
        advance(Duration::from_mins(9)).await;
        assert_eq!(budget.left(true).as_secs(), 35, "a success ends it");
        let _third = budget.retrying();
        advance(Duration::from_mins(9)).await;
        assert_eq!(budget.left(true), Duration::ZERO);
    }
}
