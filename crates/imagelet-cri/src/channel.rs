//! Connects to a runtime's socket, lazily and again after it was away, and bounds each call in time.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};
use tokio::{net::UnixStream, time::Instant};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Uri},
};
use tower::service_fn;

use crate::{
    Endpoint,
    convert::{Call, error_from_status},
};

/// How long one attempt to connect may take; the interface's own minimum.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A peer and how patient we are with it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) channel: Channel,
    endpoint: Endpoint,
    /// What each call but a pull may take.
    timeout: Duration,
}

impl Peer {
    /// # Errors
    /// Where the timeout is zero. Whether anybody listens shows at the first call.
    pub(crate) fn new(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        if timeout.is_zero() {
            return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, "connectionTimeout must be positive"));
        }
        let path = endpoint.path().to_owned();
        // The URI only makes the `:authority`; the connector dials the socket whatever it says.
        let channel = Channel::from_static("http://localhost")
            .connect_timeout(CONNECT_MAX)
            .connect_with_connector_lazy(service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            }));
        Ok(Self { channel, endpoint: endpoint.clone(), timeout })
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
        self.within_deadline(call, message, |request| async { send(request).await.map(Response::into_inner) }).await
    }

    /// The same for calls that read more than one answer; the deadline covers all of them.
    pub(crate) async fn within_deadline<Q, A, F>(
        &self,
        call: Call,
        message: Q,
        send: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, RuntimeError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let mut request = Request::new(message);
        // The peer is told, so that it stops working for nobody.
        request.set_timeout(self.timeout);
        let begun = Instant::now();
        match tokio::time::timeout(self.timeout, send(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => match self.error(call, &status) {
                // Nobody here gave up, so what the peer calls a cancel is the deadline it was told.
                error if error.kind() == RuntimeErrorKind::Cancelled && begun.elapsed() >= self.timeout => {
                    Err(self.timed_out())
                }
                error => Err(error),
            },
            Err(_) => Err(self.timed_out()),
        }
    }

    /// What a status means, with where we tried when the peer is away.
    pub(crate) fn error(&self, call: Call, status: &Status) -> RuntimeError {
        let error = error_from_status(call, status);
        match error.kind() {
            RuntimeErrorKind::TimedOut => self.timed_out(),
            RuntimeErrorKind::Unavailable => RuntimeError::new(
                RuntimeErrorKind::Unavailable,
                format!("cannot reach the runtime at `{}`", self.endpoint),
            )
            .caused_by(error.chain())
            .with_hint("does the runtime run, and may this user open its socket?"),
            _ => error,
        }
    }

    fn timed_out(&self) -> RuntimeError {
        RuntimeError::new(
            RuntimeErrorKind::TimedOut,
            format!("the runtime at `{}` did not answer within {:?}", self.endpoint, self.timeout),
        )
    }

    /// What a failed handshake says.
    pub(crate) fn refused(&self, api: &str, error: RuntimeError) -> RuntimeError {
        RuntimeError::new(
            error.kind(),
            format!(
                "validate service connection: validate CRI v1 {api} API for endpoint {:?}",
                self.endpoint.to_string()
            ),
        )
        .with_hint(error.hint().unwrap_or("is this the socket of a container runtime with CRI v1 enabled?").to_owned())
        .caused_by(error)
    }
}
