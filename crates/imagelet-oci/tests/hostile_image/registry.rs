//! A registry on loopback that answers with whatever it is told, and remembers what it was asked.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use imagelet_core::image::Digest;

use super::image::Image;

/// One answer, to the letter.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    payload: Payload,
}

#[derive(Clone, Debug)]
enum Payload {
    /// With its length.
    Whole(Bytes),
    /// In pieces, without a length.
    Pieces(Bytes),
    /// These bytes first, then the others again and again.
    Endless(Bytes, Bytes),
}

impl Answer {
    pub(crate) fn ok(content_type: &str, body: impl Into<Bytes>) -> Self {
        let headers = if content_type.is_empty() { vec![] } else { vec![("content-type".into(), content_type.into())] };
        Self { status: 200, headers, payload: Payload::Whole(body.into()) }
    }

    pub(crate) fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The same body without a length before it.
    pub(crate) fn in_pieces(self) -> Self {
        let payload = match self.payload {
            Payload::Whole(bytes) => Payload::Pieces(bytes),
            other => other,
        };
        Self { payload, ..self }
    }

    pub(crate) fn endless(content_type: &str, first: impl Into<Bytes>, again: impl Into<Bytes>) -> Self {
        Self { payload: Payload::Endless(first.into(), again.into()), ..Self::ok(content_type, "") }
    }
}

impl Answer {
    /// What the body begins with.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match &self.payload {
            Payload::Whole(bytes) | Payload::Pieces(bytes) | Payload::Endless(bytes, _) => bytes.to_vec(),
        }
    }
}

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) with_credential: bool,
}

#[derive(Debug, Default)]
struct Shared {
    answers: Mutex<HashMap<String, Answer>>,
    asked: Mutex<Vec<Asked>>,
    /// Bytes of endless bodies that were handed to the transport.
    endless: AtomicU64,
}

/// The registry; it lives as long as its runtime.
#[derive(Debug)]
pub(crate) struct Registry {
    port: u16,
    shared: Arc<Shared>,
}

impl Registry {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let router = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, shared }
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What `path`, as it stands in the request line, is answered with.
    pub(crate) fn answer(&self, path: &str, answer: Answer) {
        self.shared.answers.lock().expect("no panic").insert(path.to_owned(), answer);
    }

    /// Serves an image as `NAME:v1` and by its digest.
    pub(crate) fn put(&self, name: &str, image: &Image) -> String {
        for (digest, answer) in image.blobs() {
            self.answer(&format!("/v2/{name}/blobs/{digest}"), answer);
        }
        for (digest, answer) in image.entries() {
            self.answer(&format!("/v2/{name}/manifests/{digest}"), answer);
        }
        let (bytes, content_type) = image.root();
        let answer = Answer::ok(&content_type, bytes.clone());
        self.answer(&format!("/v2/{name}/manifests/{}", Digest::of(&bytes)), answer.clone());
        self.answer(&format!("/v2/{name}/manifests/v1"), answer);
        format!("{}/{name}:v1", self.host())
    }

    /// What was asked since the last time.
    pub(crate) fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.shared.asked.lock().expect("no panic"))
    }

    /// Bytes of endless bodies sent so far.
    pub(crate) fn endless_sent(&self) -> u64 {
        self.shared.endless.load(Ordering::SeqCst)
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let with_credential = request.headers().contains_key(header::AUTHORIZATION);
    shared.asked.lock().expect("no panic").push(Asked { path: path.clone(), with_credential });
    let found = shared.answers.lock().expect("no panic").get(&path).cloned();
    let answer = found.unwrap_or_else(|| {
        Answer::ok("application/json", r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"unknown"}]}"#).status(404)
    });
    let body = match answer.payload {
        Payload::Whole(bytes) => Body::from(bytes),
        Payload::Pieces(bytes) => Body::from_stream(futures_util::stream::iter(
            (0..bytes.len())
                .step_by(64 << 10)
                .map(move |at| Ok::<_, std::io::Error>(bytes.slice(at..bytes.len().min(at + (64 << 10))))),
        )),
        Payload::Endless(first, again) => {
            let counted = futures_util::stream::repeat_with(move || {
                shared.endless.fetch_add(again.len() as u64, Ordering::SeqCst);
                Ok::<_, std::io::Error>(again.clone())
            });
            Body::from_stream(futures_util::stream::iter([Ok(first)]).chain(counted))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(answer.status).expect("a status");
    for (name, value) in answer.headers {
        let name: HeaderName = name.parse().expect("a header name");
        response.headers_mut().append(name, HeaderValue::from_str(&value).expect("a header value"));
    }
    response
}
