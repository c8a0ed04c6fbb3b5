//! The time that one pull may spend on retries, over all its requests (`docs/spec/pull.md §13.5`).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A registry that restarts is back by then; one that is away for longer is reported soon.
const BEGIN_MAX: Duration = Duration::from_secs(10);

/// Time passes while at least one request of the pull is between a failure and its next success; requests that fail at
/// the same time spend it once.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    total: Duration,
    state: Mutex<Spent>,
}

#[derive(Debug)]
struct Spent {
    time: Duration,
    running: usize,
    counted: Instant,
}

/// A request that retries; the budget is spent until it is dropped.
#[derive(Debug)]
pub(crate) struct Retrying(Arc<RetryBudget>);

impl RetryBudget {
    pub(crate) fn new(total: Duration) -> Arc<Self> {
        let state = Spent { time: Duration::ZERO, running: 0, counted: Instant::now() };
        Arc::new(Self { total, state: Mutex::new(state) })
    }

    /// The time of all retries: less than the total while the pull has received nothing and may as well begin anew.
    pub(crate) fn allowed(&self, has_begun: bool) -> Duration {
        if has_begun { self.total } else { self.total.min(BEGIN_MAX) }
    }

    pub(crate) fn left(&self, has_begun: bool) -> Duration {
        let mut state = self.lock();
        state.pass(Instant::now());
        self.allowed(has_begun).saturating_sub(state.time)
    }

    pub(crate) fn retrying(self: &Arc<Self>) -> Retrying {
        let mut state = self.lock();
        state.pass(Instant::now());
        state.running += 1;
        Retrying(Arc::clone(self))
    }

    fn lock(&self) -> MutexGuard<'_, Spent> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Drop for Retrying {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.pass(Instant::now());
        state.running = state.running.saturating_sub(1);
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
