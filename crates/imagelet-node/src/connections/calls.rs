//! Serves one connection: its calls, and the deadlines after which it closes.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tower::ServiceExt as _;

use super::places::Place;

pub(super) const OPENING_WITHIN: Duration = Duration::from_secs(10);
pub(super) const BODY_WITHIN: Duration = Duration::from_secs(5);
/// How long the answer to a GET over HTTP may take, and how long a client may then take to read the answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Large enough for tokens and trace headers.
const HEAD_BYTES_MAX: u32 = 16 << 10;
const STREAMS_MAX: u32 = 256;
/// An HTTP/2 client that sends nothing for this long is pinged.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Marks the response of a stream, which has no deadline. After the cancellation, [`ANSWER_WITHIN`] limits the rest.
#[derive(Clone, Debug)]
pub(crate) struct StreamEnd(pub(crate) CancellationToken);

struct Connection {
    place: Place,
    router: Router,
    due: watch::Sender<Option<Instant>>,
}

/// Serves a connection until it ends, misses its deadline or is displaced. After `stop`, its calls still end.
pub(super) async fn serve<S>(stream: S, place: Place, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let due = watch::Sender::new(Some(Instant::now() + OPENING_WITHIN));
    let connection = Arc::new(Connection { place, router, due });
    let service = service_fn(|request| Arc::clone(&connection).answer(request));
    let builder = builder(connection.is_http());
    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let (peer, mut is_due) = (connection.place.peer, std::pin::pin!(connection.expired()));
    let ended = tokio::select! {
        biased;
        ended = served.as_mut() => ended,
        () = is_due.as_mut() => return tracing::debug!(?peer, "a connection is closed: no request came, or no answer was read"),
        () = connection.place.close.cancelled() => return tracing::debug!(?peer, "a connection is closed for another one"),
        () = stop.cancelled() => {
            if !connection.place.was_called() {
                return;
            }
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = served => ended,
                () = is_due => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(?peer, %error, "a connection ended early");
    }
}

/// A running call. The call is dropped, and no longer counted, once the client has read the answer.
struct RunningCall(Arc<Connection>);

impl RunningCall {
    fn begin(connection: &Arc<Connection>) -> Result<Self, Status> {
        if connection.place.begin_call() {
            connection.set_due(false);
            return Ok(Self(Arc::clone(connection)));
        }
        Err(if connection.place.close.is_cancelled() {
            Status::unavailable("the connection closes for another one")
        } else {
            Status::resource_exhausted("this process has too many calls under way")
        })
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.place.end_call();
        self.0.set_due(self.0.is_http());
    }
}

impl Connection {
    fn is_http(&self) -> bool {
        self.place.places.limits.is_http
    }

    fn set_due(&self, is_limited: bool) {
        self.due.send_replace(is_limited.then(|| Instant::now() + ANSWER_WITHIN));
    }

    async fn expired(&self) {
        let mut due = self.due.subscribe();
        loop {
            let at = *due.borrow_and_update();
            tokio::select! {
                () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => return,
                _ = due.changed() => {}
            }
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response, Infallible> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        let refuse = |status: StatusCode, grpc: Status| {
            Ok(if is_grpc { grpc.into_http::<Body>() } else { status.into_response() })
        };
        // On the socket, a call is counted before its body is read, so that the limit of calls limits the memory of
        // bodies. Over HTTP, a call is counted after its small body, so that a connection without a body can be
        // displaced.
        let early = match (!self.is_http()).then(|| RunningCall::begin(&self)).transpose() {
            Ok(early) => early,
            Err(refused) => return refuse(StatusCode::SERVICE_UNAVAILABLE, refused),
        };
        let is_reading = reads(request.method());
        let mut request = match complete(request, self.place.places.limits.body_bytes).await {
            Ok(request) => request,
            Err(status @ StatusCode::REQUEST_TIMEOUT) => {
                return refuse(status, Status::deadline_exceeded("the request did not come in time"));
            }
            Err(status) => return refuse(status, Status::resource_exhausted("the request cannot be read")),
        };
        let call = match early.map_or_else(|| RunningCall::begin(&self), Ok) {
            Ok(call) => call,
            Err(refused) => return refuse(StatusCode::SERVICE_UNAVAILABLE, refused),
        };
        // An action may take long, so only a GET has a deadline until its answer.
        self.set_due(self.is_http() && is_reading);
        request.extensions_mut().insert(self.place.peer);
        let response = self.router.clone().oneshot(request).await?;
        let stream_end = response.extensions().get::<StreamEnd>().cloned();
        self.set_due(self.is_http() && stream_end.is_none());
        if let Some(StreamEnd(end)) = stream_end {
            tokio::spawn(async move {
                end.cancelled().await;
                self.set_due(self.is_http());
            });
        }
        Ok(response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &call;
                frame
            }))
        }))
    }
}

fn builder(is_http: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).keep_alive(false).max_buf_size(HEAD_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(SILENCE_MAX)
        .max_header_list_size(HEAD_BYTES_MAX);
    if is_http { builder.http1_only() } else { builder }
}

fn reads(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

/// Reads the whole body of a request, but no body of a GET. `Err`: the status for a body that is too long or late.
async fn complete(request: Request<Incoming>, body_max: usize) -> Result<Request<Body>, StatusCode> {
    let (head, body) = request.into_parts();
    if reads(&head.method) {
        return Ok(Request::from_parts(head, Body::empty()));
    }
    match tokio::time::timeout(BODY_WITHIN, Limited::new(body, body_max).collect()).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, Body::from(body.to_bytes()))),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Ok(Err(_)) => Err(StatusCode::BAD_REQUEST),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}
