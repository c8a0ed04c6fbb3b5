//! Serves one connection: its calls, and when it closes.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tower::ServiceExt as _;

use super::{
    Peer,
    places::{Displaced, Place},
};

/// The first request of a connection is there within this time.
pub(super) const OPENING_WITHIN: Duration = Duration::from_secs(10);
/// How long a client may take to send the body after the head.
pub(super) const BODY_WITHIN: Duration = Duration::from_secs(5);
/// How long a client of HTTP waits for an answer that only reads, and how long it may take to read an answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The longest head; tokens and trace headers fit.
const HEAD_BYTES_MAX: u32 = 16 << 10;
/// Most calls of one connection at a time.
const STREAMS_MAX: u32 = 256;
/// A client of HTTP/2 that is silent for this long is pinged.
const SILENCE_MAX: Duration = Duration::from_secs(30);

pub(super) struct Connection {
    pub(super) place: Place,
    pub(super) router: Router,
    pub(super) stop: CancellationToken,
}

/// The calls of a connection, and when it closes if nothing more happens.
#[derive(Debug)]
struct Activity {
    running: AtomicUsize,
    was_called: AtomicBool,
    due: watch::Sender<Option<Instant>>,
}

impl Activity {
    fn was_called(&self) -> bool {
        self.was_called.load(Ordering::Relaxed)
    }

    /// Completes when the connection is due.
    async fn expired(&self) {
        let mut due = self.due.subscribe();
        loop {
            let at = *due.borrow_and_update();
            let sleep = async { tokio::time::sleep_until(at.unwrap_or_else(Instant::now)).await };
            tokio::select! {
                () = sleep, if at.is_some() => return,
                _ = due.changed() => {}
            }
        }
    }

    /// Completes when the connection has to make room for another one.
    async fn displaced(&self, peer: Peer, mut displaced: watch::Receiver<Displaced>) {
        while displaced.changed().await.is_ok() {
            let Displaced { peer: of, also_called } = *displaced.borrow_and_update();
            let is_meant = of.is_none_or(|of| of == peer) && (also_called || !self.was_called());
            if is_meant && self.running.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
        std::future::pending::<()>().await;
    }
}

/// A call, until its answer is read.
struct RunningCall {
    activity: Arc<Activity>,
    ends_within: Option<Duration>,
    _slots: [OwnedSemaphorePermit; 2],
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.activity.running.fetch_sub(1, Ordering::Relaxed);
        if let Some(within) = self.ends_within {
            self.activity.due.send_replace(Some(Instant::now() + within));
        }
    }
}

impl Connection {
    pub(super) async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let displaced = self.place.places.displaced.subscribe();
        let due = watch::Sender::new(Some(Instant::now() + OPENING_WITHIN));
        let activity = Arc::new(Activity { running: AtomicUsize::new(0), was_called: AtomicBool::new(false), due });
        let connection = Arc::new(self);
        let service = service_fn({
            let (connection, activity) = (Arc::clone(&connection), Arc::clone(&activity));
            move |request| Arc::clone(&connection).answer(Arc::clone(&activity), request)
        });
        let builder = builder(connection.place.places.limits.is_http);
        let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        let (is_due, peer) = (activity.expired(), connection.place.peer);
        let (mut is_due, stop) = (std::pin::pin!(is_due), connection.stop.clone());
        let ended = tokio::select! {
            biased;
            ended = served.as_mut() => ended,
            () = is_due.as_mut() => return tracing::debug!(?peer, "a connection is closed: no request came, or no answer was read"),
            () = activity.displaced(peer, displaced) => {
                return tracing::debug!(?peer, "a connection is closed for another one");
            }
            () = stop.cancelled() => {
                if !activity.was_called() {
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

    async fn answer(
        self: Arc<Self>,
        activity: Arc<Activity>,
        request: Request<Incoming>,
    ) -> Result<Response, Infallible> {
        let is_grpc = is_type(request.headers(), "application/grpc");
        let refuse = |status: StatusCode, grpc: Status| {
            Ok(if is_grpc { grpc.into_http::<Body>() } else { status.into_response() })
        };
        let (places, is_reading) = (&self.place.places, reads(request.method()));
        let mut request = match complete(request, places.limits.body_bytes).await {
            Ok(request) => request,
            Err(status @ StatusCode::REQUEST_TIMEOUT) => {
                return refuse(status, Status::deadline_exceeded("the request did not come in time"));
            }
            Err(status) => return refuse(status, Status::resource_exhausted("the request cannot be read")),
        };
        activity.was_called.store(true, Ordering::Relaxed);
        let slots = [&self.place.own, &places.all].map(|slots| Arc::clone(&slots.calls).try_acquire_owned());
        let [Ok(own), Ok(all)] = slots else {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return refuse(status, Status::resource_exhausted("this process has too many calls under way"));
        };
        activity.running.fetch_add(1, Ordering::Relaxed);
        let within = places.limits.is_http.then_some(ANSWER_WITHIN);
        let due_in = |within: Option<Duration>| {
            activity.due.send_replace(within.map(|within| Instant::now() + within));
        };
        // An action is answered however long it takes.
        due_in(within.filter(|_| is_reading));
        let call = RunningCall { activity: Arc::clone(&activity), ends_within: within, _slots: [own, all] };
        request.extensions_mut().insert(self.place.peer);
        let response = self.router.clone().oneshot(request).await?;
        // A stream of events has an end of its own.
        due_in(within.filter(|_| !is_type(response.headers(), "text/event-stream")));
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

fn is_type(headers: &HeaderMap, kind: &str) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(kind.as_bytes()))
}

/// The request with its whole body; that of a reading request is ignored.
///
/// # Errors
/// The status of a body that is too long, or does not come.
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
