//! A registry on loopback that follows or breaks the protocol as a test asks, and records its requests.
//!
//! The registry of [`crate::testing`] serves one image and has one fault of a fixed table; the tests in here change content,
//! guard and rate between two requests, and count bytes and connections.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use imagelet_core::image::{Digest, Reference};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::testing::tls::{ClientCertificates, self_signed};

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

#[derive(Debug)]
pub(crate) struct FakeRegistry {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<Inner>>,
    server: tokio::task::JoinHandle<()>,
    /// The client certificates of its connections.
    certificates: Certificates,
    open: Arc<OpenConnections>,
}

type Certificates = Arc<Mutex<Vec<CertificateDer<'static>>>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) authorization: Option<String>,
    pub(crate) range: Option<String>,
    pub(crate) body: String,
    /// All headers, `authorization` and `range` among them.
    pub(crate) headers: HeaderMap,
}

/// The credential that a registry requires.
#[derive(Clone, Debug, Default)]
pub(crate) enum Guard {
    #[default]
    Open,
    Basic(&'static str, &'static str),
    /// A token of its own `/token`, which grants it for this `Authorization` or form, or anonymously.
    Bearer {
        shown: Option<String>,
        form: Option<String>,
        realm: Option<String>,
    },
    /// A credential that does not exist.
    Never,
}

/// A faulty response.
#[derive(Clone, Debug)]
pub(crate) enum Trick {
    Answer(u16, Vec<(&'static str, String)>, Bytes),
    /// This many bytes of the body, then the connection is closed.
    CutAfter(usize),
    /// This many bytes of the body, then silence.
    StallAfter(usize),
    /// The whole body at this many bytes per second.
    Slow(u64),
    /// The whole body, whatever the requested range.
    IgnoreRange,
    /// The usual response after this time.
    Late(std::time::Duration),
    /// The usual response with another header.
    Header(&'static str, String),
    /// The usual response with another body and no length.
    Body(Bytes),
}

#[derive(Debug, Default)]
struct Inner {
    documents: HashMap<String, (String, Bytes)>,
    blobs: HashMap<String, Bytes>,
    guard: Guard,
    /// Tricks by the end of the path, with the number of uses left.
    tricks: Vec<(String, u32, Trick)>,
    seen: Vec<RecordedRequest>,
    tokens: u32,
    /// Bytes per second over one connection; `None`: unlimited.
    rate: Option<u64>,
    traffic: Arc<Traffic>,
}

#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) bytes: AtomicU64,
    pub(crate) running: AtomicUsize,
    pub(crate) running_max: AtomicUsize,
}

impl FakeRegistry {
    pub(crate) async fn start() -> Self {
        Self::start_on(LOOPBACK).await
    }

    pub(crate) async fn start_on(ip: IpAddr) -> Self {
        let listener = tokio::net::TcpListener::bind((ip, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let open = Arc::<OpenConnections>::default();
        Self::serving(address, Counting { listener, open: Arc::clone(&open) }, Arc::default(), open)
    }

    /// A registry over TLS, and its certificate authority in PEM.
    pub(crate) async fn start_encrypted() -> (Self, String) {
        Self::start_asking_for(None).await
    }

    /// A TLS registry that requests a client certificate and also serves clients without it.
    pub(crate) async fn start_asking_for(client: Option<CertificateDer<'static>>) -> (Self, String) {
        let parameters = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        Self::start_showing(&parameters, client).await
    }

    /// A TLS registry that serves only clients with this certificate.
    pub(crate) async fn start_requiring(client: CertificateDer<'static>) -> Self {
        let parameters = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        Self::start_over_tls(LOOPBACK, &parameters, Some(client), true).await.0
    }

    /// A TLS registry with a self-signed certificate of these parameters.
    pub(crate) async fn start_showing(
        parameters: &rcgen::CertificateParams,
        client: Option<CertificateDer<'static>>,
    ) -> (Self, String) {
        Self::start_over_tls(LOOPBACK, parameters, client, false).await
    }

    /// The same without client certificates, at another address.
    pub(crate) async fn start_showing_on(ip: IpAddr, parameters: &rcgen::CertificateParams) -> (Self, String) {
        Self::start_over_tls(ip, parameters, None, false).await
    }

    async fn start_over_tls(
        ip: IpAddr,
        parameters: &rcgen::CertificateParams,
        client: Option<CertificateDer<'static>>,
        is_required: bool,
    ) -> (Self, String) {
        let listener = tokio::net::TcpListener::bind((ip, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let clients = client.map(|authority| ClientCertificates { authority, is_required });
        let (acceptor, authority) = self_signed(parameters, rustls::ALL_VERSIONS, clients);
        let certificates = Certificates::default();
        let listener = Encrypted { listener, acceptor, certificates: Arc::clone(&certificates) };
        (Self::serving(address, listener, certificates, Arc::default()), authority)
    }

    fn serving<L: axum::serve::Listener<Addr = SocketAddr>>(
        address: SocketAddr,
        listener: L,
        certificates: Certificates,
        open: Arc<OpenConnections>,
    ) -> Self {
        let state = Arc::new(Mutex::new(Inner::default()));
        let router = Router::new().fallback(serve).with_state((address, Arc::clone(&state)));
        let server = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("serving loopback");
        });
        Self { address, state, server, certificates, open }
    }

    /// The most connections without TLS that were open at once.
    pub(crate) fn connections_max(&self) -> usize {
        self.open.max.load(Ordering::SeqCst)
    }

    /// The client certificates that it was shown, one of each connection.
    pub(crate) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        self.certificates.lock().expect("no test panicked in here").clone()
    }

    pub(crate) fn reference(&self, name: &str) -> Reference {
        format!("{}/{name}", self.address).parse().expect("a reference")
    }

    pub(crate) fn guard(&self, guard: Guard) {
        self.lock().guard = guard;
    }

    /// Plays a trick on this many requests for paths with this end.
    pub(crate) fn trick(&self, path_end: impl Into<String>, times: u32, trick: Trick) {
        self.lock().tricks.push((path_end.into(), times, trick));
    }

    pub(crate) fn clear_tricks(&self) {
        self.lock().tricks.clear();
    }

    /// Invalidates all granted tokens.
    pub(crate) fn expire_tokens(&self) {
        self.lock().tokens += 1;
    }

    pub(crate) fn put_blob(&self, bytes: impl Into<Bytes>) -> Digest {
        let bytes = bytes.into();
        let digest = Digest::of(&bytes);
        self.lock().blobs.insert(digest.to_string(), bytes);
        digest
    }

    pub(crate) fn put_document(&self, tag: &str, media_type: &str, bytes: impl Into<Bytes>) -> Digest {
        let bytes = bytes.into();
        let digest = Digest::of(&bytes);
        let mut inner = self.lock();
        for name in [tag.to_owned(), digest.to_string()] {
            inner.documents.insert(name, (media_type.to_owned(), bytes.clone()));
        }
        digest
    }

    /// Stores an image under a tag; returns the digest of its manifest.
    pub(crate) fn put_image(&self, tag: &str, layers: &[&[u8]]) -> Digest {
        let config = br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
        let describe = |media_type: &str, bytes: &[u8]| {
            let digest = self.put_blob(bytes.to_vec());
            format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":{}}}"#, bytes.len())
        };
        let layers: Vec<String> = layers.iter().map(|layer| describe(LAYER, layer)).collect();
        let config = describe("application/vnd.oci.image.config.v1+json", config);
        let layers = layers.join(",");
        let text =
            format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{config},"layers":[{layers}]}}"#);
        self.put_document(tag, OCI_MANIFEST, text)
    }

    /// Requests since the last call.
    pub(crate) fn seen(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut self.lock().seen)
    }

    /// Limits the rate of blobs over each connection.
    pub(crate) fn throttle(&self, rate: u64) {
        self.lock().rate = Some(rate);
    }

    pub(crate) fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.lock().traffic)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.state.lock().expect("no test panicked in here")
    }
}

/// Counts the connections that are open at once.
struct Counting {
    listener: tokio::net::TcpListener,
    open: Arc<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    now: AtomicUsize,
    max: AtomicUsize,
}

struct CountedStream {
    stream: tokio::net::TcpStream,
    open: Arc<OpenConnections>,
}

impl axum::serve::Listener for Counting {
    type Io = CountedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (stream, peer) = self.listener.accept().await.expect("a connection");
        // The end of an earlier connection may not be noticed yet.
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        let open = Arc::clone(&self.open);
        open.max.fetch_max(open.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        (CountedStream { stream, open }, peer)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.open.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

struct Encrypted {
    listener: tokio::net::TcpListener,
    acceptor: tokio_rustls::TlsAcceptor,
    certificates: Certificates,
}

impl axum::serve::Listener for Encrypted {
    type Io = tokio_rustls::server::TlsStream<tokio::net::TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (stream, peer) = self.listener.accept().await.expect("a connection");
            // Some tests fail the handshake on purpose.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                self.certificates.lock().expect("no test panicked in here").extend(shown.cloned());
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Every response sets a cookie, which no client may return.
async fn serve(state: State<(SocketAddr, Arc<Mutex<Inner>>)>, request: Request) -> Response {
    let mut response = respond(state, request).await;
    response.headers_mut().insert(header::SET_COOKIE, http::HeaderValue::from_static("session=1; Path=/"));
    response
}

async fn respond(State((address, state)): State<(SocketAddr, Arc<Mutex<Inner>>)>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let seen = RecordedRequest {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        authorization: header(header::AUTHORIZATION),
        range: header(header::RANGE),
        body: String::from_utf8_lossy(&body).into_owned(),
        headers: head.headers.clone(),
    };
    let trick = state.lock().expect("no test panicked in here").record(&seen);
    if let Some(Trick::Late(delay)) = trick {
        tokio::time::sleep(delay).await;
    }
    let inner = state.lock().expect("no test panicked in here");
    if let Some(Trick::Answer(status, headers, body)) = trick {
        return answer(status, &headers, body);
    }
    if seen.path == "/token" {
        return inner.token(&seen);
    }
    if let Some(refusal) = inner.check(address, seen.authorization.as_deref()) {
        return refusal;
    }
    if seen.path == "/v2/" {
        return answer(200, &[], Bytes::new());
    }
    inner.content(&seen, trick, &head.headers)
}

impl Inner {
    /// Records a request; returns its trick.
    fn record(&mut self, seen: &RecordedRequest) -> Option<Trick> {
        self.seen.push(seen.clone());
        let mut tricks = self.tricks.iter_mut();
        let (_, times, trick) = tricks.find(|(end, times, _)| *times > 0 && seen.path.ends_with(end.as_str()))?;
        *times -= 1;
        Some(trick.clone())
    }

    fn token(&self, seen: &RecordedRequest) -> Response {
        let Guard::Bearer { shown, form, .. } = &self.guard else { return answer(404, &[], Bytes::new()) };
        let allowed = match form {
            Some(form) => seen.method == "POST" && seen.body.contains(form.as_str()),
            None => shown.is_none() || seen.authorization == *shown,
        };
        if !allowed {
            return answer(401, &[], Bytes::from_static(b"who are you"));
        }
        let text = format!(r#"{{"token":"token-{}","expires_in":60}}"#, self.tokens);
        answer(200, &[("content-type", "application/json".to_owned())], text.into())
    }

    fn check(&self, address: SocketAddr, authorization: Option<&str>) -> Option<Response> {
        use base64::Engine as _;
        let (challenge, wanted) = match &self.guard {
            Guard::Open => return None,
            Guard::Never => (r#"Basic realm="fake""#.to_owned(), None),
            Guard::Basic(user, password) => {
                let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
                (r#"Basic realm="fake""#.to_owned(), Some(format!("Basic {pair}")))
            }
            Guard::Bearer { realm, .. } => {
                let realm = realm.clone().unwrap_or_else(|| format!("http://{address}/token"));
                let challenge = format!(r#"Bearer realm="{realm}",service="fake",scope="repository:everything:*""#);
                (challenge, Some(format!("Bearer token-{}", self.tokens)))
            }
        };
        if wanted.is_some() && authorization == wanted.as_deref() {
            return None;
        }
        let echo = format!("you sent {}", authorization.unwrap_or("nothing"));
        Some(answer(401, &[("www-authenticate", challenge)], echo.into()))
    }

    fn content(&self, seen: &RecordedRequest, trick: Option<Trick>, headers: &HeaderMap) -> Response {
        let name = seen.path.rsplit('/').next().unwrap_or_default();
        let (media_type, bytes) = if seen.path.contains("/manifests/") {
            match self.documents.get(name) {
                Some(found) => found.clone(),
                None => {
                    return answer(404, &[], r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"unknown"}]}"#.into());
                }
            }
        } else {
            match self.blobs.get(name) {
                Some(bytes) => ("application/octet-stream".to_owned(), bytes.clone()),
                None => return answer(404, &[], r#"{"errors":[{"code":"BLOB_UNKNOWN","message":"unknown"}]}"#.into()),
            }
        };
        let mut headers_sent = BTreeMap::from([("content-type", media_type)]);
        if seen.path.contains("/manifests/") {
            headers_sent.insert("docker-content-digest", Digest::of(&bytes).to_string());
        }
        let total = bytes.len();
        let range = headers
            .get(header::RANGE)
            .filter(|_| !matches!(trick, Some(Trick::IgnoreRange)))
            .and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'))
            .and_then(|(first, last)| {
                let last = if last.is_empty() { total - 1 } else { last.parse().ok()? };
                Some((first.parse::<usize>().ok()?, last))
            });
        let (status, bytes) = match range {
            Some((first, last)) => {
                headers_sent.insert("content-range", format!("bytes {first}-{last}/{total}"));
                (206, bytes.slice(first..=last))
            }
            None => (200, bytes),
        };
        let body = match trick {
            Some(Trick::CutAfter(count)) => broken(&bytes, count, false, &mut headers_sent),
            Some(Trick::StallAfter(count)) => broken(&bytes, count, true, &mut headers_sent),
            Some(Trick::Body(bytes)) => unmeasured(bytes),
            Some(Trick::Header(name, value)) => {
                headers_sent.insert(name, value);
                Body::from(bytes)
            }
            trick if seen.path.contains("/blobs/") => {
                headers_sent.insert("content-length", bytes.len().to_string());
                let rate = if let Some(Trick::Slow(rate)) = trick { Some(rate) } else { self.rate };
                metered(bytes, rate, &self.traffic)
            }
            _ => Body::from(bytes),
        };
        let mut response = Response::builder().status(status);
        for (name, value) in headers_sent {
            response = response.header(name, value);
        }
        response.body(body).expect("a response")
    }
}

fn answer(status: u16, headers: &[(&'static str, String)], body: Bytes) -> Response {
    let mut response = Response::builder().status(StatusCode::from_u16(status).expect("a status"));
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Body::from(body)).expect("a response")
}

/// A body that announces its full length and sends a part.
fn broken(bytes: &Bytes, count: usize, stalls: bool, headers_sent: &mut BTreeMap<&str, String>) -> Body {
    use futures_util::{StreamExt as _, stream};
    headers_sent.insert("content-length", bytes.len().to_string());
    let part = bytes.slice(..count.min(bytes.len()));
    let start = stream::iter([Ok::<_, std::io::Error>(part)]);
    if stalls {
        return Body::from_stream(start.chain(stream::pending()));
    }
    // The part must be sent before the connection is closed, so the close waits a turn.
    let cut = stream::once(async {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        Err(std::io::Error::other("cut"))
    });
    Body::from_stream(start.chain(cut))
}

fn metered(bytes: Bytes, rate: Option<u64>, traffic: &Arc<Traffic>) -> Body {
    struct Running(Arc<Traffic>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.running.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let running = Running(Arc::clone(traffic));
    let count = traffic.running.fetch_add(1, Ordering::SeqCst) + 1;
    traffic.running_max.fetch_max(count, Ordering::SeqCst);
    let (started, total) = (tokio::time::Instant::now(), bytes.len());
    Body::from_stream(futures_util::stream::unfold((bytes, running), move |(mut left, running)| async move {
        if left.is_empty() {
            return None;
        }
        let piece = left.split_to(left.len().min(16 << 10));
        if let Some(rate) = rate {
            let due = (total - left.len()) as f64 / rate as f64;
            tokio::time::sleep_until(started + std::time::Duration::from_secs_f64(due)).await;
        }
        running.0.bytes.fetch_add(piece.len() as u64, Ordering::SeqCst);
        Some((Ok::<_, std::io::Error>(piece), (left, running)))
    }))
}

fn unmeasured(bytes: Bytes) -> Body {
    Body::from_stream(futures_util::stream::iter([Ok::<_, std::io::Error>(bytes)]))
}
