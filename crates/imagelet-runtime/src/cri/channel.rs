//! Connects to a runtime's socket on demand, reconnects after an outage, and limits the duration of each call.

use std::{
    error::Error as _,
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    image::shown_name,
    lock::locked,
    retry_wait::{grown, random_share, scattered},
    text::quoted,
};
use tokio::{net::UnixStream, time::Instant};
use tonic::{Request, Status, transport::Channel};

use crate::{
    cri::{
        Endpoint,
        bounded::{LIST, ONE},
        convert::{Call, error_from_status},
        stall::Stalled,
        trace,
    },
    wire::{self, Query, Reply},
};

/// Time limit of one connection attempt. It equals the minimum timeout of CRI's own clients.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_GROWTH: f64 = 1.6;
const WAIT_JITTER: f64 = 0.2;
const WAIT_MAX: Duration = Duration::from_secs(3);

/// Connects once, or fails without an attempt during a back-off wait. An attempt counts as failed until the peer
/// answers a call, so a peer that accepts and drops connections is not dialled in a loop.
async fn dial(path: &Path, backoff: &Backoff) -> io::Result<UnixStream> {
    backoff.check(Instant::now())?;
    let connected = match tokio::time::timeout(CONNECT_MAX, UnixStream::connect(path)).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the connection was not accepted in time")),
    };
    let why = connected.as_ref().err().map_or("the peer has not answered yet".to_owned(), ToString::to_string);
    backoff.failed(why, Instant::now(), random_share());
    connected
}

#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) channel: Channel,
    backoff: Arc<Backoff>,
    endpoint: Endpoint,
    /// The time limit of each call except a pull.
    pub(crate) timeout: Duration,
    /// Whether lists are streamed. The value becomes `false` when the runtime rejects a stream. Clones share it.
    pub(crate) streams: Arc<AtomicBool>,
}

impl Peer {
    pub(crate) fn new(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        if timeout.is_zero() {
            return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, "connectionTimeout must be positive"));
        }
        let path = endpoint.path().to_owned();
        let backoff = Arc::new(Backoff::default());
        let dialled = Arc::clone(&backoff);
        let channel = wire::channel(move || {
            let (path, backoff) = (path.clone(), Arc::clone(&dialled));
            async move { dial(&path, &backoff).await }
        });
        Ok(Self { channel, backoff, endpoint: endpoint.clone(), timeout, streams: Arc::default() })
    }

    pub(crate) async fn ask<A: Reply>(&self, call: Call, message: impl Query) -> Result<A, RuntimeError> {
        self.until(self.deadline(), call, message, |channel, request| wire::unary(channel, call.path(), request, ONE))
            .await
    }

    pub(crate) async fn ask_without_deadline<A: Reply>(&self, call: Call, message: impl Query) -> Result<A, Status> {
        self.send(call, Request::new(message), |channel, request| wire::unary(channel, call.path(), request, ONE)).await
    }

    async fn send<Q, A, F>(
        &self,
        call: Call,
        mut request: Request<Q>,
        send: impl FnOnce(Channel, Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        F: Future<Output = Result<A, Status>>,
    {
        trace::inject(request.metadata_mut());
        // The future of a call is large. The box keeps it out of every outer future.
        let answer = trace::follow(call, Box::pin(send(self.channel.clone(), request))).await;
        self.note(answer.as_ref().err());
        answer
    }

    /// Reads a list as a stream (`docs/spec/cri.md §3.1`), which may exceed one message. Reads it as one message if
    /// streams are off or the runtime does not support them. Drops the partial result of a failed stream.
    pub(crate) async fn list<A: Reply, T>(
        &self,
        stream: Call,
        whole: Call,
        items: fn(A) -> Vec<T>,
    ) -> Result<Vec<T>, RuntimeError> {
        let deadline = self.deadline();
        if self.streams.load(Ordering::Relaxed) {
            let read = |channel, request: Request<()>| wire::listed(channel, stream.path(), request, LIST, items);
            match self.until(deadline, stream, (), read).await {
                Err(error) if error.kind() == RuntimeErrorKind::Unsupported => {
                    tracing::info!("the runtime does not stream lists; asking for whole ones from now on");
                    self.streams.store(false, Ordering::Relaxed);
                }
                streamed => return streamed,
            }
        }
        let read = |channel, request: Request<()>| wire::unary(channel, whole.path(), request, LIST);
        self.until(deadline, whole, (), read).await.map(items)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    async fn until<Q, A, F>(
        &self,
        deadline: Instant,
        call: Call,
        message: Q,
        send: impl FnOnce(Channel, Request<Q>) -> F,
    ) -> Result<A, RuntimeError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let mut request = Request::new(message);
        // The peer receives the deadline and stops its work when the deadline passes.
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        match tokio::time::timeout_at(deadline, self.send(call, request, send)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => match self.error(call, &status) {
                // This process did not cancel the call, so the peer's `Cancelled` means that the deadline passed.
                error if error.kind() == RuntimeErrorKind::Cancelled && Instant::now() >= deadline => {
                    Err(self.timed_out(call))
                }
                error => Err(error),
            },
            Err(_) => Err(self.timed_out(call)),
        }
    }

    /// Resets the back-off if the peer answered. A status with a cause is no answer, because this process created it.
    pub(crate) fn note(&self, failed: Option<&Status>) {
        if failed.is_none_or(|status| status.source().is_none()) {
            self.backoff.reset();
        }
    }

    pub(crate) fn error(&self, call: Call, status: &Status) -> RuntimeError {
        let error = error_from_status(call, status);
        match error.kind() {
            // Not for a pull: it has no deadline in this process, so a timeout is the peer's and its error is kept.
            RuntimeErrorKind::TimedOut if !matches!(call, Call::Pull) => self.timed_out(call),
            RuntimeErrorKind::Unavailable => RuntimeError::new(
                RuntimeErrorKind::Unavailable,
                format!("cannot reach the runtime at `{}`", self.endpoint),
            )
            .caused_by(error.chain())
            .with_hint("does the runtime run, and may this user open its socket?"),
            _ => error,
        }
    }

    fn timed_out(&self, call: Call) -> RuntimeError {
        let (endpoint, method, timeout) = (&self.endpoint, call.method(), self.timeout);
        let message = format!("the runtime at `{endpoint}` did not answer `{method}` within {timeout:?}");
        RuntimeError::new(RuntimeErrorKind::TimedOut, message)
    }

    pub(crate) fn stalled(&self, stalled: Stalled, name: &str, quiet: Duration) -> RuntimeError {
        let (endpoint, name) = (&self.endpoint, shown_name(name));
        let (class, lacks) = match stalled {
            Stalled::Silent => (ErrorClass::RuntimeUnavailable, "has answered nothing"),
            Stalled::Idle => (ErrorClass::TimedOut, "answers, but has written nothing"),
        };
        let message = format!("the runtime at `{endpoint}` {lacks} for {quiet:?}; its pull of `{name}` was given up");
        RuntimeError::new(RuntimeErrorKind::TimedOut, message)
            .with_fault(Fault::new(class, Stage::Runtime))
            .with_hint("look into the runtime's log; `imageService.cri.pullStallTimeout` says how long a pull may hang")
    }

    pub(crate) fn refused(&self, api: &str, error: RuntimeError) -> RuntimeError {
        RuntimeError::new(
            error.kind(),
            format!(
                "validate service connection: validate CRI v1 {api} API for endpoint {}",
                quoted(&self.endpoint.to_string())
            ),
        )
        .with_hint(error.hint().unwrap_or("is this the socket of a container runtime with CRI v1 enabled?").to_owned())
        .caused_by(error)
    }
}

/// The back-off of gRPC clients (`docs/spec/cri.md §2`). During a wait, calls fail without a connection attempt.
#[derive(Debug, Default)]
struct Backoff(Mutex<Attempts>);

#[derive(Debug, Default)]
struct Attempts {
    failures: u32,
    until: Option<Instant>,
    why: String,
}

impl Backoff {
    fn check(&self, now: Instant) -> io::Result<()> {
        let state = locked(&self.0);
        match state.until {
            Some(until) if now < until => Err(io::Error::new(io::ErrorKind::NotConnected, state.why.clone())),
            _ => Ok(()),
        }
    }

    fn failed(&self, why: String, now: Instant, random: f64) {
        let mut state = locked(&self.0);
        state.until = Some(now + wait(state.failures, random));
        state.failures = state.failures.saturating_add(1);
        state.why = why;
    }

    fn reset(&self) {
        *locked(&self.0) = Attempts::default();
    }
}

fn wait(failures: u32, random: f64) -> Duration {
    scattered(
        grown(WAIT_FIRST, WAIT_GROWTH, WAIT_MAX, failures).mul_f64(1.0 + WAIT_JITTER),
        2.0 * WAIT_JITTER / (1.0 + WAIT_JITTER),
        random,
    )
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
