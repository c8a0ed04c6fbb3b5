//! Connects to a runtime's socket, lazily and again after it was away, and bounds each call in time.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use imagelet_core::{
    image::shown_name,
    runtime::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    text::quoted,
    wire::MessageBounds,
};
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    time::Instant,
};
use tonic::{
    Request, Status,
    transport::{Channel, Uri},
};
use tower::service_fn;

use crate::{
    Endpoint,
    backoff::Backoff,
    bounded::{self, LIST, ONE},
    convert::{Call, error_from_status},
    stall::Stalled,
    trace::Tracing,
};

/// The limit of one attempt; the interface's own minimum.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// One attempt, unless the backoff forbids it.
async fn dial(path: &Path, backoff: &Arc<Backoff>) -> io::Result<ProbedConnection> {
    backoff.check(Instant::now())?;
    let connected = match tokio::time::timeout(CONNECT_MAX, UnixStream::connect(path)).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the connection was not accepted in time")),
    };
    match connected {
        Ok(stream) => Ok(ProbedConnection { stream, backoff: Arc::clone(backoff), received: 0, is_peer: false }),
        Err(error) => {
            backoff.ended(&Err(io::Error::new(error.kind(), error.to_string())), Instant::now(), random());
            Err(error)
        }
    }
}

/// Each `RandomState` has its own seed: random enough for jitter.
fn random() -> f64 {
    f64::from(u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

/// A connection that counts as a failed attempt unless its peer opens the protocol.
///
/// Otherwise a peer that accepts and drops connections would be dialled without end by a call without a deadline.
struct ProbedConnection {
    stream: UnixStream,
    backoff: Arc<Backoff>,
    /// Bytes received so far, up to the deciding one.
    received: usize,
    is_peer: bool,
}

/// Every server's first frame has this type, in its fourth byte (RFC 9113, section 3.4).
const TYPE_SETTINGS: u8 = 4;
const TYPE_AT: usize = 3;

impl ProbedConnection {
    fn inspect(&mut self, bytes: &[u8]) {
        if self.received > TYPE_AT {
            return;
        }
        if bytes.get(TYPE_AT - self.received) == Some(&TYPE_SETTINGS) {
            self.is_peer = true;
            self.backoff.ended(&Ok(()), Instant::now(), 0.0);
        }
        self.received += bytes.len();
    }
}

impl Drop for ProbedConnection {
    fn drop(&mut self) {
        if !self.is_peer {
            let error = io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the peer closed the connection before it opened the protocol",
            );
            self.backoff.ended(&Err(error), Instant::now(), random());
        }
    }
}

impl AsyncRead for ProbedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.inspect(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for ProbedConnection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A peer with its timeout. Clones share the connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) channel: Channel,
    endpoint: Endpoint,
    /// The limit of each call but a pull.
    timeout: Duration,
    tracing: Tracing,
    /// Whether lists are streamed; off for good once the runtime has no streams. Clones share it.
    streams: Arc<AtomicBool>,
}

impl Peer {
    /// # Errors
    /// If the timeout is zero. The first call connects.
    pub(crate) fn new(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        if timeout.is_zero() {
            return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, "connectionTimeout must be positive"));
        }
        let path = endpoint.path().to_owned();
        let backoff = Arc::new(Backoff::default());
        // The URI only sets the `:authority`; the connector dials the socket.
        let channel =
            Channel::from_static("http://localhost").connect_with_connector_lazy(service_fn(move |_: Uri| {
                let (path, backoff) = (path.clone(), Arc::clone(&backoff));
                async move { dial(&path, &backoff).await.map(TokioIo::new) }
            }));
        Ok(Self { channel, endpoint: endpoint.clone(), timeout, tracing: Tracing::default(), streams: Arc::default() })
    }

    pub(crate) fn stream_lists(&mut self, on: bool) {
        self.streams = Arc::new(AtomicBool::new(on));
    }

    pub(crate) fn trace(&mut self, tracing: Tracing) {
        self.tracing = tracing;
    }

    /// Sends one call and waits for its answer within the timeout.
    pub(crate) async fn ask<Q, A>(&self, call: Call, message: Q) -> Result<A, RuntimeError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.ask_until(self.deadline(), call, message, ONE).await
    }

    async fn ask_until<Q, A>(
        &self,
        deadline: Instant,
        call: Call,
        message: Q,
        bounds: MessageBounds,
    ) -> Result<A, RuntimeError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let channel = self.channel.clone();
        let send = |request| bounded::unary(channel, call.path(), request, bounds);
        self.until(deadline, call, message, send).await
    }

    /// Sends one call without a deadline, and returns its status unchanged.
    pub(crate) async fn ask_without_deadline<Q, A>(&self, call: Call, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut request = Request::new(message);
        self.tracing.inject(request.metadata_mut());
        let sent = Box::pin(bounded::unary(self.channel.clone(), call.path(), request, ONE));
        self.tracing.follow(call, sent).await
    }

    /// A list: streamed (`docs/spec/cri.md §3.1`) if that is on and the runtime supports it, so that no list exceeds
    /// one message; else whole. A failed stream's partial result is dropped.
    pub(crate) async fn list<T, S, Page, W, Whole>(
        &self,
        (stream, stream_request, items_of_page): (Call, S, fn(Page) -> Vec<T>),
        (whole, whole_request, items): (Call, W, fn(Whole) -> Vec<T>),
    ) -> Result<Vec<T>, RuntimeError>
    where
        S: Message + 'static,
        Page: Message + Default + 'static,
        W: Message + 'static,
        Whole: Message + Default + 'static,
    {
        let deadline = self.deadline();
        if self.streams.load(Ordering::Relaxed) {
            let channel = self.channel.clone();
            let read = |request| async move {
                let mut pages = bounded::stream::<_, Page>(channel, stream.path(), request, LIST).await?;
                let mut all = Vec::new();
                while let Some(page) = pages.message().await? {
                    all.extend(items_of_page(page));
                }
                Ok(all)
            };
            match self.until(deadline, stream, stream_request, read).await {
                Err(error) if error.kind() == RuntimeErrorKind::Unsupported => {
                    tracing::info!("the runtime does not stream lists; asking for whole ones from now on");
                    self.streams.store(false, Ordering::Relaxed);
                }
                streamed => return streamed,
            }
        }
        self.ask_until(deadline, whole, whole_request, LIST).await.map(items)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    async fn until<Q, A, F>(
        &self,
        deadline: Instant,
        call: Call,
        message: Q,
        send: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, RuntimeError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let mut request = Request::new(message);
        // The peer receives the deadline and stops working for a call that has ended.
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        self.tracing.inject(request.metadata_mut());
        // Boxed: a call is large, and would be part of each outer future.
        let sent = Box::pin(send(request));
        match tokio::time::timeout_at(deadline, self.tracing.follow(call, sent)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => match self.error(call, &status) {
                // No caller cancelled, so the peer's `Cancelled` means the deadline it received.
                error if error.kind() == RuntimeErrorKind::Cancelled && Instant::now() >= deadline => {
                    Err(self.timed_out(call))
                }
                error => Err(error),
            },
            Err(_) => Err(self.timed_out(call)),
        }
    }

    /// The limit of each call but a pull.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The error of a status, with the socket if the peer is away.
    pub(crate) fn error(&self, call: Call, status: &Status) -> RuntimeError {
        let error = error_from_status(call, status);
        match error.kind() {
            // A pull has no deadline here: the peer names its own timeout.
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

    /// The error of a pull that was ended by the stall watch.
    pub(crate) fn stalled(&self, stalled: Stalled, name: &str, quiet: Duration) -> RuntimeError {
        let (endpoint, name) = (&self.endpoint, shown_name(name));
        let (class, message) = match stalled {
            Stalled::Silent => (
                ErrorClass::RuntimeUnavailable,
                format!(
                    "the runtime at `{endpoint}` has answered nothing for {quiet:?}; its pull of `{name}` was given up"
                ),
            ),
            Stalled::Idle => (
                ErrorClass::TimedOut,
                format!(
                    "the runtime at `{endpoint}` has written nothing for {quiet:?}, although it answers; its pull of \
                     `{name}` was given up"
                ),
            ),
        };
        RuntimeError::new(RuntimeErrorKind::TimedOut, message)
            .with_fault(Fault::new(class, Stage::Runtime))
            .with_hint("look into the runtime's log; `imageService.cri.pullStallTimeout` says how long a pull may hang")
    }

    /// The error of a failed handshake.
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
