//! A registry with a fault: its listeners, its tokens, and the secrets that it was shown.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base64::Engine as _;
use bytes::BytesMut;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;

use super::{
    acts::{Outcome, Values, challenge, content, perform, send_raw, until_closed},
    fault::{Act, Listens, Place, RegistryFault, Times},
    http::{BodyEnd, ParsedRequest, Reply, read_request},
    image::TestImage,
    tls,
};

/// Headers that may carry a secret.
const SECRET_HEADERS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", FaultRegistry::KEY_HEADER];

/// A registry on loopback with at most one fault, and a second origin to which it may redirect.
///
/// It grants tokens: to every client, or with [`FaultRegistry::require`] for a password. It records each secret that
/// it did not issue and did not require.
#[derive(Debug)]
pub struct FaultRegistry {
    shared: Arc<Shared>,
    authority: Option<String>,
    is_encrypted: bool,
    tasks: Vec<JoinHandle<()>>,
    /// A port on which no server listens.
    _bound: Option<TcpSocket>,
    /// A listener that accepts nothing, and what fills its queue.
    _queue: Option<(TcpListener, Vec<TcpStream>)>,
}

#[derive(Debug)]
struct Shared {
    address: String,
    storage: String,
    fault: Option<RegistryFault>,
    image: TestImage,
    state: Mutex<RegistryState>,
}

#[derive(Debug, Default)]
struct RegistryState {
    /// User and password that a token is granted for.
    password: Option<(String, String)>,
    tokens: u32,
    /// How often each script was due.
    due: Vec<u32>,
    requests: usize,
    leaks: Vec<String>,
    stalls: usize,
}

impl FaultRegistry {
    /// A header that [`FaultRegistry::key`] is the only valid value of.
    pub const KEY_HEADER: &str = "x-registry-key";

    /// Starts a registry with a fault, or without one.
    pub async fn start(fault: Option<&RegistryFault>, image: &TestImage) -> Self {
        let listens = fault.map_or(Listens::Plainly, |fault| fault.listens);
        let storage = TcpListener::bind(LOOPBACK).await.expect("a free port");
        let mut bound = None;
        let mut queue = None;
        let mut serving = None;
        let address = match listens {
            Listens::Never => {
                let socket = TcpSocket::new_v4().expect("a socket");
                socket.bind(LOOPBACK).expect("a free port");
                let address = socket.local_addr().expect("an address");
                bound = Some(socket);
                address
            }
            Listens::Full => {
                let (listener, waiting) = full_queue().await;
                let address = listener.local_addr().expect("an address");
                queue = Some((listener, waiting));
                address
            }
            _ => {
                let listener = TcpListener::bind(LOOPBACK).await.expect("a free port");
                let address = listener.local_addr().expect("an address");
                serving = Some(listener);
                address
            }
        };
        let shared = Arc::new(Shared {
            address: address.to_string(),
            storage: storage.local_addr().expect("an address").to_string(),
            fault: fault.copied(),
            image: image.clone(),
            state: Mutex::default(),
        });
        let (acceptor, authority) = match listens {
            Listens::Encrypted(certificate) => {
                let (acceptor, authority) = tls::acceptor(certificate);
                (Some(acceptor), authority)
            }
            _ => (None, None),
        };
        let mut tasks = vec![tokio::spawn(accept(storage, Arc::clone(&shared), None, true))];
        tasks.extend(serving.map(|listener| tokio::spawn(accept(listener, Arc::clone(&shared), acceptor, false))));
        let is_encrypted = matches!(listens, Listens::Encrypted(_) | Listens::Handshake(_));
        Self { shared, authority, is_encrypted, tasks, _bound: bound, _queue: queue }
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Host and port of the origin to which it redirects.
    pub fn storage_address(&self) -> &str {
        &self.shared.storage
    }

    /// Scheme, host and port.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.is_encrypted { "https" } else { "http" }, self.shared.address)
    }

    /// The authority to configure for it, in PEM.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// The value of [`FaultRegistry::KEY_HEADER`] to configure for it.
    pub fn key(&self) -> String {
        format!("key-of-{}", self.shared.address)
    }

    /// Grants tokens only for this password.
    pub fn require(&self, user: &str, password: &str) {
        self.shared.lock().password = Some((user.to_owned(), password.to_owned()));
    }

    /// The number of requests so far.
    pub fn requests(&self) -> usize {
        self.shared.lock().requests
    }

    /// Secrets of others that it received: what was sent, and where.
    pub fn leaks(&self) -> Vec<String> {
        self.shared.lock().leaks.clone()
    }

    /// The connections so far on which a client waited for an answer that does not come.
    pub fn stalls(&self) -> usize {
        self.shared.lock().stalls
    }
}

impl Drop for FaultRegistry {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A listener whose queue is full, with the connections that fill it.
async fn full_queue() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(LOOPBACK).expect("a free port");
    let listener = socket.listen(1).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let mut waiting = Vec::new();
    loop {
        let connect = TcpStream::connect(address);
        match tokio::time::timeout(std::time::Duration::from_millis(500), connect).await {
            Ok(stream) => waiting.push(stream.expect("the queue takes it")),
            Err(_) => return (listener, waiting),
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, acceptor: Option<TlsAcceptor>, is_storage: bool) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (shared, acceptor) = (Arc::clone(&shared), acceptor.clone());
        connections.spawn(async move {
            let handshake = shared.fault.map(|fault| fault.listens).filter(|_| !is_storage);
            match (acceptor, handshake) {
                (Some(acceptor), _) => {
                    match acceptor.accept(stream).into_fallible().await {
                        Ok(stream) => shared.serve(Either::Right(Box::new(stream)), is_storage).await,
                        // A client that does not trust the certificate ends the handshake. A client that is refused has sent
                        // more: closing on it would take the alert back.
                        Err((_, mut stream)) => {
                            let _ = stream.shutdown().await;
                            until_closed(&mut stream).await;
                        }
                    }
                }
                (None, Some(Listens::Handshake(answer))) => shared.answer_handshake(stream, answer).await,
                (None, _) => shared.serve(Either::Left(stream), is_storage).await,
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

type Connection = Either<TcpStream, Box<tokio_rustls::server::TlsStream<TcpStream>>>;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer_handshake(&self, mut stream: TcpStream, answer: Option<&[u8]>) {
        let mut hello = [0; 1024];
        let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut hello).await;
        match answer {
            Some(bytes) => drop(stream.write_all(bytes).await),
            None => self.stall(&mut stream).await,
        }
    }

    async fn stall(&self, stream: &mut (impl tokio::io::AsyncRead + Unpin)) {
        self.lock().stalls += 1;
        until_closed(stream).await;
    }

    async fn serve(&self, mut stream: Connection, is_storage: bool) {
        let mut buffer = BytesMut::new();
        while let Ok(Some(request)) = read_request(&mut stream, &mut buffer).await {
            let sent = match self.outcome(&request, is_storage) {
                Outcome::Reply(reply) => reply.send(&mut stream, &request.method).await,
                Outcome::Raw(act) => {
                    // A slow head is a wait, too.
                    self.lock().stalls += usize::from(matches!(act, Act::HeadTrickle | Act::Informational));
                    send_raw(act, &mut stream).await.map(Some)
                }
            };
            match sent {
                Ok(None) => {}
                Ok(Some(BodyEnd::Stall)) => return self.stall(&mut stream).await,
                Ok(Some(BodyEnd::Reset)) => {
                    let _ = tcp(&stream).set_zero_linger();
                    return;
                }
                // The client reads what it was sent before the end.
                Ok(Some(BodyEnd::Close)) => {
                    let _ = stream.shutdown().await;
                    return;
                }
                Err(_) => return,
            }
        }
    }

    fn outcome(&self, request: &ParsedRequest, is_storage: bool) -> Outcome {
        let mut state = self.lock();
        state.requests += 1;
        let is_authorized = self.check_secrets(&mut state, request, is_storage);
        let values = Values { own: &self.address, storage: &self.storage, path: &request.path };
        let whole = || content(&self.image, &ParsedRequest::plain(&request.path));
        let place = self.place(request, is_storage, is_authorized);
        let right = match place {
            Place::Token => self.token(&state, request),
            Place::Challenge => challenge(&self.address),
            // Another origin's token service knows no client.
            Place::Storage if request.path.starts_with("/token") => Reply::status(401),
            _ => content(&self.image, request),
        };
        let act = self.next_act(&mut state, Place::Any).filter(|_| !is_storage);
        let Some(act) = act.or_else(|| self.next_act(&mut state, place)) else { return Outcome::Reply(right) };
        if act == Act::ExpireTokens {
            state.tokens += 1;
        }
        perform(act, right, whole, request, &values)
    }

    fn place(&self, request: &ParsedRequest, is_storage: bool, is_authorized: bool) -> Place {
        let path = request.path.split('?').next().unwrap_or_default();
        let is_blob = |blob: &[u8]| path.ends_with(imagelet_core::image::Digest::of(blob).as_str());
        match path {
            _ if is_storage => Place::Storage,
            "/token" => Place::Token,
            _ if !is_authorized => Place::Challenge,
            _ if path.contains("/manifests/") => Place::Manifest,
            _ if is_blob(&self.image.layers[0]) => Place::Layer,
            _ if is_blob(&self.image.config) => Place::Config,
            _ => Place::OtherContent,
        }
    }

    fn next_act(&self, state: &mut RegistryState, place: Place) -> Option<Act> {
        let scripts = self.fault.map(|fault| fault.scripts).unwrap_or_default();
        state.due.resize(scripts.len(), 0);
        for (script, due) in scripts.iter().zip(&mut state.due).filter(|(script, _)| script.place == place) {
            let strikes = match script.times {
                Times::First(count) => *due < count,
                Times::Every(number, group) => *due % group == number,
            };
            *due = due.saturating_add(1);
            if strikes {
                return Some(script.act);
            }
        }
        None
    }

    /// Whether the request carries a valid token. Records every secret that belongs elsewhere.
    fn check_secrets(&self, state: &mut RegistryState, request: &ParsedRequest, is_storage: bool) -> bool {
        let token = format!("Bearer {}", self.token_text(state.tokens));
        for name in SECRET_HEADERS {
            let Some(value) = request.header(name) else { continue };
            let is_own = match name {
                FaultRegistry::KEY_HEADER => value == format!("key-of-{}", self.address),
                "authorization" => {
                    value.starts_with(&format!("Bearer token-{}-", self.address))
                        || state.password.as_ref().is_some_and(|password| value == basic(password))
                }
                _ => false,
            };
            if is_storage || !is_own {
                let place = if is_storage { &self.storage } else { &self.address };
                state.leaks.push(format!("`{name}: {value}` at {place}{}", request.path));
            }
        }
        request.header("authorization") == Some(token.as_str())
    }

    fn token_text(&self, number: u32) -> String {
        format!("token-{}-{number}", self.address)
    }

    fn token(&self, state: &RegistryState, request: &ParsedRequest) -> Reply {
        let is_refused = state.password.as_ref().is_some_and(|(user, password)| {
            let has_form = request.form.contains(&format!("username={user}"))
                && request.form.contains(&format!("password={password}"));
            !has_form && request.header("authorization") != Some(&basic(&(user.clone(), password.clone())))
        });
        if is_refused {
            return Reply::status(401);
        }
        let text = format!(r#"{{"token":"{}","expires_in":300}}"#, self.token_text(state.tokens));
        Reply::new(200, "application/json", text)
    }
}

fn basic((user, password): &(String, String)) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}

fn tcp(stream: &Connection) -> &TcpStream {
    match stream {
        Either::Left(stream) => stream,
        Either::Right(stream) => stream.get_ref().0,
    }
}
