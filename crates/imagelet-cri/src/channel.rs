//! Connects to a runtime's socket, lazily and again after it was away, and bounds each call in time.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use imagelet_core::{
    image::shown_name,
    runtime::{ErrorClass, Fault, Hop, RuntimeError, RuntimeErrorKind},
    text::quoted,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    time::Instant,
};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Uri},
};
use tower::service_fn;

use crate::{
    Endpoint,
    backoff::Backoff,
    convert::{Call, error_from_status},
    stall::Stalled,
    trace::Tracing,
};

/// How long one attempt to connect may take; the interface's own minimum.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// One attempt, unless it is too early for another.
async fn dial(path: &Path, backoff: &Arc<Backoff>) -> io::Result<Heard> {
    backoff.check(Instant::now())?;
    let connected = match tokio::time::timeout(CONNECT_MAX, UnixStream::connect(path)).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "nobody took the connection in time")),
    };
    match connected {
        Ok(stream) => Ok(Heard { stream, backoff: Arc::clone(backoff), said: 0, is_peer: false }),
        Err(error) => {
            backoff.ended(&Err(io::Error::new(error.kind(), error.to_string())), Instant::now(), random());
            Err(error)
        }
    }
}

/// The hasher of each process, and of each call, begins elsewhere: random enough to scatter.
fn random() -> f64 {
    f64::from(u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

/// A connection that counts as an attempt that failed unless its peer opens the protocol.
///
/// Who takes connections and drops them would be dialled without end otherwise, by a call that has no deadline.
struct Heard {
    stream: UnixStream,
    backoff: Arc<Backoff>,
    /// Bytes that came so far, up to those that tell.
    said: usize,
    is_peer: bool,
}

/// Every server begins with a frame of this type, told by its fourth byte (RFC 9113, section 3.4).
const TYPE_SETTINGS: u8 = 4;
const TYPE_AT: usize = 3;

impl Heard {
    fn hear(&mut self, bytes: &[u8]) {
        if self.said > TYPE_AT {
            return;
        }
        if bytes.get(TYPE_AT - self.said) == Some(&TYPE_SETTINGS) {
            self.is_peer = true;
            self.backoff.ended(&Ok(()), Instant::now(), 0.0);
        }
        self.said += bytes.len();
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        if !self.is_peer {
            let error = io::Error::new(io::ErrorKind::ConnectionReset, "the peer ended the connection unheard");
            self.backoff.ended(&Err(error), Instant::now(), random());
        }
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.hear(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Heard {
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

/// A peer and how patient we are with it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) channel: Channel,
    endpoint: Endpoint,
    /// What each call but a pull may take.
    timeout: Duration,
    tracing: Tracing,
}

impl Peer {
    /// # Errors
    /// Where the timeout is zero. Whether anybody listens shows at the first call.
    pub(crate) fn new(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        if timeout.is_zero() {
            return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, "connectionTimeout must be positive"));
        }
        let path = endpoint.path().to_owned();
        let backoff = Arc::new(Backoff::default());
        // The URI only makes the `:authority`; the connector dials the socket whatever it says.
        let channel =
            Channel::from_static("http://localhost").connect_with_connector_lazy(service_fn(move |_: Uri| {
                let (path, backoff) = (path.clone(), Arc::clone(&backoff));
                async move { dial(&path, &backoff).await.map(TokioIo::new) }
            }));
        Ok(Self { channel, endpoint: endpoint.clone(), timeout, tracing: Tracing::default() })
    }

    /// What is traced of its calls from now on.
    pub(crate) fn trace(&mut self, tracing: Tracing) {
        self.tracing = tracing;
    }

    /// Sends one call and waits for its answer, at most as long as the peer is given.
    pub(crate) async fn call<Q, A, F>(
        &self,
        call: Call,
        message: Q,
        send: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, RuntimeError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.call_until(self.deadline(), call, message, send).await
    }

    /// When a call that begins now is given up.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// The same for a call that has what another one left of the time.
    pub(crate) async fn call_until<Q, A, F>(
        &self,
        deadline: Instant,
        call: Call,
        message: Q,
        send: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, RuntimeError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let send = |request| {
            let sent = Box::pin(send(request));
            async { sent.await.map(Response::into_inner) }
        };
        self.until(deadline, call, message, send).await
    }

    /// The same for calls that read more than one answer; the deadline covers all of them.
    pub(crate) async fn until<Q, A, F>(
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
        // The peer is told, so that it stops working for nobody.
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        self.tracing.inject(request.metadata_mut());
        // A call is large, and would be in each future around it.
        let sent = Box::pin(send(request));
        match tokio::time::timeout_at(deadline, self.tracing.follow(call, sent)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => match self.error(call, &status) {
                // Nobody here gave up, so what the peer calls a cancel is the deadline it was told.
                error if error.kind() == RuntimeErrorKind::Cancelled && Instant::now() >= deadline => {
                    Err(self.timed_out(call))
                }
                error => Err(error),
            },
            Err(_) => Err(self.timed_out(call)),
        }
    }

    /// Sends one call that takes as long as it takes, and says what its answer is.
    pub(crate) async fn without_deadline<Q, A, F>(
        &self,
        call: Call,
        message: Q,
        send: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut request = Request::new(message);
        self.tracing.inject(request.metadata_mut());
        let sent = Box::pin(send(request));
        self.tracing.follow(call, async { sent.await.map(Response::into_inner) }).await
    }

    /// What each call but a pull may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What a status means, with where we tried when the peer is away.
    pub(crate) fn error(&self, call: Call, status: &Status) -> RuntimeError {
        let error = error_from_status(call, status);
        match error.kind() {
            // A pull has no deadline of ours: what took too long the peer says.
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

    /// What is said of a pull that was ended for want of signs of life.
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
            .with_fault(Fault::new(class, Hop::Runtime))
            .with_hint("look into the runtime's log; `imageService.cri.pullStallTimeout` says how long a pull may hang")
    }

    /// What a failed handshake says.
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
