//! The accept loop of the daemon's listeners: how many connections stay open, which of them makes room for the next one,
//! and how long a request may take to arrive.
//!
//! Of each kind of place a peer gets a share. A connection with a running call is never closed for another one; of the others
//! those without a call so far close first. A runaway program at the socket so blocks no kubelet, and a client that sends
//! nothing no scraper.
//!
//! **Invariant:** the limits of both listeners together stay below the limit of open files, so that clients which
//! connect and send nothing leave descriptors for pulls and for the next caller.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
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
use imagelet_runtime::MESSAGE_BYTES_MAX;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    process::{Resource, getrlimit},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;
use tower::ServiceExt as _;

/// The first request of a connection is there within this time.
const OPENING_WITHIN: Duration = Duration::from_secs(10);
/// How long a client may take to send the body after the head.
const BODY_WITHIN: Duration = Duration::from_secs(5);
/// How long a client of HTTP waits for an answer that only reads, and how long it may take to read an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long the connections that were asked to make room may take before others are asked.
const DISPLACED_WITHIN: Duration = Duration::from_millis(200);
/// The longest body over HTTP: a pin or a collection.
const HTTP_BODY_BYTES_MAX: usize = 64 << 10;
/// The longest head; tokens and trace headers fit.
const HEAD_BYTES_MAX: u32 = 16 << 10;
/// Most calls of one connection at a time.
const STREAMS_MAX: u32 = 256;
/// A client of HTTP/2 that is silent for this long is pinged.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Connections at the CRI socket; a kubelet needs one or two.
const SOCKET_MAX: usize = 512;
/// Divisor of the open files limit for the CRI socket; pulls keep the larger part.
const SOCKET_PART: usize = 4;
/// Concurrent calls at the socket; a kubelet of 110 pods stays well below a quarter of them.
const CALLS_MAX: usize = 2048;
/// Connections over HTTP; a scraper and a probe need one each.
const HTTP_MAX: usize = 32;
/// Divisor of the open files limit for HTTP.
const HTTP_PART: usize = 8;
const LISTENER_MIN: usize = 4;
/// Descriptors that are closed when an accept at the socket finds no free one: a kubelet's connections and a few commands.
const SPARE: usize = 8;

/// Lines of one kind per [`LINES_OVER`]: clients that connect in a loop must not fill a disk.
const LINES_MAX: u32 = 2;
const CONNECTED_LINES_MAX: u32 = 20;
const LINES_OVER: Duration = Duration::from_secs(30);
/// Users whose first connection is logged.
const USERS_MAX: usize = 256;
/// The first pause after a failed accept that the next accept would share; the last is shorter than a client's deadline.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The client of a connection, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// At a unix socket; all processes of another PID namespace are one peer.
    Process {
        pid: Option<i32>,
        uid: u32,
        gid: u32,
    },
    Address(IpAddr),
}

pub(crate) trait Listener: Send + 'static {
    const NAME: &'static str;
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Listener for UnixListener {
    const NAME: &'static str = "socket";
    type Stream = tokio::net::UnixStream;

    async fn next(&self) -> io::Result<(Self::Stream, Peer)> {
        let (stream, _) = self.accept().await?;
        let peer = stream.peer_cred()?;
        Ok((stream, Peer::Process { pid: peer.pid(), uid: peer.uid(), gid: peer.gid() }))
    }
}

impl Listener for TcpListener {
    const NAME: &'static str = "http";
    type Stream = tokio::net::TcpStream;

    async fn next(&self) -> io::Result<(Self::Stream, Peer)> {
        let (stream, peer) = self.accept().await?;
        Ok((stream, Peer::Address(peer.ip())))
    }
}

/// How many of a kind all peers, and each peer, may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) all: usize,
    pub(crate) each: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: Share,
    calls: Share,
    body_bytes: usize,
    spare: usize,
    /// HTTP/1 with one request a connection, whose answer is due within [`ANSWER_WITHIN`].
    is_http: bool,
}

impl Limits {
    /// Limits of the CRI socket. One process may have half of all connections.
    pub(crate) fn of_socket() -> Self {
        let all = (open_files_max() / SOCKET_PART).clamp(LISTENER_MIN, SOCKET_MAX);
        Self {
            connections: Share { all, each: all / 2 },
            calls: Share { all: CALLS_MAX, each: CALLS_MAX / 4 },
            body_bytes: MESSAGE_BYTES_MAX + 64,
            spare: SPARE,
            is_http: false,
        }
    }

    /// Limits of HTTP. One address may have half of all connections: the rest answers probes of other addresses while its
    /// requests run. Clients behind one NAT address share that half.
    pub(crate) fn of_http() -> Self {
        let all = (open_files_max() / HTTP_PART).clamp(LISTENER_MIN, HTTP_MAX);
        let share = Share { all, each: all / 2 };
        Self { connections: share, calls: share, body_bytes: HTTP_BODY_BYTES_MAX, spare: 0, is_http: true }
    }
}

fn open_files_max() -> usize {
    getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Serves until `stop` is cancelled and the running calls have ended. Handlers find the [`Peer`] among the extensions.
pub(crate) async fn serve<L: Listener>(listener: L, router: Router, limits: Limits, stop: CancellationToken) {
    let open = TaskTracker::new();
    let places = Arc::new(Places::new(limits));
    let waiting = Arc::new(Semaphore::new(limits.connections.each));
    let mut acceptor = Acceptor::new(listener, limits.spare);
    while let Some(accepted) = stop.run_until_cancelled(acceptor.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(pause) => {
                // Those that wait to be displaced hold descriptors.
                places.displaced.send_replace(Displaced::default());
                stop.run_until_cancelled(tokio::time::sleep(pause)).await;
                continue;
            }
        };
        let waits = Arc::clone(&waiting).try_acquire_owned();
        let (places, router, stop) = (Arc::clone(&places), router.clone(), stop.clone());
        open.spawn(async move {
            let place = match waits {
                Ok(_waits) => places.place(peer).await,
                Err(_) => None,
            };
            match place {
                Some(place) => Connection { place, router, stop }.serve(stream).await,
                None => places.log_refusal(L::NAME, peer),
            }
        });
    }
    drop(acceptor);
    open.close();
    open.wait().await;
}

struct Acceptor<L> {
    listener: L,
    /// How many descriptors are kept in reserve.
    spare_max: usize,
    spare: Vec<OwnedFd>,
    failures_in_a_row: u32,
    failed: LineLimit,
    connected: LineLimit,
    users: BTreeSet<(u32, u32)>,
}

impl<L: Listener> Acceptor<L> {
    fn new(listener: L, spare_max: usize) -> Self {
        Self {
            listener,
            spare_max,
            spare: Vec::new(),
            failures_in_a_row: 0,
            failed: LineLimit::new(LINES_MAX),
            connected: LineLimit::new(CONNECTED_LINES_MAX),
            users: BTreeSet::new(),
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// The pause after a failure that the next accept would share: no failure ends a listener.
    async fn accept(&mut self) -> Result<(L::Stream, Peer), Duration> {
        loop {
            while self.spare.len() < self.spare_max
                && let Ok(opened) = rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            {
                self.spare.push(opened);
            }
            loop {
                let error = match self.listener.next().await {
                    Ok(accepted) => {
                        self.failures_in_a_row = 0;
                        self.log_user(accepted.1);
                        return Ok(accepted);
                    }
                    Err(error) => error,
                };
                if let Some(suppressed) = self.failed.take() {
                    tracing::warn!(listener = L::NAME, %error, suppressed, "could not accept a connection");
                }
                let has_no_descriptor = matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
                if has_no_descriptor && self.spare.pop().is_some() {
                    continue;
                }
                let pause = pause_after(&error, self.failures_in_a_row);
                self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
                if pause.is_zero() {
                    break;
                }
                return Err(pause);
            }
        }
    }

    /// Logs which users connect, as access to the socket is all the authentication there is: the first connection of each
    /// user at info level, later ones at debug level.
    fn log_user(&mut self, peer: Peer) {
        let Peer::Process { pid, uid, gid } = peer else { return };
        let Some(suppressed) = self.connected.take() else { return };
        if self.users.len() < USERS_MAX && self.users.insert((uid, gid)) {
            tracing::info!(pid, uid, gid, suppressed, "a user connects for the first time");
        } else {
            tracing::debug!(pid, uid, gid, suppressed, "connected");
        }
    }
}

/// What all peers or one peer may still have.
#[derive(Debug)]
struct Slots {
    connections: Arc<Semaphore>,
    calls: Arc<Semaphore>,
}

impl Slots {
    fn new(connections: usize, calls: usize) -> Arc<Self> {
        let [connections, calls] = [connections, calls].map(|count| Arc::new(Semaphore::new(count)));
        Arc::new(Self { connections, calls })
    }
}

/// Which connections without a running call close for another one.
#[derive(Clone, Copy, Debug, Default)]
struct Displaced {
    /// `None`: those of every peer.
    peer: Option<Peer>,
    /// Those that made a call before, too.
    also_called: bool,
}

/// The places of one listener.
#[derive(Debug)]
struct Places {
    limits: Limits,
    all: Arc<Slots>,
    peers: Mutex<BTreeMap<Peer, Arc<Slots>>>,
    displaced: watch::Sender<Displaced>,
    refused: Mutex<LineLimit>,
}

/// The place of an open connection, free again when this is dropped.
#[derive(Debug)]
struct Place {
    peer: Peer,
    places: Arc<Places>,
    own: Arc<Slots>,
    _connection: [OwnedSemaphorePermit; 2],
}

impl Places {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            all: Slots::new(limits.connections.all, limits.calls.all),
            peers: Mutex::default(),
            displaced: watch::Sender::default(),
            refused: Mutex::new(LineLimit::new(LINES_MAX)),
        }
    }

    /// A place for one more connection, where needed in place of others without a running call. `None`: all are busy.
    async fn place(self: &Arc<Self>, peer: Peer) -> Option<Place> {
        let own = {
            let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
            peers.retain(|_, slots| Arc::strong_count(slots) > 1);
            let Limits { connections, calls, .. } = self.limits;
            Arc::clone(peers.entry(peer).or_insert_with(|| Slots::new(connections.each, calls.each)))
        };
        let connection =
            [self.slot(&own.connections, Some(peer)).await?, self.slot(&self.all.connections, None).await?];
        Some(Place { peer, places: Arc::clone(self), own, _connection: connection })
    }

    async fn slot(&self, slots: &Arc<Semaphore>, peer: Option<Peer>) -> Option<OwnedSemaphorePermit> {
        if let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
            return Some(slot);
        }
        for also_called in [false, true] {
            self.displaced.send_replace(Displaced { peer, also_called });
            let slot = tokio::time::timeout(DISPLACED_WITHIN, Arc::clone(slots).acquire_owned()).await;
            if let Ok(Ok(slot)) = slot {
                return Some(slot);
            }
        }
        None
    }

    fn log_refusal(&self, listener: &str, peer: Peer) {
        let Some(suppressed) = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let Share { all, each } = self.limits.connections;
        tracing::warn!(
            listener,
            ?peer,
            all,
            each,
            suppressed,
            "every connection, or each of this peer, is busy; one is refused"
        );
    }
}

fn pause_after(error: &io::Error, before: u32) -> Duration {
    match Errno::from_io_error(error) {
        // Failures of one connection, whose client disconnected or is rejected; the next one is independent.
        Some(
            Errno::CONNABORTED
            | Errno::NOTCONN
            | Errno::PERM
            | Errno::PROTO
            | Errno::INTR
            | Errno::NETDOWN
            | Errno::HOSTUNREACH,
        ) => Duration::ZERO,
        _ => PAUSE_FIRST.saturating_mul(1 << before.min(16)).min(PAUSE_MAX),
    }
}

struct Connection {
    place: Place,
    router: Router,
    stop: CancellationToken,
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
        std::future::pending().await
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
    async fn serve<S>(self, stream: S)
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

/// Limits how many lines of one kind reach the log, and counts the suppressed ones.
#[derive(Debug)]
struct LineLimit {
    lines_max: u32,
    since: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl LineLimit {
    /// At most `lines_max` lines in each [`LINES_OVER`].
    fn new(lines_max: u32) -> Self {
        Self { lines_max, since: None, written: 0, suppressed: 0 }
    }

    /// The number of lines suppressed since the last written one; `None`: suppress this line, too.
    fn take(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.since.is_none_or(|since| now >= since + LINES_OVER) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written == self.lines_max {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}
