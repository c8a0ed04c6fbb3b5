//! A fake API server on loopback or without a socket: objects of any collection, a token, TLS, and faults on request.
//!
//! It answers as a real server: pages, events since a resource version, bookmarks, `410 Gone` for a forgotten version
//! (also as an event of a running watch), `409 Conflict` for a stale write, server-side apply of one manager.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, channel::Channel, combinators::BoxBody};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use imagelet_core::lock::locked;
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

use super::{
    object_store::{ObjectStore, kind_of},
    requests::{self, ObjectPath, failure},
};

const PODS: &str = "/api/v1/pods";
const BODY_LENGTH_MAX: usize = 4 << 20;
const EVENTS_BUFFERED: usize = 64;

type Answer = Response<BoxBody<Bytes, std::io::Error>>;

#[derive(Clone, Debug, Default)]
pub struct FakeApiOptions {
    /// The required bearer token, or `None` if no token is required.
    pub token: Option<String>,
    /// Serves TLS with a certificate that the kubeconfig names.
    pub tls: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiFault {
    /// Answers with this status and message.
    Status(u16, String),
    /// Answers 200 with this text.
    Text(String),
    /// Never answers.
    Hang,
    /// A watch is closed at once, without an event.
    EmptyWatch,
}

/// An API server in this process. Dropping the value ends the server.
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
    objects: Mutex<ObjectStore>,
    /// The granted requests for tokens.
    tokens: Mutex<Vec<Value>>,
    faults: Mutex<VecDeque<ApiFault>>,
    /// The fault of every request while `faults` is empty.
    lasting: Mutex<Option<ApiFault>>,
    requests: Mutex<Vec<String>>,
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
            objects: Mutex::new(ObjectStore::new(100)),
            tokens: Mutex::default(),
            faults: Mutex::default(),
            lasting: Mutex::default(),
            requests: Mutex::default(),
            cuts: watch::Sender::new(0),
        });
        let listening = tokio::spawn(accept(listener, acceptor, Arc::clone(&shared))).abort_handle();
        Self { address, shared, authority, listening }
    }

    /// Writes a kubeconfig for this server into the folder.
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let token = self.shared.options.token.as_deref().unwrap_or_default();
        self.kubeconfig_with(folder, token)
    }

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

    /// A client that calls the server without a socket.
    pub fn client(&self) -> kube::Client {
        let shared = Arc::clone(&self.shared);
        let answer = tower::service_fn(move |request: Request<kube::client::Body>| {
            let shared = Arc::clone(&shared);
            async move { Ok::<_, Infallible>(shared.answer(request).await) }
        });
        kube::Client::new(answer, "default")
    }

    /// Adds a group with its version: `/apis/imagelet.dev/v1alpha1`.
    pub fn install(&self, group: &str) {
        self.shared.objects().install(group);
    }

    /// Creates or replaces a pod. The default namespace is `default`.
    pub fn apply(&self, mut pod: Value) {
        if pod["metadata"]["namespace"].is_null() {
            pod["metadata"]["namespace"] = "default".into();
        }
        self.put(PODS, pod);
    }

    /// Creates or replaces an object of a collection, such as `/api/v1/nodes`.
    pub fn put(&self, collection: &str, object: Value) {
        let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = (name("namespace"), name("name"));
        self.shared.objects().set(collection, &key, Some(object));
    }

    /// The granted requests for tokens.
    pub fn token_requests(&self) -> Vec<Value> {
        locked(&self.shared.tokens).clone()
    }

    pub fn events(&self) -> Vec<Value> {
        self.objects("/apis/events.k8s.io/v1/events")
    }

    pub fn object(&self, collection: &str, namespace: &str, name: &str) -> Option<Value> {
        let found = self.shared.objects().get(collection, &(namespace.to_owned(), name.to_owned()));
        found.map(|object| Value::clone(&object))
    }

    pub fn objects(&self, collection: &str) -> Vec<Value> {
        let found = self.shared.objects().log(collection).list(&super::object_store::Selector::default());
        found.into_iter().map(|object| Value::clone(&object)).collect()
    }

    /// The number of changes of all objects of a collection.
    pub fn changes(&self, collection: &str) -> usize {
        self.shared.objects().log(collection).changes()
    }

    pub fn delete(&self, collection: &str, namespace: &str, name: &str) {
        self.shared.objects().set(collection, &(namespace.to_owned(), name.to_owned()), None);
    }

    pub fn set_status(&self, namespace: &str, name: &str, status: &Value) {
        let mut pod = self.object(PODS, namespace, name).expect("the pod exists");
        pod["status"] = status.clone();
        self.put(PODS, pod);
    }

    /// Removes a pod.
    pub fn remove(&self, namespace: &str, name: &str) {
        self.delete(PODS, namespace, name);
    }

    pub fn bookmark(&self) {
        self.shared.objects().bookmark();
    }

    /// Forgets all versions so far, as an API server compacts its history.
    pub fn forget_history(&self) {
        self.shared.objects().forget();
    }

    pub fn cut_connections(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Adds a fault for the next request.
    pub fn plant(&self, fault: ApiFault) {
        locked(&self.shared.faults).push_back(fault);
    }

    /// Sets a fault for every request. `None` removes the fault.
    pub fn plant_lasting(&self, fault: Option<ApiFault>) {
        *locked(&self.shared.lasting) = fault;
    }

    /// The requests so far, as `METHOD PATH?QUERY`.
    pub fn requests(&self) -> Vec<String> {
        locked(&self.shared.requests).clone()
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut_connections();
    }
}

impl Shared {
    fn objects(&self) -> MutexGuard<'_, ObjectStore> {
        locked(&self.objects)
    }

    async fn answer<B>(self: &Arc<Self>, request: Request<B>) -> Answer
    where
        B: hyper::body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let (path, query) = (head.uri.path().to_owned(), query(head.uri.query().unwrap_or_default()));
        let place = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        locked(&self.requests).push(format!("{} {place}", head.method));
        let fault = locked(&self.faults).pop_front().or_else(|| locked(&self.lasting).clone());
        match fault {
            Some(ApiFault::Status(code, message)) => return document(failure(code, "", &message)),
            Some(ApiFault::Text(text)) => return text_answer(StatusCode::OK, text),
            Some(ApiFault::Hang) => return std::future::pending().await,
            Some(ApiFault::EmptyWatch) if query.contains_key("watch") => {
                return text_answer(StatusCode::OK, String::new());
            }
            Some(ApiFault::EmptyWatch) | None => {}
        }
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if let Some(token) = &self.options.token
            && header(header::AUTHORIZATION) != format!("Bearer {token}")
        {
            return document(failure(401, "Unauthorized", "Unauthorized"));
        }
        let body = http_body_util::Limited::new(body, BODY_LENGTH_MAX).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let path = percent_decode_str(&path).decode_utf8_lossy();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        if let (&Method::POST, ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"]) =
            (&head.method, &parts[..])
        {
            let account = self.objects().get("/api/v1/serviceaccounts", &((*namespace).to_owned(), (*name).to_owned()));
            return document(requests::issue_token(account.as_deref(), &mut locked(&self.tokens), &body));
        }
        let path = ObjectPath::parse(&path).filter(|path| self.objects().has(&path.collection));
        let Some(path) = path else {
            return document(failure(404, "NotFound", "the server could not find the requested resource"));
        };
        let is_metadata = header(header::ACCEPT).contains("as=PartialObjectMetadata");
        if head.method == Method::GET && path.name.is_none() {
            if query.contains_key("watch") {
                return self.watch(path, &query, is_metadata);
            }
            return self.list(&path, &query, is_metadata);
        }
        let content = header(header::CONTENT_TYPE);
        document(requests::answer(&mut self.objects(), &head.method, &path, content, &body))
    }

    fn list(&self, path: &ObjectPath, query: &BTreeMap<String, String>, is_metadata: bool) -> Answer {
        let mut store = self.objects();
        let version = store.version;
        let wanted = query.get("resourceVersion").and_then(|version| version.parse::<u64>().ok()).unwrap_or(0);
        if wanted > version {
            let message = format!("Timeout: Too large resource version: {wanted}, current: {version}");
            return document(failure(504, "Timeout", &message));
        }
        let mut items = store.log(&path.collection).list(&path.selector(query));
        drop(store);
        let mut metadata = json!({"resourceVersion": version.to_string()});
        let number = |key: &str| query.get(key).and_then(|text| text.parse::<usize>().ok());
        // A list with a resource version comes from the cache and has one page.
        if let Some(limit) = number("limit").filter(|_| !query.contains_key("resourceVersion")) {
            let from = number("continue").unwrap_or(0).min(items.len());
            let mut rest = items.split_off(from);
            if rest.len() > limit {
                rest.truncate(limit);
                metadata["continue"] = (from + limit).to_string().into();
            }
            items = rest;
        }
        let items: Vec<Value> = items.iter().map(|object| shown(object, is_metadata)).collect();
        let kind = format!("{}List", kind_of(&path.collection));
        let list = json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items});
        document((StatusCode::OK, list))
    }

    fn watch(self: &Arc<Self>, path: ObjectPath, query: &BTreeMap<String, String>, is_metadata: bool) -> Answer {
        let from = query.get("resourceVersion").and_then(|version| version.parse::<u64>().ok()).unwrap_or(0);
        let seconds = query.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(300);
        let selector = path.selector(query);
        let expired = |version: u64, oldest: u64| {
            failure(410, "Expired", &format!("too old resource version: {version} ({oldest})"))
        };
        let first = self.objects().log(&path.collection).events_after(from, &selector, &path.collection);
        if let Err(oldest) = first {
            return document(expired(from, oldest));
        }
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(EVENTS_BUFFERED);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let (mut changed, mut cuts) = (shared.objects().log(&path.collection).changed(), shared.cuts.subscribe());
            let mut sent = from;
            let replay = async {
                loop {
                    changed.borrow_and_update();
                    let (events, newest) = {
                        let mut store = shared.objects();
                        let newest = store.version;
                        (store.log(&path.collection).events_after(sent, &selector, &path.collection), newest)
                    };
                    let (events, is_over) = match events {
                        Ok(events) => (events, false),
                        Err(oldest) => (vec![json!({"type": "ERROR", "object": expired(sent, oldest).1})], true),
                    };
                    sent = newest;
                    for mut event in events {
                        if event["type"] != "ERROR" {
                            event["object"] = shown(&event["object"], is_metadata);
                        }
                        if sender.send_data(Bytes::from(format!("{event}\n"))).await.is_err() {
                            return;
                        }
                    }
                    if is_over || changed.changed().await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                _ = tokio::time::timeout(Duration::from_secs(seconds), replay) => {}
                _ = cuts.changed() => {}
            }
        });
        Response::new(body.boxed())
    }
}

/// The object, or only its metadata.
fn shown(object: &Value, is_metadata: bool) -> Value {
    if !is_metadata {
        return object.clone();
    }
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), percent_decode_str(value).decode_utf8_lossy().into_owned())).collect()
}

fn document((code, document): requests::Document) -> Answer {
    text_answer(code, document.to_string())
}

fn text_answer(code: StatusCode, text: String) -> Answer {
    let body = Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {}).boxed();
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    answer
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
        // A closed connection is no error of the server.
        _ = connection => {}
        _ = cuts.changed() => {}
    }
}

/// A self-signed certificate for loopback.
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
