//! Runs the attempts of one request. The next host is asked if a host fails, or in parallel if its answer is late.
//!
//! A late attempt continues, because a registry that fetches on demand sends the response head late.

#[cfg(test)]
mod tests;

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use imagelet_core::{error::RuntimeError, ports::PullEvent};
use tokio::time::{Instant, sleep_until};

use crate::event_pair::EventPair;
use crate::registry::{
    connection::HeadWait,
    error::Failure,
    next_host::{Attempts, Next, Standing},
    pull_session::PullSession,
};

/// After this wait for a response head, the next host is asked in parallel.
const TURN_MAX: Duration = Duration::from_secs(10);
const REPORTED_WAIT_MIN: Duration = Duration::from_secs(2);

struct Run<'a, T> {
    host: usize,
    began: Instant,
    head: Arc<HeadWait>,
    attempt: BoxFuture<'a, Result<T, Failure>>,
    turn: Turn,
    report: Option<EventPair>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// No other host is asked during this attempt.
    Own,
    /// The response head is late, so other hosts are asked in parallel.
    Shared,
    /// The response head is too late, so the attempt counts as failed. Its answer may still arrive first.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Report,
    Share,
    End,
}

enum Event<'a, T> {
    Ended(Run<'a, T>, Result<T, Failure>),
    Due(usize, Due),
}

impl<'a, T: 'a> Run<'a, T> {
    fn begin(
        attempts: &mut Attempts,
        host: usize,
        attempt: impl Fn(usize) -> BoxFuture<'a, Result<T, Failure>>,
    ) -> Self {
        let (began, head) = (Instant::now(), Arc::<HeadWait>::default());
        attempts.began(began);
        let attempt: BoxFuture<'a, _> = Arc::clone(&head).of(attempt(host)).boxed();
        Self { host, began, head, attempt, turn: Turn::Own, report: None }
    }

    fn due(&self, head_max: Duration) -> Option<(Instant, Due)> {
        let since = self.head.awaited()?.since;
        let report = self.report.is_none().then_some((REPORTED_WAIT_MIN, Due::Report));
        let turn = match self.turn {
            Turn::Own if head_max > TURN_MAX => Some((TURN_MAX, Due::Share)),
            Turn::Own | Turn::Shared => Some((head_max, Due::End)),
            Turn::Over => None,
        };
        report.into_iter().chain(turn).min_by_key(|(after, _)| *after).map(|(after, due)| (since + after, due))
    }
}

/// The next event of all runs. Dropping the future loses no event.
async fn next_event<'a, T>(runs: &mut Vec<Run<'a, T>>, head_max: Duration) -> Event<'a, T> {
    let mut alarm = pin!(sleep_until(Instant::now()));
    poll_fn(|context| {
        for index in 0..runs.len() {
            if let Poll::Ready(outcome) = runs[index].attempt.poll_unpin(context) {
                return Poll::Ready(Event::Ended(runs.swap_remove(index), outcome));
            }
        }
        // The deadlines are read after the poll, in which a run may have sent a request or received a response head.
        let dues = runs.iter().enumerate().filter_map(|(index, run)| Some((index, run.due(head_max)?)));
        let Some((index, (at, due))) = dues.min_by_key(|(_, (at, _))| *at) else { return Poll::Pending };
        alarm.as_mut().reset(at);
        alarm.as_mut().poll(context).map(|()| Event::Due(index, due))
    })
    .await
}

impl PullSession {
    /// Tries the hosts in turn. The caller records the success of the host when the content is complete.
    pub(crate) async fn first_success<'a, T: 'a>(
        &'a self,
        attempts: &mut Attempts,
        subject: &str,
        attempt: impl Fn(usize) -> BoxFuture<'a, Result<T, Failure>>,
    ) -> Result<T, RuntimeError> {
        let head_max = self.shared.config.timeouts.header;
        let (mut runs, mut retrying) = (Vec::new(), None);
        loop {
            let next = self.next_attempt(attempts, &runs);
            let is_pending = runs.iter().any(|run: &Run<'a, T>| run.turn != Turn::Over);
            let event = match next {
                Some(next) if next.wait.is_zero() => {
                    runs.push(Run::begin(attempts, next.host, &attempt));
                    continue;
                }
                _ if is_pending => next_event(&mut runs, head_max).await,
                None => return Err(self.given_up(attempts, subject, None)),
                Some(next) => {
                    let (_, tried) = attempts.spent(Instant::now());
                    if !self.retry_budget.permits(&next, tried) {
                        return Err(self.given_up(attempts, subject, Some(next)));
                    }
                    retrying.get_or_insert_with(|| self.retry_budget.retrying());
                    tokio::select! {
                        biased;
                        event = next_event(&mut runs, head_max) => event,
                        // Another request may have changed the state of the hosts during the pause.
                        () = self.pause(next) => continue,
                    }
                }
            };
            match event {
                Event::Ended(run, Ok(found)) => {
                    drop(run);
                    self.overtaken(attempts, &runs);
                    return Ok(found);
                }
                Event::Ended(run, Err(failure)) => {
                    if run.turn != Turn::Over {
                        self.record_failure(attempts, run.host, failure, run.began);
                    }
                }
                Event::Due(index, Due::Report) => {
                    let host = runs[index].head.awaited().map_or_else(String::new, |head| head.place);
                    runs[index].report = Some(self.report_head(&host));
                }
                Event::Due(index, Due::Share) => runs[index].turn = Turn::Shared,
                Event::Due(index, Due::End) => self.end_turn(attempts, &mut runs, index, head_max),
            }
        }
    }

    fn report_head(&self, host: &str) -> EventPair {
        let session = self.clone();
        let head = |is_awaited| PullEvent::Head { host: host.to_owned(), is_awaited };
        EventPair::begin(Arc::new(move |event| session.report(event)), head(true), head(false))
    }

    /// The next host to ask. `None` while an attempt has its own turn. While a head is late, no failed host is asked.
    fn next_attempt<T>(&self, attempts: &Attempts, runs: &[Run<'_, T>]) -> Option<Next> {
        if runs.iter().any(|run| run.turn == Turn::Own) {
            return None;
        }
        let is_beside = runs.iter().any(|run| run.turn == Turn::Shared);
        let is_running = |host: usize| {
            // A host whose head is awaited speaks this scheme. So its twin with the other scheme is not asked.
            let is_same = |other: usize| other == host || self.hosts[other].host.is_twin(&self.hosts[host].host);
            runs.iter().any(|run| run.turn != Turn::Over && is_same(run.host))
        };
        let is_asked = |host| is_running(host) || (is_beside && attempts.has_failed(host));
        attempts.next(Instant::now(), |host| Standing { is_asked: is_asked(host), ..self.standing(host) })
    }

    /// Ends the turn of an attempt whose head is too late. Of a host's late attempts, only the first continues.
    fn end_turn<T>(&self, attempts: &mut Attempts, runs: &mut Vec<Run<'_, T>>, index: usize, head_max: Duration) {
        let run = &mut runs[index];
        let (host, began) = (run.host, run.began);
        if let Some(head) = run.head.awaited() {
            self.record_failure(attempts, host, head.late(head_max), began);
            attempts.remove(|other| self.hosts[host].host.is_twin(&self.hosts[other].host));
        }
        run.turn = Turn::Over;
        if runs.iter().any(|run| run.host == host && run.turn == Turn::Over && run.began < began) {
            runs.remove(index);
        }
    }

    /// Records the failure of hosts whose response head was still late when another host answered.
    fn overtaken<T>(&self, attempts: &mut Attempts, runs: &[Run<'_, T>]) {
        for run in runs.iter().filter(|run| run.turn == Turn::Shared) {
            if let Some(head) = run.head.awaited() {
                self.record_failure(attempts, run.host, head.late(TURN_MAX), run.began);
            }
        }
    }
}
