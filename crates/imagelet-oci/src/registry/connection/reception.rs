//! Network waits of one pull: the time without a byte (`docs/spec/pull.md §13.2`), and the waits for response heads.
//!
//! The time counts while a request waits for the network, over all connections. Unpacking, the wait for a slot and the
//! `Retry-After` of a registry do not count.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use imagelet_core::error::{ErrorClass, Stage};
use tokio::time::{Instant, timeout_at};

use crate::registry::{
    error::{Failure, Retry, unavailable},
    locked,
};

pub(crate) struct Reception {
    /// Over all connections. `None`: only each connection has a limit.
    silence_max: Option<Duration>,
    silence: SharedClock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Silent {
    #[error("the connection brought no byte for {} s", .0.as_secs_f32())]
    Connection(Duration),
    #[error("no connection of the pull brought a byte for {} s", .0.as_secs_f32())]
    Pull(Duration),
}

impl Silent {
    pub(crate) fn retry(self) -> Retry {
        match self {
            Self::Connection(_) => Retry::Soon,
            Self::Pull(_) => Retry::Never,
        }
    }
}

impl Reception {
    pub(crate) fn new(silence_max: Option<Duration>) -> Self {
        Self { silence_max, silence: SharedClock::new() }
    }

    pub(crate) fn received(&self) {
        self.silence.reset();
    }

    pub(crate) fn waiting(&self) -> Running<'_> {
        self.silence.run()
    }

    /// Waits for the network, at most until the silence limit of the pull or of the connection (`limit`).
    pub(crate) async fn within<F: Future>(&self, limit: Duration, future: F) -> Result<F::Output, Silent> {
        let mut future = pin!(future);
        let _waiting = self.waiting();
        let given_up = Instant::now() + limit;
        loop {
            let left = self.silence_max.map(|max| max.saturating_sub(self.silence.time()));
            let until = left.map_or(given_up, |left| given_up.min(Instant::now() + left));
            if let Ok(output) = timeout_at(until, &mut future).await {
                return Ok(output);
            }
            match self.silence_max {
                Some(max) if self.silence.time() >= max => return Err(Silent::Pull(max)),
                _ if Instant::now() >= given_up => return Err(Silent::Connection(limit)),
                // Another connection of the pull received bytes meanwhile.
                _ => {}
            }
        }
    }
}

tokio::task_local! {
    static OF_ATTEMPT: Arc<HeadWait>;
}

/// The response head that an attempt waits for. The code that runs the attempts decides when the head is late.
#[derive(Default)]
pub(crate) struct HeadWait(Mutex<Option<AwaitedHead>>);

#[derive(Clone, Debug)]
pub(crate) struct AwaitedHead {
    pub(crate) place: String,
    pub(crate) stage: Stage,
    pub(crate) is_redirected: bool,
    pub(crate) since: Instant,
}

impl HeadWait {
    /// Runs an attempt. Meanwhile `awaited` returns the head that the attempt waits for.
    pub(crate) async fn of<F: Future>(self: Arc<Self>, attempt: F) -> F::Output {
        OF_ATTEMPT.scope(self, attempt).await
    }

    pub(crate) fn awaited(&self) -> Option<AwaitedHead> {
        locked(&self.0).clone()
    }
}

/// Sets the head that the current attempt waits for. Returns whether a [`HeadWait`] watches the attempt.
pub(crate) fn awaits(head: Option<AwaitedHead>) -> bool {
    OF_ATTEMPT.try_with(|wait| *locked(&wait.0) = head).is_ok()
}

impl AwaitedHead {
    pub(crate) fn late(&self, limit: Duration) -> Failure {
        no_answer(&self.place, self.stage, Silent::Connection(limit)).of_redirect(self.is_redirected)
    }
}

pub(crate) fn no_answer(place: &str, stage: Stage, silent: Silent) -> Failure {
    let error = unavailable(ErrorClass::TimedOut, stage, format!("registry `{place}` did not answer"));
    Failure { error: error.caused_by(silent), retry: silent.retry() }
}

/// The time in which at least one task waits. Parallel waits count once.
pub(crate) struct SharedClock(Mutex<Passed>);

struct Passed {
    time: Duration,
    running: usize,
    counted: Instant,
}

/// The clock runs until the guard is dropped.
pub(crate) struct Running<'a>(&'a SharedClock);

impl SharedClock {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Passed { time: Duration::ZERO, running: 0, counted: Instant::now() }))
    }

    pub(crate) fn run(&self) -> Running<'_> {
        self.pass(|passed| passed.running += 1);
        Running(self)
    }

    pub(crate) fn time(&self) -> Duration {
        self.pass(|passed| passed.time)
    }

    pub(crate) fn reset(&self) {
        self.pass(|passed| passed.time = Duration::ZERO);
    }

    fn pass<T>(&self, then: impl FnOnce(&mut Passed) -> T) -> T {
        let (mut passed, now) = (locked(&self.0), Instant::now());
        if passed.running > 0 {
            let since = passed.counted;
            passed.time += now.saturating_duration_since(since);
        }
        passed.counted = now;
        then(&mut passed)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.pass(|passed| passed.running = passed.running.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const CONNECTION: Duration = Duration::from_secs(20);
    const PULL: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_after_its_limit_and_the_pull_after_its_own_however_often_it_asks_anew() {
        let reception = Reception::new(Some(PULL));
        let began = Instant::now();
        for seconds in [20, 40] {
            assert_eq!(reception.within(CONNECTION, pending::<()>()).await, Err(Silent::Connection(CONNECTION)));
            assert_eq!(began.elapsed().as_secs(), seconds);
        }
        sleep(Duration::from_secs(7)).await;
        // A pause of the registry or of ours does not count; the third wait ends both.
        assert_eq!(reception.within(CONNECTION, pending::<()>()).await, Err(Silent::Pull(PULL)));
        assert_eq!(began.elapsed().as_secs(), 67);
        assert_eq!(
            reception.within(CONNECTION, pending::<()>()).await,
            Err(Silent::Pull(PULL)),
            "and so do all others"
        );
        assert_eq!(reception.within(CONNECTION, async { 7 }).await, Ok(7), "what is there already is taken");
    }

    #[tokio::test(start_paused = true)]
    async fn one_byte_anywhere_is_enough_for_the_pull_and_not_for_another_connection() {
        let reception = Arc::new(Reception::new(Some(PULL)));
        let began = Instant::now();
        let silent = {
            let reception = Arc::clone(&reception);
            tokio::spawn(async move { (reception.within(CONNECTION * 9, pending::<()>()).await, began.elapsed()) })
        };
        for _ in 0..5 {
            assert_eq!(reception.within(CONNECTION, sleep(Duration::from_secs(19))).await, Ok(()));
            reception.received();
        }
        // A byte each 19 s for 95 s, then none.
        assert_eq!(silent.await.unwrap(), (Err(Silent::Pull(PULL)), Duration::from_secs(155)));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nothing_is_read_does_not_count() {
        let reception = Reception::new(Some(PULL));
        for _ in 0..100 {
            assert_eq!(reception.within(CONNECTION, sleep(Duration::from_millis(10))).await, Ok(()));
            reception.received();
            // A slow disk.
            sleep(Duration::from_secs(50)).await;
        }
        let without = Reception::new(None);
        assert_eq!(without.within(CONNECTION, pending::<()>()).await, Err(Silent::Connection(CONNECTION)));
    }
}
