//! The network side of one pull: time without a byte over all connections (`docs/spec/pull.md §13.2`).
//!
//! Only time in which a request waits for the network counts. Unpacking, the wait for a place and a registry's
//! `Retry-After` do not count.

use std::{future::Future, pin::pin, sync::Mutex, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::registry::{error::Retry, locked};

#[derive(Debug)]
pub(crate) struct Reception {
    /// The longest time without a byte; `None`: only the limit of each connection applies.
    silence_max: Option<Duration>,
    state: Mutex<Received>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Silent {
    #[error("the connection brought no byte for {} s", .0.as_secs_f32())]
    Connection(Duration),
    #[error("no connection of the pull brought a byte for {} s", .0.as_secs_f32())]
    Pull(Duration),
}

impl Silent {
    /// A silent connection is retried; a silent pull fails.
    pub(crate) fn retry(self) -> Retry {
        match self {
            Self::Connection(_) => Retry::Soon,
            Self::Pull(_) => Retry::Never,
        }
    }
}

#[derive(Clone, Debug)]
struct Received {
    waits: usize,
    counted: Instant,
    silent: Duration,
}

#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Reception);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        state.pass(Instant::now());
        state.waits = state.waits.saturating_sub(1);
    }
}

impl Reception {
    pub(crate) fn new(silence_max: Option<Duration>) -> Self {
        Self { silence_max, state: Mutex::new(Received::new(Instant::now())) }
    }

    /// A connection of the pull has brought bytes.
    pub(crate) fn received(&self) {
        locked(&self.state).received(Instant::now());
    }

    pub(crate) fn waiting(&self) -> Waiting<'_> {
        let mut state = locked(&self.state);
        state.pass(Instant::now());
        state.waits += 1;
        Waiting(self)
    }

    /// Waits for the network, bounded by the pull's silence limit and this connection's, of which `waited` is over.
    pub(crate) async fn within<F: Future>(
        &self,
        limit: Duration,
        waited: Duration,
        future: F,
    ) -> Result<F::Output, Silent> {
        let mut future = pin!(future);
        let _waiting = self.waiting();
        let given_up = Instant::now() + limit.saturating_sub(waited);
        loop {
            let ends = self.ends(Instant::now());
            let until = ends.map_or(given_up, |ends| ends.min(given_up));
            if let Ok(output) = timeout_at(until, &mut future).await {
                return Ok(output);
            }
            let now = Instant::now();
            match (self.ends(now), self.silence_max) {
                (Some(ends), Some(silence_max)) if now >= ends => return Err(Silent::Pull(silence_max)),
                _ if now >= given_up => return Err(Silent::Connection(limit)),
                // Another connection of the pull received bytes meanwhile.
                _ => {}
            }
        }
    }

    fn ends(&self, now: Instant) -> Option<Instant> {
        let silence_max = self.silence_max?;
        let mut state = locked(&self.state);
        state.pass(now);
        Some(now + silence_max.saturating_sub(state.silent))
    }
}

impl Received {
    fn new(now: Instant) -> Self {
        Self { waits: 0, counted: now, silent: Duration::ZERO }
    }

    /// Adds the time since the last call, once for all waiting requests.
    fn pass(&mut self, now: Instant) {
        if self.waits > 0 {
            self.silent += now.saturating_duration_since(self.counted);
        }
        self.counted = now;
    }

    fn received(&mut self, now: Instant) {
        self.pass(now);
        self.silent = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc};

    use tokio::time::sleep;

    use super::*;

    const CONNECTION: Duration = Duration::from_secs(20);
    const PULL: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_after_its_limit_and_the_pull_after_its_own_however_often_it_asks_anew() {
        let reception = Reception::new(Some(PULL));
        let began = Instant::now();
        for seconds in [20, 40] {
            assert_eq!(
                reception.within(CONNECTION, Duration::ZERO, pending::<()>()).await,
                Err(Silent::Connection(CONNECTION))
            );
            assert_eq!(began.elapsed().as_secs(), seconds);
        }
        sleep(Duration::from_secs(7)).await;
        // A pause of the registry or of ours does not count; the third wait ends both.
        assert_eq!(reception.within(CONNECTION, Duration::ZERO, pending::<()>()).await, Err(Silent::Pull(PULL)));
        assert_eq!(began.elapsed().as_secs(), 67);
        assert_eq!(
            reception.within(CONNECTION, Duration::ZERO, pending::<()>()).await,
            Err(Silent::Pull(PULL)),
            "and so do all others"
        );
        assert_eq!(
            reception.within(CONNECTION, Duration::ZERO, async { 7 }).await,
            Ok(7),
            "what is there already is taken"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_byte_anywhere_is_enough_for_the_pull_and_not_for_another_connection() {
        let reception = Arc::new(Reception::new(Some(PULL)));
        let began = Instant::now();
        let silent = {
            let reception = Arc::clone(&reception);
            tokio::spawn(async move {
                (reception.within(CONNECTION * 9, Duration::ZERO, pending::<()>()).await, began.elapsed())
            })
        };
        for _ in 0..5 {
            assert_eq!(reception.within(CONNECTION, Duration::ZERO, sleep(Duration::from_secs(19))).await, Ok(()));
            reception.received();
        }
        // A byte each 19 s for 95 s, then none.
        assert_eq!(silent.await.unwrap(), (Err(Silent::Pull(PULL)), Duration::from_secs(155)));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nothing_is_read_does_not_count() {
        let reception = Reception::new(Some(PULL));
        for _ in 0..100 {
            assert_eq!(reception.within(CONNECTION, Duration::ZERO, sleep(Duration::from_millis(10))).await, Ok(()));
            reception.received();
            // A slow disk.
            sleep(Duration::from_secs(50)).await;
        }
        let without = Reception::new(None);
        assert_eq!(
            without.within(CONNECTION, Duration::ZERO, pending::<()>()).await,
            Err(Silent::Connection(CONNECTION))
        );
    }
}
