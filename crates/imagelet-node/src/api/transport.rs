//! Commands over the daemon's socket: `POST /api/v1/commands/NAME` with the arguments as JSON, answered by lines of JSON.
//!
//! Each line is `{"progress": …}`; the last one is `{"result": …}` or `{"failure": …}`.
//!
//! **Invariant:** this file knows no command. It moves documents.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    extract::Path,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use imagelet_core::image::ByteSize;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{net::UnixStream, sync::mpsc, time::Instant};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::task::AbortOnDropHandle;
use zeroize::Zeroizing;

use crate::failure::Failure;

const COMMANDS: &str = "/api/v1/commands";
/// The header by which a client knows a daemon of this interface.
const VERSION: &str = "x-imagelet-version";
const LINES: &str = "application/x-ndjson";

pub const BODY_BYTES_MAX: usize = 1 << 20;
/// The longest line of a reply: a list of ten thousand images has about five megabytes.
const LINE_BYTES_MAX: usize = 64 << 20;
/// Progress messages buffered for a slow reader; later ones are dropped.
const PROGRESS_WAITING_MAX: usize = 256;
/// A client that reads nothing for so long loses its call.
const READ_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
enum Reply {
    Progress(Vec<u8>),
    Result(Bytes),
    Failure(Box<Failure>),
}

/// Takes the progress of a command.
#[derive(Clone, Debug)]
pub struct Replies {
    sender: mpsc::Sender<Reply>,
}

impl Replies {
    /// A channel inside this process, and the documents that a command sends through it.
    pub fn channel() -> (Self, impl Stream<Item = Vec<u8>> + Send + Unpin) {
        let (sender, receiver) = mpsc::channel(PROGRESS_WAITING_MAX);
        let documents = ReceiverStream::new(receiver).filter_map(|reply| match reply {
            Reply::Progress(document) => Some(document),
            Reply::Result(_) | Reply::Failure(_) => None,
        });
        (Self { sender }, documents)
    }

    /// Sends a message, or drops it where the reader is slow: the next one repeats the state.
    pub fn report(&self, document: Vec<u8>) {
        drop(self.sender.try_send(Reply::Progress(document)));
    }

    /// Sends a message once the reader has room. `false`: the reader has closed, or reads nothing for 30 s.
    pub async fn deliver(&self, document: Vec<u8>) -> bool {
        self.sender.send_timeout(Reply::Progress(document), READ_WITHIN).await.is_ok()
    }

    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs a command. Dropping the future cancels it.
    async fn handle(&self, command: &str, body: &[u8], replies: Replies) -> Result<Bytes, Failure>;
}

#[derive(Debug)]
pub enum CallError {
    /// The server does not implement this interface.
    NotOurs,
    Absent(std::io::Error),
    Silent,
    Failed(Failure),
    Broken(String),
    /// The connection ended before an answer.
    Unanswered(String),
}

/// Adds the commands to the routes of a socket.
pub(crate) fn serve_commands(router: Router, handler: Arc<dyn Handler>) -> Router {
    let version = [(VERSION, env!("CARGO_PKG_VERSION"))];
    router.route(COMMANDS, get(move || async move { version })).route(
        &format!("{COMMANDS}/{{command}}"),
        post(async move |Path(command): Path<String>, body: Bytes| answer(handler, command, body)),
    )
}

fn answer(handler: Arc<dyn Handler>, command: String, body: Bytes) -> Response {
    let (sender, receiver) = mpsc::channel(PROGRESS_WAITING_MAX);
    // The body may contain a login.
    let body = Zeroizing::new(Vec::from(body));
    // The result follows the progress through the same channel.
    let run = async move {
        let reply = if body.len() > BODY_BYTES_MAX {
            let (size, limit) = (ByteSize(body.len() as u64), ByteSize(BODY_BYTES_MAX as u64));
            let message = format!("a command's arguments have {size}; the limit is {limit}");
            Reply::Failure(Box::new(Failure::new("InvalidArgument", message)))
        } else {
            match handler.handle(&command, &body, Replies { sender: sender.clone() }).await {
                Ok(document) => Reply::Result(document),
                Err(failure) => Reply::Failure(Box::new(failure)),
            }
        };
        drop(sender.send_timeout(reply, READ_WITHIN).await);
    };
    // A task of its own: a client that does not read holds up no command. The body of the answer owns it, so that a client
    // that disconnects cancels the command.
    let task = AbortOnDropHandle::new(tokio::spawn(run));
    let lines = ReceiverStream::new(receiver).map(move |reply| {
        let _ = &task;
        Ok::<_, std::convert::Infallible>(line(reply))
    });
    let headers = [(header::CONTENT_TYPE.as_str(), LINES), (VERSION, env!("CARGO_PKG_VERSION"))];
    (headers, Body::from_stream(lines)).into_response()
}

fn line(reply: Reply) -> Bytes {
    let (kind, document) = match reply {
        Reply::Progress(document) => ("progress", document.into()),
        Reply::Result(document) => ("result", document),
        Reply::Failure(failure) => ("failure", serde_json::to_vec(&failure).unwrap_or_default().into()),
    };
    let mut line = Vec::with_capacity(document.len() + 16);
    line.extend_from_slice(format!("{{\"{kind}\":").as_bytes());
    // Between the tokens of a document a line end is a blank like any other; inside a text it is escaped.
    line.extend(document.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
    line.extend_from_slice(b"}\n");
    line.into()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line<'a> {
    #[serde(borrow)]
    Progress(&'a RawValue),
    #[serde(borrow)]
    Result(&'a RawValue),
    Failure(Failure),
}

/// How long a call waits. The start of the reply is due within the client's patience in both cases.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub enum Wait<'a> {
    /// The whole reply is due within the client's patience.
    Whole,
    /// No limit. After each silence of the client's patience the daemon is probed, and this is called with whether it
    /// answered; `false` ends the call.
    Long(&'a (dyn Fn(bool) -> bool + Send + Sync)),
}

/// A daemon on a unix socket. Each call opens a connection.
#[derive(Clone, Debug)]
pub struct Client {
    pub socket: PathBuf,
    pub patience: Duration,
}

impl Client {
    pub async fn probe(&self) -> Result<(), CallError> {
        // A server of gRPC speaks first, or closes at a request of HTTP/1.
        let probed = self.send(http::Method::GET, "", Vec::new()).await.map(drop);
        probed.map_err(|error| if let CallError::Unanswered(_) = error { CallError::NotOurs } else { error })
    }

    /// Sends a command, and returns the document of its result.
    pub async fn call(
        &self,
        command: &str,
        body: Vec<u8>,
        progress: &(dyn Fn(&[u8]) + Send + Sync),
        wait: Wait<'_>,
    ) -> Result<Bytes, CallError> {
        let due = Instant::now().checked_add(self.patience);
        let mut body = self.send(http::Method::POST, &format!("/{command}"), body).await?.into_body();
        let (mut read, mut searched) = (BytesMut::new(), 0);
        loop {
            while let Some(end) = read[searched..].iter().position(|byte| *byte == b'\n') {
                let line = read.split_to(searched + end + 1);
                searched = 0;
                match serde_json::from_slice(&line) {
                    Ok(Line::Progress(document)) => progress(document.get().as_bytes()),
                    Ok(Line::Result(document)) => return Ok(Bytes::copy_from_slice(document.get().as_bytes())),
                    Ok(Line::Failure(failure)) => return Err(CallError::Failed(failure)),
                    // A later version may send other lines.
                    Err(_) => {}
                }
            }
            searched = read.len();
            let left = match (wait, due) {
                (Wait::Whole, Some(due)) => due.saturating_duration_since(Instant::now()),
                _ => self.patience,
            };
            match (tokio::time::timeout(left, body.frame()).await, wait) {
                (Ok(Some(Ok(frame))), _) => read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
                (Ok(Some(Err(error))), _) => return Err(CallError::Broken(error.to_string())),
                (Ok(None), _) => return Err(CallError::Broken("the daemon ended the call without an answer".into())),
                (Err(_), Wait::Long(goes_on)) if goes_on(self.probe().await.is_ok()) => {}
                (Err(_), _) => return Err(CallError::Silent),
            }
            if read.len() > LINE_BYTES_MAX {
                let limit = ByteSize(LINE_BYTES_MAX as u64);
                return Err(CallError::Broken(format!("the answer has more than {limit}")));
            }
        }
    }

    /// Connects, sends a request and waits for the head of the answer.
    async fn send(
        &self,
        method: http::Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<http::Response<Incoming>, CallError> {
        // A socket without a listener is distinguished from a broken call.
        let stream = self.in_time(UnixStream::connect(&self.socket)).await?.map_err(CallError::Absent)?;
        let exchange = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let request = Request::builder().method(method).uri(format!("{COMMANDS}{path}"));
            let request = request.header(header::HOST, "localhost").body(Full::new(Bytes::from(body)));
            sender.send_request(request.expect("a path of names is a URI")).await
        };
        match self.in_time(exchange).await? {
            Ok(answer) if answer.status() == StatusCode::OK && answer.headers().contains_key(VERSION) => Ok(answer),
            // A listener refuses by these without the routes and their header.
            Ok(answer)
                if answer.headers().contains_key(VERSION)
                    || matches!(
                        answer.status(),
                        StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::SERVICE_UNAVAILABLE
                    ) =>
            {
                Err(CallError::Broken(format!("the daemon answered {}", answer.status())))
            }
            Ok(_) => Err(CallError::NotOurs),
            Err(error) if error.is_parse() => Err(CallError::NotOurs),
            Err(error) => Err(CallError::Unanswered(error.to_string())),
        }
    }

    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, CallError> {
        tokio::time::timeout(self.patience, work).await.map_err(|_| CallError::Silent)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::UnixListener,
    };

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::connections::Limits;

    fn serve(path: &std::path::Path, handler: impl Handler) -> tokio::task::JoinHandle<()> {
        let listener = UnixListener::bind(path).expect("a socket");
        let router = serve_commands(Router::new(), Arc::new(handler));
        tokio::spawn(crate::connections::serve(listener, router, Limits::of_socket(), CancellationToken::new()))
    }

    fn client_of(path: impl Into<PathBuf>, patience: Duration) -> Client {
        Client { socket: path.into(), patience }
    }

    struct Echo;

    #[async_trait]
    impl Handler for Echo {
        async fn handle(&self, command: &str, body: &[u8], replies: Replies) -> Result<Bytes, Failure> {
            for step in [b"1".to_vec(), b"2".to_vec()] {
                replies.report(step);
                tokio::task::yield_now().await;
            }
            match command {
                "echo" => Ok(Bytes::copy_from_slice(body)),
                "recite" => {
                    // More than the buffer holds; none may be lost.
                    for line in 0..2000_u32 {
                        assert!(replies.deliver(line.to_string().into_bytes()).await);
                    }
                    Ok(Bytes::from_static(b"{}"))
                }
                "fail" => Err(Failure::new("Failed", "why")),
                other => Err(Failure::new("Unsupported", format!("no command `{other}`"))),
            }
        }
    }

    #[tokio::test]
    async fn a_server_of_grpc_is_another_one_whether_it_speaks_before_the_request_or_after_it() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("s.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        tokio::spawn(async move {
            for call in 0.. {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                if call % 2 == 1 {
                    stream.read_u8().await.expect("a request");
                }
                // The settings of HTTP/2, as a server sends them first.
                drop(stream.write_all(b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0").await);
            }
        });
        let client = client_of(&path, Duration::from_mins(1));
        for _ in 0..40 {
            let probed = client.probe().await;
            assert!(matches!(probed, Err(CallError::NotOurs)), "{probed:?}");
        }
    }

    #[tokio::test]
    async fn a_call_tells_its_progress_and_ends_with_one_answer() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("s.sock");
        let served = serve(&path, Echo);
        let client = client_of(&path, Duration::from_mins(1));
        let steps = Mutex::new(Vec::new());
        let note = |step: &[u8]| steps.lock().expect("no panic").push(step.to_vec());
        assert_eq!(client.call("echo", b"1".to_vec(), &note, Wait::Whole).await.expect("a result"), "1");
        assert_eq!(*steps.lock().expect("no panic"), [b"1".to_vec(), b"2".to_vec()]);
        steps.lock().expect("no panic").clear();
        client.call("recite", Vec::new(), &note, Wait::Long(&|_| true)).await.expect("a result");
        let heard = steps.lock().expect("no panic").split_off(2);
        assert_eq!(heard, (0..2000_u32).map(|line| line.to_string().into_bytes()).collect::<Vec<_>>());
        client.probe().await.expect("it is there");
        let laid_out = client.call("echo", b"{\n \"y\": \"a\\nb\"}".to_vec(), &note, Wait::Whole).await;
        assert_eq!(laid_out.expect("a result"), "{  \"y\": \"a\\nb\"}", "a line end between tokens is a blank");
        let failed = client.call("fail", Vec::new(), &|_| {}, Wait::Whole).await;
        assert!(matches!(failed, Err(CallError::Failed(why)) if why == Failure::new("Failed", "why")));
        let unknown = client.call("frob", Vec::new(), &|_| {}, Wait::Whole).await;
        assert!(matches!(unknown, Err(CallError::Failed(why)) if why.message.contains("frob")));
        served.abort();
        let absent = client_of(folder.path().join("none.sock"), Duration::from_mins(1));
        let called = absent.call("echo", Vec::new(), &|_| {}, Wait::Whole).await;
        assert!(matches!(called, Err(CallError::Absent(_))));
        let absent = absent.probe().await;
        assert!(matches!(absent, Err(CallError::Absent(_))));
    }

    #[tokio::test]
    async fn silence_ends_a_call_or_is_asked_about() {
        const PATIENCE: Duration = Duration::from_secs(1);
        let folder = tempfile::tempdir().expect("a directory");
        let [deaf, slow] = ["deaf.sock", "slow.sock"].map(|name| folder.path().join(name));
        // The kernel accepts connections, and nothing reads them.
        let _deaf = tokio::net::UnixListener::bind(&deaf).expect("a socket");
        let served = serve(&slow, Hangs);

        let client = client_of(&deaf, PATIENCE);
        assert!(matches!(client.probe().await, Err(CallError::Silent)));
        for wait in [Wait::Whole, Wait::Long(&|_| panic!("its answer has not begun"))] {
            let answer = client.call("hang", Vec::new(), &|_| {}, wait).await;
            assert!(matches!(answer, Err(CallError::Silent)), "{answer:?}");
        }

        let client = client_of(&slow, PATIENCE);
        let answer = client.call("hang", Vec::new(), &|_| {}, Wait::Whole).await;
        assert!(matches!(answer, Err(CallError::Silent)), "{answer:?}");
        let probes = Mutex::new(Vec::new());
        let twice = |answers| {
            let mut probes = probes.lock().expect("no panic");
            probes.push(answers);
            probes.len() < 2
        };
        let answer = client.call("hang", Vec::new(), &|_| {}, Wait::Long(&twice)).await;
        assert!(matches!(answer, Err(CallError::Silent)), "{answer:?}");
        assert_eq!(*probes.lock().expect("no panic"), [true, true], "the daemon answers other calls");
        served.abort();
    }

    #[tokio::test]
    async fn a_refusal_by_the_listener_is_a_broken_call_and_another_answer_is_of_another_server() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("s.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let client = client_of(path, Duration::from_mins(1));
        for (status, is_broken) in [(408, true), (413, true), (503, true), (404, false)] {
            let answer = async {
                let mut stream = listener.accept().await.expect("a client").0;
                assert!(stream.read(&mut [0; 1024]).await.expect("it sends") > 0);
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(head.as_bytes()).await.expect("it reads");
                stream
            };
            let (probed, _stream) = tokio::join!(client.probe(), answer);
            match probed {
                Err(CallError::Broken(_)) => assert!(is_broken, "{status}"),
                Err(CallError::NotOurs) => assert!(!is_broken, "{status}"),
                other => panic!("{status}: {other:?}"),
            }
        }
    }

    /// Delivers until it is refused, and records how often.
    struct Floods(Arc<Mutex<Option<usize>>>);

    #[async_trait]
    impl Handler for Floods {
        async fn handle(&self, _: &str, _: &[u8], replies: Replies) -> Result<Bytes, Failure> {
            let mut delivered = 0;
            while replies.deliver(b"1".to_vec()).await {
                delivered += 1;
            }
            *self.0.lock().expect("no panic") = Some(delivered);
            Ok(Bytes::new())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_halts_no_command_and_one_that_disconnects_cancels_it() {
        let ended = Arc::new(Mutex::new(None));
        let floods = || answer(Arc::new(Floods(Arc::clone(&ended))), "flood".into(), Bytes::new());
        let unread = floods();
        tokio::time::sleep(READ_WITHIN + Duration::from_secs(1)).await;
        assert_eq!(ended.lock().expect("no panic").take(), Some(PROGRESS_WAITING_MAX));
        drop(unread);
        drop(floods());
        tokio::time::sleep(READ_WITHIN * 2).await;
        assert_eq!(*ended.lock().expect("no panic"), None, "it is cancelled");
    }

    struct Hangs;

    #[async_trait]
    impl Handler for Hangs {
        async fn handle(&self, command: &str, _: &[u8], _: Replies) -> Result<Bytes, Failure> {
            match command {
                "hang" => std::future::pending().await,
                other => Err(Failure::new("Unsupported", format!("no command `{other}`"))),
            }
        }
    }
}
