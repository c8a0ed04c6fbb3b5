//! An API server on loopback: pods to create, list, watch, patch and delete, with a token, TLS, and faults on request.
//!
//! It answers as a real one: events since a resource version, bookmarks, `410 Gone` for a version that it has forgotten,
//! pages, `Status` documents for errors.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, channel::Channel, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::watch,
    task::AbortHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer},
};

use super::{named_objects::NamedObjects, object_log::ObjectLog};

/// The longest body of a request.
const BODY_LENGTH_MAX: usize = 4 << 20;
/// Events that a watch buffers.
const EVENTS_BUFFERED: usize = 64;

type Answer = Response<BoxBody<Bytes, std::io::Error>>;

/// What the server asks of its clients.
#[derive(Clone, Debug, Default)]
pub struct FakeApiOptions {
    /// The bearer token of each request; `None`: none is asked for.
    pub token: Option<String>,
    /// Whether it speaks TLS, by a certificate that the kubeconfig names.
    pub tls: bool,
}

/// A fault of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiFault {
    /// Answers with this status and message.
    Status(u16, String),
    /// Answers with this text and 200.
    Text(String),
    /// Never answers.
    Hang,
    /// A watch is closed at once, without an event.
    EmptyWatch,
}

/// An API server in this process. Ends when dropped.
#[derive(Debug)]
pub struct FakeApi {
    address: SocketAddr,
    shared: Arc<Shared>,
    authority: Option<String>,
    listening: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    options: FakeApiOptions,
    objects: Mutex<ObjectLog>,
    named: NamedObjects,
    faults: Mutex<VecDeque<ApiFault>>,
    /// A fault of every request, after those above.
    lasting: Mutex<Option<ApiFault>>,
    requests: Mutex<Vec<String>>,
    /// The version of the objects, for watches that wait.
    changed: watch::Sender<u64>,
    /// Increases with each cut of all connections.
    cuts: watch::Sender<u64>,
}

impl FakeApi {
    /// Starts a server on a free port of loopback.
    pub async fn start(options: FakeApiOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it listens");
        let (acceptor, authority) = if options.tls {
            let (acceptor, authority) = tls();
            (Some(acceptor), Some(authority))
        } else {
            (None, None)
        };
        let shared = Arc::new(Shared {
            options,
            objects: Mutex::new(ObjectLog { version: 100, ..ObjectLog::default() }),
            named: NamedObjects::default(),
            faults: Mutex::default(),
            lasting: Mutex::default(),
            requests: Mutex::default(),
            changed: watch::Sender::new(100),
            cuts: watch::Sender::new(0),
        });
        let listening = tokio::spawn(accept(listener, acceptor, Arc::clone(&shared))).abort_handle();
        Self { address, shared, authority, listening }
    }

    /// Writes a kubeconfig for it into this folder.
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let token = self.shared.options.token.as_deref().unwrap_or_default();
        self.kubeconfig_with(folder, token)
    }

    /// A kubeconfig with another token.
    pub fn kubeconfig_with(&self, folder: &Path, token: &str) -> PathBuf {
        let scheme = if self.authority.is_some() { "https" } else { "http" };
        let mut cluster = json!({"server": format!("{scheme}://{}", self.address)});
        if let Some(authority) = &self.authority {
            std::fs::write(folder.join("ca.crt"), authority).expect("the folder is writable");
            cluster["certificate-authority"] = "ca.crt".into();
        }
        let user = if token.is_empty() { json!({}) } else { json!({"token": token}) };
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "agent"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "agent", "user": user}],
        });
        let path = folder.join("kubeconfig");
        std::fs::write(&path, config.to_string()).expect("the folder is writable");
        path
    }

    /// Creates or replaces a pod of this document.
    pub fn apply(&self, pod: Value) {
        let name = |field: &str| pod["metadata"][field].as_str().unwrap_or("default").to_owned();
        let (namespace, name) = (name("namespace"), name("name"));
        self.shared.set(&namespace, &name, Some(pod));
    }

    /// Creates or replaces an object that is read by its name, of a kind as paths spell it: `secrets`, `serviceaccounts`.
    pub fn put(&self, kind: &str, object: Value) {
        self.shared.named.put(kind, object);
    }

    /// The requests for tokens that were granted.
    pub fn token_requests(&self) -> Vec<Value> {
        self.shared.named.tokens()
    }

    /// The events in the namespace `default`, oldest first.
    pub fn events(&self) -> Vec<Value> {
        self.shared.named.events()
    }

    /// Merges a status into a pod.
    pub fn set_status(&self, namespace: &str, name: &str, status: &Value) {
        let pod = self.shared.objects().pods.get(&(namespace.to_owned(), name.to_owned())).cloned();
        let mut pod = pod.expect("the pod exists");
        pod["status"] = status.clone();
        self.shared.set(namespace, name, Some(pod));
    }

    /// Removes a pod.
    pub fn remove(&self, namespace: &str, name: &str) {
        self.shared.set(namespace, name, None);
    }

    /// Sends a bookmark to all watches.
    pub fn bookmark(&self) {
        self.shared.objects().bookmark();
        self.shared.announce();
    }

    /// Forgets all versions so far, as an API server compacts its history.
    pub fn forget_history(&self) {
        self.shared.objects().forget();
    }

    /// Closes all connections.
    pub fn cut_connections(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The next request has this fault.
    pub fn plant(&self, fault: ApiFault) {
        lock(&self.shared.faults).push_back(fault);
    }

    /// Every request has this fault; `None`: no more.
    pub fn plant_lasting(&self, fault: Option<ApiFault>) {
        *lock(&self.shared.lasting) = fault;
    }

    /// The requests so far, as `METHOD PATH?QUERY`.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.shared.requests).clone()
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut_connections();
    }
}

impl Shared {
    fn objects(&self) -> MutexGuard<'_, ObjectLog> {
        lock(&self.objects)
    }

    fn set(&self, namespace: &str, name: &str, pod: Option<Value>) -> Option<Value> {
        let stored = self.objects().set(namespace, name, pod);
        self.announce();
        stored
    }

    fn announce(&self) {
        let version = self.objects().version;
        self.changed.send_replace(version);
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let (path, query) = (head.uri.path().to_owned(), query(head.uri.query().unwrap_or_default()));
        lock(&self.requests).push(format!("{} {}", head.method, head.uri));
        let fault = lock(&self.faults).pop_front().or_else(|| lock(&self.lasting).clone());
        match fault {
            Some(ApiFault::Status(code, message)) => return status(code, "", &message),
            Some(ApiFault::Text(text)) => return document(StatusCode::OK, text),
            Some(ApiFault::Hang) => return std::future::pending().await,
            Some(ApiFault::EmptyWatch) if query.contains_key("watch") => {
                return document(StatusCode::OK, String::new());
            }
            Some(ApiFault::EmptyWatch) | None => {}
        }
        if let Some(token) = &self.options.token {
            let given = head.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
            if given != Some(&format!("Bearer {token}")) {
                return status(401, "Unauthorized", "Unauthorized");
            }
        }
        let body = http_body_util::Limited::new(body, BODY_LENGTH_MAX).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (&head.method, &parts[..]) {
            (&Method::GET, ["api", "v1", "pods"]) if query.contains_key("watch") => self.watch(&query),
            (&Method::GET, ["api", "v1", "pods"]) => self.list(&query),
            (&Method::POST, ["api", "v1", "namespaces", namespace, "pods"]) => self.create(namespace, &body),
            (&Method::PATCH, ["api", "v1", "namespaces", namespace, "pods", name, "status"]) => {
                self.patch_status(namespace, name, &body)
            }
            (&Method::DELETE, ["api", "v1", "namespaces", namespace, "pods", name]) => {
                match self.set(namespace, name, None) {
                    Some(pod) => document(StatusCode::OK, pod.to_string()),
                    None => status(404, "NotFound", &format!("pods \"{name}\" not found")),
                }
            }
            _ => match self.named.answer(&head.method, &parts, &body) {
                Some((code, object)) => document(StatusCode::from_u16(code).unwrap_or_default(), object.to_string()),
                None => status(404, "NotFound", "the server could not find the requested resource"),
            },
        }
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Answer {
        let objects = self.objects();
        let wanted = query.get("resourceVersion").and_then(|version| version.parse::<u64>().ok()).unwrap_or(0);
        if wanted > objects.version {
            let message = format!("Timeout: Too large resource version: {wanted}, current: {}", objects.version);
            return status(504, "Timeout", &message);
        }
        let mut items = objects.list(node(query));
        let mut metadata = json!({"resourceVersion": objects.version.to_string()});
        let number = |key: &str| query.get(key).and_then(|text| text.parse::<usize>().ok());
        // A list from the cache has one page.
        if let Some(limit) = number("limit").filter(|_| !query.contains_key("resourceVersion")) {
            let from = number("continue").unwrap_or(0).min(items.len());
            let mut rest = items.split_off(from);
            if rest.len() > limit {
                rest.truncate(limit);
                metadata["continue"] = (from + limit).to_string().into();
            }
            items = rest;
        }
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items});
        document(StatusCode::OK, list.to_string())
    }

    fn watch(self: &Arc<Self>, query: &BTreeMap<String, String>) -> Answer {
        let from = query.get("resourceVersion").and_then(|version| version.parse::<u64>().ok()).unwrap_or(0);
        let seconds = query.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(300);
        let node = node(query).map(str::to_owned);
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(EVENTS_BUFFERED);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let mut changed = shared.changed.subscribe();
            let mut sent = from;
            let replay = async {
                loop {
                    changed.borrow_and_update();
                    for event in shared.events_after(&mut sent, node.as_deref()) {
                        let is_error = event["type"] == "ERROR";
                        if sender.send_data(Bytes::from(format!("{event}\n"))).await.is_err() || is_error {
                            return;
                        }
                    }
                    if changed.changed().await.is_err() {
                        return;
                    }
                }
            };
            drop(tokio::time::timeout(Duration::from_secs(seconds), replay).await);
        });
        Response::new(body.boxed())
    }

    /// The events after a version, which then is the newest one.
    fn events_after(&self, sent: &mut u64, node: Option<&str>) -> Vec<Value> {
        let objects = self.objects();
        if *sent < objects.oldest {
            let message = format!("too old resource version: {sent} ({})", objects.oldest);
            let gone =
                json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": message});
            return vec![json!({"type": "ERROR", "object": gone})];
        }
        let newer = objects.changes.iter().filter(|change| change.version > *sent);
        let events = newer.filter_map(|change| change.event(node)).collect();
        *sent = objects.version;
        events
    }

    fn create(&self, namespace: &str, body: &[u8]) -> Answer {
        let Ok(mut pod) = serde_json::from_slice::<Value>(body) else {
            return status(400, "BadRequest", "the body is not JSON");
        };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.objects().pods.contains_key(&(namespace.to_owned(), name.clone())) {
            return status(409, "AlreadyExists", &format!("pods \"{name}\" already exists"));
        }
        pod["status"] = json!({"phase": "Pending"});
        match self.set(namespace, &name, Some(pod)) {
            Some(pod) => document(StatusCode::CREATED, pod.to_string()),
            None => status(500, "InternalError", "nothing was stored"),
        }
    }

    fn patch_status(&self, namespace: &str, name: &str, body: &[u8]) -> Answer {
        let Ok(patch) = serde_json::from_slice::<Value>(body) else {
            return status(400, "BadRequest", "the body is not JSON");
        };
        let pod = self.objects().pods.get(&(namespace.to_owned(), name.to_owned())).cloned();
        let Some(mut pod) = pod else { return status(404, "NotFound", &format!("pods \"{name}\" not found")) };
        for (field, value) in patch["status"].as_object().into_iter().flatten() {
            pod["status"][field] = value.clone();
        }
        let pod = self.set(namespace, name, Some(pod)).unwrap_or_default();
        document(StatusCode::OK, pod.to_string())
    }
}

/// The node of a field selector.
fn node(query: &BTreeMap<String, String>) -> Option<&str> {
    query.get("fieldSelector")?.strip_prefix("spec.nodeName=")
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), percent_decode_str(value).decode_utf8_lossy().into_owned())).collect()
}

fn document(code: StatusCode, text: String) -> Answer {
    let body = Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {}).boxed();
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    answer
}

fn status(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message});
    document(StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), status.to_string())
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            match acceptor {
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, shared).await;
                    }
                }
                None => serve(stream, shared).await,
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(shared.answer(request).await) }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // A client that goes away is no failure of the server.
        _ = connection => {}
        _ = cuts.changed() => {}
    }
}

/// An authority of its own, and a certificate of it for loopback.
fn tls() -> (TlsAcceptor, String) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("the name is valid");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("key and certificate belong together");
    (TlsAcceptor::from(Arc::new(config)), made.cert.pem())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
