//! Decides which host gets the next attempt of a request, and when (`docs/spec/pull.md §13.3`); does no I/O.
//!
//! All retries of a pull share a budget (`docs/spec/pull.md §13.5`).

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use imagelet_core::{
    error::{Party, RuntimeError},
    ports::Patience,
    retry_wait::{grown, random_share, scattered},
};
use tokio::time::Instant;

use super::{
    connection::{Running, SharedClock},
    error::{Failure, Retry},
};

const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The maximum share of a backoff by which the backoff is randomly shortened.
const JITTER: f64 = 0.25;
/// The expected delay of an attempt at a host in bad health. The host with the shortest delay is next.
const BAD_HEALTH_DELAY: Duration = Duration::from_secs(5);

/// The attempts of one request. The last host is the registry itself; the hosts before it are mirrors.
pub(crate) struct Attempts {
    hosts: Vec<Candidate>,
    /// One random value for all backoffs of the request. It changes the times of retries, but not the order of hosts.
    jitter: f64,
    first: Option<Instant>,
    count: u32,
    /// Whether a host has sent a part of the content. Then a final failure of the registry does not end the retries.
    pub(crate) is_underway: bool,
}

#[derive(Default)]
struct Candidate {
    host: usize,
    failures: u32,
    again: u32,
    due: Option<Instant>,
    is_requested: bool,
    is_redirected: bool,
    is_out: bool,
    error: Option<RuntimeError>,
}

/// The state of a host that all pulls of the process share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) is_bad: bool,
    pub(crate) held_until: Option<Instant>,
    /// Whether an attempt at the host is running. Then no second attempt starts.
    pub(crate) is_asked: bool,
}

pub(crate) type HostError = (usize, RuntimeError);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) host: usize,
    pub(crate) wait: Duration,
    pub(crate) is_requested: bool,
    /// Whether the target of the host's redirect failed, instead of the host itself.
    pub(crate) is_redirected: bool,
}

impl Attempts {
    pub(crate) fn new(hosts: impl IntoIterator<Item = usize>) -> Self {
        let hosts = hosts.into_iter().map(|host| Candidate { host, ..Candidate::default() }).collect();
        Self { hosts, jitter: random_share(), first: None, count: 0, is_underway: false }
    }

    /// The host for the next attempt, and the wait before it. `None` if no attempt remains.
    pub(crate) fn next(&self, now: Instant, standing: impl Fn(usize) -> Standing) -> Option<Next> {
        let left = self.hosts.iter().filter(|host| !host.is_out).map(|host| (host, standing(host.host)));
        let left: Vec<(&Candidate, Standing)> = left.filter(|(_, standing)| !standing.is_asked).collect();
        let registry_is_final = self.hosts.last().is_some_and(|host| host.is_out);
        if registry_is_final && !self.is_underway && left.iter().all(|(host, _)| host.due.is_some()) {
            return None;
        }
        let plan = |(candidate, standing): (&Candidate, Standing)| {
            let Standing { is_bad, held_until, .. } = standing;
            let is_held = held_until > candidate.due;
            let due = candidate.due.max(held_until).unwrap_or(now);
            let next = Next {
                host: candidate.host,
                wait: due.saturating_duration_since(now),
                is_requested: is_held || candidate.is_requested,
                is_redirected: candidate.is_redirected,
            };
            let expected = next.wait + if is_bad { BAD_HEALTH_DELAY } else { Duration::ZERO };
            ((expected, candidate.failures), next)
        };
        // Of equal hosts, the first in the configuration is next.
        left.into_iter().map(plan).min_by_key(|(key, _)| *key).map(|(_, next)| next)
    }

    pub(crate) fn began(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.count += 1;
    }

    /// Records a failure. Returns the end of the wait before the next attempt at the host, if it has to wait.
    pub(crate) fn failed(&mut self, host: usize, failure: Failure, now: Instant) -> Option<Instant> {
        let jitter = self.jitter;
        let candidate = self.hosts.iter_mut().find(|candidate| candidate.host == host)?;
        let backoff = scattered(grown(BACKOFF_FIRST, 2.0, BACKOFF_MAX, candidate.failures), JITTER, jitter);
        let wait = match failure.retry {
            Retry::Never => None,
            Retry::Again { times } if candidate.again >= times => None,
            Retry::Again { .. } => {
                candidate.again += 1;
                Some(Duration::ZERO)
            }
            Retry::Soon => Some(backoff),
            // The wait is at least a backoff. Otherwise a registry that requests a wait of 0 s is asked without end.
            Retry::After(wait) => Some(wait.max(backoff)),
        };
        candidate.failures += 1;
        candidate.is_requested = matches!(failure.retry, Retry::After(_));
        candidate.is_redirected = failure.error.fault().party == Party::RedirectTarget;
        candidate.error = Some(failure.error);
        candidate.is_out = wait.is_none();
        // `due` stays empty after `Again`, so that `next` does not count the failure as temporary.
        candidate.due = wait.filter(|_| !matches!(failure.retry, Retry::Again { .. })).map(|wait| now + wait);
        candidate.due
    }

    /// Whether an attempt at the host has failed since the last progress.
    pub(crate) fn has_failed(&self, host: usize) -> bool {
        self.hosts.iter().any(|candidate| candidate.host == host && candidate.failures > 0)
    }

    /// Resets all failures except the final ones, because content has arrived.
    pub(crate) fn refill(&mut self) {
        (self.first, self.count) = (None, 0);
        for candidate in self.hosts.iter_mut().filter(|candidate| !candidate.is_out) {
            (candidate.failures, candidate.again, candidate.due, candidate.error) = (0, 0, None, None);
        }
    }

    pub(crate) fn spent(&self, now: Instant) -> (u32, Duration) {
        (self.count, self.first.map(|first| now.saturating_duration_since(first)).unwrap_or_default())
    }

    pub(crate) fn remove(&mut self, is_removed: impl Fn(usize) -> bool) {
        self.hosts.retain(|candidate| !is_removed(candidate.host));
    }

    /// The failure of the last host (the registry, or else the last mirror), and the failures of the hosts before it.
    pub(crate) fn into_errors(self) -> (Option<HostError>, Vec<HostError>) {
        let errors = self.hosts.into_iter().filter_map(|candidate| Some((candidate.host, candidate.error?)));
        let mut errors: Vec<HostError> = errors.collect();
        (errors.pop(), errors)
    }
}

/// The time that one pull may spend on retries. Parallel failures spend it once.
pub(crate) struct RetryBudget {
    total: Duration,
    /// Lower limits, which apply until the failed party (a host, or the target of a redirect) has served data.
    patience: Patience,
    /// Whether hosts, and whether redirect targets, have served data.
    served: [AtomicBool; 2],
    spent: SharedClock,
}

impl RetryBudget {
    pub(crate) fn new(total: Duration, patience: Patience) -> Self {
        Self { total, patience, served: Default::default(), spent: SharedClock::new() }
    }

    /// Records that hosts, or redirect targets if `is_redirected`, serve data. They now have the whole budget.
    pub(crate) fn served(&self, is_redirected: bool) {
        self.served[usize::from(is_redirected)].store(true, Ordering::Relaxed);
    }

    fn has_served(&self, next: &Next) -> bool {
        self.served[usize::from(next.is_redirected)].load(Ordering::Relaxed)
    }

    /// The maximum time of all retries. It is shorter until data was served: a failed pull then loses nothing.
    pub(crate) fn allowed(&self, next: &Next) -> Duration {
        let Patience { retries_max, requested_max, .. } = self.patience;
        match (self.has_served(next), next.is_requested) {
            (true, _) => self.total,
            (false, true) => self.total.min(requested_max),
            (false, false) => self.total.min(retries_max),
        }
    }

    /// Whether the budget covers the wait before `next`. `tried` is the time since the first attempt of the request.
    pub(crate) fn permits(&self, next: &Next, tried: Duration) -> bool {
        (self.has_served(next) || tried <= self.patience.attempt_max) && self.left(next) >= next.wait
    }

    fn left(&self, next: &Next) -> Duration {
        self.allowed(next).saturating_sub(self.spent())
    }

    pub(crate) fn spent(&self) -> Duration {
        self.spent.time()
    }

    /// Spends the budget until the guard is dropped.
    pub(crate) fn retrying(&self) -> Running<'_> {
        self.spent.run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: Standing = Standing { is_bad: true, held_until: None, is_asked: false };

    fn failure(retry: Retry) -> Failure {
        Failure { error: RuntimeError::other("no"), retry }
    }

    /// Tries two mirrors (0, 1) and their registry (2) as the failures say, without waiting; returns the order of hosts.
    fn order(standing: impl Fn(usize) -> Standing, retries: [Retry; 3], is_underway: bool) -> Vec<usize> {
        let mut now = Instant::now();
        let mut attempts = Attempts::new([0, 1, 2]);
        attempts.is_underway = is_underway;
        let mut order = Vec::new();
        while let Some(next) = attempts.next(now, &standing).filter(|_| order.len() < 9) {
            now += next.wait;
            order.push(next.host);
            attempts.failed(next.host, failure(retries[next.host]), now);
        }
        order
    }

    #[test]
    fn every_host_is_tried_before_one_is_tried_again() {
        use Retry::{After, Again, Never, Soon};
        let good = |_| Standing::default();
        let first_bad = |host| if host == 0 { BAD } else { Standing::default() };
        let all_bad = |_| BAD;
        let again = Again { times: 1 };
        for (what, found, expected) in [
            ("final failures", order(good, [Never, Never, Never], false), vec![0, 1, 2]),
            ("a host in bad health is last", order(first_bad, [Never, Never, Never], false), vec![1, 2, 0]),
            ("if all are bad all are tried", order(all_bad, [Never, Never, Never], false), vec![0, 1, 2]),
            ("the registry's refusal is final", order(good, [Soon, Soon, Never], false), vec![0, 1, 2]),
            ("but not while a mirror sends", order(good, [Soon, Never, Never], true), vec![0, 1, 2, 0, 0, 0, 0, 0, 0]),
            (
                "a second answer is asked for after all others",
                order(good, [again, again, again], false),
                vec![0, 1, 2, 0, 1, 2],
            ),
            (
                "the registry alone is retried",
                order(good, [Never, Never, Soon], false),
                vec![0, 1, 2, 2, 2, 2, 2, 2, 2],
            ),
            (
                "a long wait is used at the others",
                order(good, [After(Duration::from_mins(1)), Never, Soon], false),
                vec![0, 1, 2, 2, 2, 2, 2, 2, 2],
            ),
        ] {
            assert_eq!(found, expected, "{what}");
        }
        for _ in 0..100 {
            let expected = [0, 1, 2, 0, 1, 2, 0, 1, 2];
            assert_eq!(order(good, [Soon, Soon, Soon], false), expected, "the jitter changes no order");
        }
    }

    #[test]
    fn a_limited_account_waits_and_another_host_does_not() {
        let now = Instant::now();
        let held = |second| Standing { held_until: Some(now + Duration::from_secs(second)), ..Standing::default() };
        let attempts = Attempts::new([0, 1]);
        let next = attempts.next(now, |host| if host == 0 { held(30) } else { Standing::default() }).unwrap();
        assert_eq!((next.host, next.wait), (1, Duration::ZERO));
        let next = attempts.next(now, |host| if host == 0 { held(30) } else { BAD }).unwrap();
        assert_eq!((next.host, next.wait), (1, Duration::ZERO), "rather a bad host than none");
        let next = attempts.next(now, |host| held(30 + host as u64)).unwrap();
        let wait = Duration::from_secs(30);
        assert_eq!(next, Next { host: 0, wait, is_requested: true, is_redirected: false });
        let over = attempts.next(now + Duration::from_secs(31), |host| held(30 + host as u64)).unwrap();
        assert_eq!((over.host, over.wait), (0, Duration::ZERO));
    }

    #[test]
    fn waits_double_up_to_a_bound_and_begin_anew_after_progress() {
        let now = Instant::now();
        let mut attempts = Attempts::new([0]);
        let wait = |attempts: &Attempts| attempts.next(now, |_| Standing::default()).unwrap().wait;
        for bounds in [150..=200, 300..=400, 600..=800] {
            attempts.failed(0, failure(Retry::Soon), now);
            assert!(bounds.contains(&wait(&attempts).as_millis()));
        }
        for _ in 0..40 {
            attempts.failed(0, failure(Retry::Soon), now);
        }
        assert!((7_500..=10_000).contains(&wait(&attempts).as_millis()));
        attempts.failed(0, failure(Retry::After(Duration::ZERO)), now);
        assert!(wait(&attempts) > Duration::from_secs(1), "a registry that requests no wait is not asked without end");
        attempts.refill();
        assert_eq!(wait(&attempts), Duration::ZERO);
    }

    fn retry(is_requested: bool, is_redirected: bool) -> Next {
        Next { host: 0, wait: Duration::ZERO, is_requested, is_redirected }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_retry_at_the_same_time_spend_the_budget_once() {
        let budget = RetryBudget::new(Duration::from_mins(1), Patience::FULL);
        let left = |is_requested| budget.left(&retry(is_requested, false)).as_secs();
        tokio::time::advance(Duration::from_mins(9)).await;
        assert_eq!(left(true), 60, "nothing failed");
        assert_eq!(left(false), 10, "a pull that has received nothing");
        let (first, second) = (budget.retrying(), budget.retrying());
        tokio::time::advance(Duration::from_secs(20)).await;
        drop(first);
        assert_eq!(left(true), 40);
        tokio::time::advance(Duration::from_secs(5)).await;
        drop(second);
        tokio::time::advance(Duration::from_mins(9)).await;
        assert_eq!(left(true), 35, "a success ends it");
        let _third = budget.retrying();
        tokio::time::advance(Duration::from_mins(9)).await;
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
            let allowed = [false, true].map(|is_requested| budget.allowed(&retry(is_requested, redirected)));
            assert_eq!(allowed, [failure, requested], "{patience:?}, {served:?} served, redirected: {redirected}");
            let is_repeated = budget.permits(&retry(false, redirected), seconds(5));
            assert_eq!(is_repeated, allowed[0] > brief, "after an attempt of 5 s");
        }
    }
}
