//! One call that carries any command as JSON.
//!
//! **Invariant:** this file knows no command. It moves documents.

use std::{
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use hyper_util::rt::TokioIo;
use imagelet_core::image::ByteSize;
use tokio::{net::UnixStream, sync::mpsc, time::Instant};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{
    Code, Request, Response, Status, Streaming,
    codegen::http::{Uri, uri::PathAndQuery},
    service::Routes,
    transport::Channel,
};
use tonic_prost::ProstCodec;
use tower::service_fn;
use zeroize::Zeroizing;

use super::v1::{CallReply, CallRequest, call_reply::Reply};
use crate::failure::Failure;

/// The call of `proto/imagelet.proto`.
const CALL: &str = "/imagelet.v1.Node/Call";

pub const BODY_BYTES_MAX: usize = 1 << 20;
/// The longest command: its document, name and framing.
const REQUEST_BYTES_MAX: usize = BODY_BYTES_MAX + 4096;
/// The longest reply: a list of ten thousand images has about five megabytes.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// Flow-control window that fits a long list without a round trip.
const WINDOW_BYTES: u32 = 16 << 20;
/// Frame size of a reply: ten thousand images fit in a few frames.
const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Progress messages buffered for a slow reader; later ones are dropped.
const PROGRESS_WAITING_MAX: usize = 256;

#[derive(Clone, Debug)]
pub struct Replies {
    sender: mpsc::Sender<Result<CallReply, Status>>,
}

impl Replies {
    /// A channel inside this process, and the documents that a command sends through it.
    pub fn channel() -> (Self, impl Stream<Item = Vec<u8>> + Send + Unpin) {
        let (sender, receiver) = mpsc::channel(PROGRESS_WAITING_MAX);
        let documents = ReceiverStream::new(receiver).filter_map(|reply| match reply {
            Ok(CallReply { reply: Some(Reply::Progress(document)) }) => Some(document),
            _ => None,
        });
        (Self { sender }, documents)
    }

    /// Sends a message, or drops it where the reader is slow: the next one repeats the state.
    pub fn report(&self, document: Vec<u8>) {
        drop(self.sender.try_send(Ok(reply(Reply::Progress(document)))));
    }

    /// Sends a message once the reader has room. `false`: the reader has closed.
    pub async fn deliver(&self, document: Vec<u8>) -> bool {
        self.sender.send(Ok(reply(Reply::Progress(document)))).await.is_ok()
    }

    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs a command. Dropping the future cancels it.
    async fn handle(&self, command: &str, body: &[u8], replies: Replies) -> Result<Bytes, Refusal>;
}

#[derive(Debug)]
pub enum Refusal {
    Unknown(String),
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

#[derive(Debug)]
pub enum CallError {
    /// The server does not implement this interface.
    NotOurs,
    Absent(std::io::Error),
    Silent,
    Failed(Vec<u8>),
    Broken(String),
}

/// Adds the call to the services of a socket.
pub fn serve_calls(mut routes: Routes, handler: Arc<dyn Handler>) -> Routes {
    let call = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        let answer = service_fn(move |request| std::future::ready(answer(Arc::clone(&handler), request)));
        async move {
            let server = tonic::server::Grpc::new(ProstCodec::default())
                .max_decoding_message_size(REQUEST_BYTES_MAX)
                .max_encoding_message_size(REPLY_BYTES_MAX);
            Ok({ server }.server_streaming(answer, request).await)
        }
    });
    let router = std::mem::take(routes.axum_router_mut()).route_service(CALL, call);
    *routes.axum_router_mut() = router;
    routes
}

type ReplyStream = Pin<Box<dyn Stream<Item = Result<CallReply, Status>> + Send>>;

fn answer(handler: Arc<dyn Handler>, request: Request<CallRequest>) -> Result<Response<ReplyStream>, Status> {
    let CallRequest { command, body } = request.into_inner();
    if body.len() > BODY_BYTES_MAX {
        let (size, limit) = (ByteSize(body.len() as u64), ByteSize(BODY_BYTES_MAX as u64));
        let why = format!("a command's arguments have {size}; the limit is {limit}");
        return Err(Status::invalid_argument(why));
    }
    let (sender, receiver) = mpsc::channel(PROGRESS_WAITING_MAX);
    let replies = Replies { sender: sender.clone() };
    // The command runs inside the reply stream, so that a caller that disconnects cancels it.
    // Its result follows the progress through the same channel.
    let run = async move {
        // The body may contain a login.
        let body = Zeroizing::new(body);
        let result = match handler.handle(&command, &body, replies).await {
            Ok(document) => Ok(reply(Reply::Result(document))),
            Err(Refusal::Failed(failure)) => {
                Ok(reply(Reply::Failure(serde_json::to_vec(&failure).unwrap_or_default())))
            }
            Err(Refusal::Unknown(why)) => Err(Status::invalid_argument(why)),
        };
        drop(sender.send(result).await);
        None
    };
    let replies = ReceiverStream::new(receiver).map(Some);
    let all = futures_util::stream::select(replies, futures_util::stream::once(run));
    Ok(Response::new(Box::pin(all.filter_map(|reply| reply))))
}

fn reply(reply: Reply) -> CallReply {
    CallReply { reply: Some(reply) }
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

/// A daemon on a unix socket. Each call opens a connection; the first call after a probe reuses the probe's.
#[derive(Clone, Debug)]
pub struct Client {
    pub socket: PathBuf,
    pub patience: Duration,
    /// The connection of a successful probe, until the next call.
    probed: Arc<Mutex<Option<Channel>>>,
}

impl Client {
    pub fn new(socket: impl Into<PathBuf>, patience: Duration) -> Self {
        Self { socket: socket.into(), patience, probed: Arc::default() }
    }

    /// Sends an unknown command: only a server of this interface rejects it in the interface's words.
    pub async fn probe(&self) -> Result<(), CallError> {
        let channel = self.connect().await?;
        let answer = match self.begin(channel.clone(), "", Vec::new()).await {
            Ok(mut replies) => match self.in_time(replies.next()).await? {
                Some(Err(status)) => Err(refused(&status)),
                _ => Ok(()),
            },
            Err(error) => Err(error),
        };
        if !matches!(answer, Err(CallError::NotOurs | CallError::Silent)) {
            *self.probed.lock().unwrap_or_else(PoisonError::into_inner) = Some(channel);
        }
        answer
    }

    pub async fn call(
        &self,
        command: &str,
        body: Vec<u8>,
        progress: &(dyn Fn(&[u8]) + Send + Sync),
        wait: Wait<'_>,
    ) -> Result<Bytes, CallError> {
        let due = Instant::now().checked_add(self.patience);
        let probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let channel = match probed {
            Some(channel) => channel,
            None => self.connect().await?,
        };
        let mut replies = self.begin(channel, command, body).await?;
        loop {
            let left = match (wait, due) {
                (Wait::Whole, Some(due)) => due.saturating_duration_since(Instant::now()),
                _ => self.patience,
            };
            let message = match (tokio::time::timeout(left, replies.next()).await, wait) {
                (Ok(Some(message)), _) => message,
                (Ok(None), _) => break,
                (Err(_), Wait::Long(goes_on)) if goes_on(self.answers().await) => continue,
                (Err(_), _) => return Err(CallError::Silent),
            };
            match message.map_err(|status| refused(&status))?.reply {
                Some(Reply::Progress(document)) => progress(&document),
                Some(Reply::Result(document)) => return Ok(document),
                Some(Reply::Failure(document)) => return Err(CallError::Failed(document)),
                None => {}
            }
        }
        Err(CallError::Broken("the daemon ended the call without an answer".into()))
    }

    async fn begin(&self, channel: Channel, command: &str, body: Vec<u8>) -> Result<Streaming<CallReply>, CallError> {
        let request = CallRequest { command: command.to_owned(), body };
        let mut client = tonic::client::Grpc::new(channel)
            .max_decoding_message_size(REPLY_BYTES_MAX)
            .max_encoding_message_size(REQUEST_BYTES_MAX);
        let begun = async {
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            client.server_streaming(Request::new(request), PathAndQuery::from_static(CALL), ProstCodec::default()).await
        };
        Ok(self.in_time(begun).await?.map_err(|status| refused(&status))?.into_inner())
    }

    /// Whether the daemon answers another call meanwhile.
    async fn answers(&self) -> bool {
        let other = Self::new(&self.socket, self.patience);
        matches!(other.probe().await, Ok(()) | Err(CallError::Broken(_) | CallError::Failed(_)))
    }

    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, CallError> {
        tokio::time::timeout(self.patience, work).await.map_err(|_| CallError::Silent)
    }

    /// Connects by hand first: this distinguishes a socket without a listener from a broken call.
    async fn connect(&self) -> Result<Channel, CallError> {
        let stream = self.in_time(UnixStream::connect(&self.socket)).await?.map_err(CallError::Absent)?;
        let stream = Mutex::new(Some(stream));
        let connector = service_fn(move |_: Uri| {
            let stream = stream.lock().ok().and_then(|mut stream| stream.take());
            async move { stream.map(TokioIo::new).ok_or_else(|| std::io::Error::other("the connection is gone")) }
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://localhost")
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX);
        let connected = self.in_time(endpoint.connect_with_connector(connector)).await?;
        connected.map_err(|error| CallError::Broken(error.to_string()))
    }
}

fn refused(status: &Status) -> CallError {
    match status.code() {
        Code::Unimplemented => CallError::NotOurs,
        _ if status.message().is_empty() => CallError::Broken(format!("the daemon answered {:?}", status.code())),
        _ => CallError::Broken(status.message().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use tonic::transport::Server;

    use super::*;

    struct Echo;

    #[async_trait]
    impl Handler for Echo {
        async fn handle(&self, command: &str, body: &[u8], replies: Replies) -> Result<Bytes, Refusal> {
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
                    Ok(Bytes::new())
                }
                "fail" => Err(Failure::new("Failed", "why").into()),
                other => Err(Refusal::Unknown(format!("no command `{other}`"))),
            }
        }
    }

    #[tokio::test]
    async fn a_call_tells_its_progress_and_ends_with_one_answer() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("s.sock");
        let listener = tokio::net::UnixListener::bind(&path).expect("a socket");
        let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
        let server = Server::builder().add_routes(serve_calls(Routes::default(), Arc::new(Echo)));
        let served = tokio::spawn(server.serve_with_incoming(incoming));
        let client = Client::new(&path, Duration::from_mins(1));
        let steps = Mutex::new(Vec::new());
        let note = |step: &[u8]| steps.lock().expect("no panic").push(step.to_vec());
        assert_eq!(client.call("echo", b"x".to_vec(), &note, Wait::Whole).await.expect("a result"), "x");
        assert_eq!(*steps.lock().expect("no panic"), [b"1".to_vec(), b"2".to_vec()]);
        steps.lock().expect("no panic").clear();
        client.call("recite", Vec::new(), &note, Wait::Long(&|_| true)).await.expect("a result");
        let heard = steps.lock().expect("no panic").split_off(2);
        assert_eq!(heard, (0..2000_u32).map(|line| line.to_string().into_bytes()).collect::<Vec<_>>());
        assert!(matches!(client.probe().await, Ok(()) | Err(CallError::Broken(_))), "it is there");
        assert_eq!(
            client.call("echo", b"y".to_vec(), &note, Wait::Whole).await.expect("on the probe's connection"),
            "y"
        );
        assert_eq!(client.call("echo", b"z".to_vec(), &note, Wait::Whole).await.expect("on another one"), "z");
        let failed = client.call("fail", Vec::new(), &|_| {}, Wait::Whole).await;
        assert!(matches!(failed, Err(CallError::Failed(why)) if why == br#"{"message":"why","reason":"Failed"}"#));
        let unknown = client.call("frob", Vec::new(), &|_| {}, Wait::Whole).await;
        assert!(matches!(unknown, Err(CallError::Broken(why)) if why.contains("frob")));
        served.abort();
        let absent = Client::new(folder.path().join("none.sock"), Duration::from_mins(1));
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
        let listener = tokio::net::UnixListener::bind(&slow).expect("a socket");
        let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
        let server = Server::builder().add_routes(serve_calls(Routes::default(), Arc::new(Hangs)));
        let served = tokio::spawn(server.serve_with_incoming(incoming));

        let client = Client::new(&deaf, PATIENCE);
        assert!(matches!(client.probe().await, Err(CallError::Silent)));
        for wait in [Wait::Whole, Wait::Long(&|_| panic!("its answer has not begun"))] {
            let answer = client.call("hang", Vec::new(), &|_| {}, wait).await;
            assert!(matches!(answer, Err(CallError::Silent)), "{answer:?}");
        }

        let client = Client::new(&slow, PATIENCE);
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

    struct Hangs;

    #[async_trait]
    impl Handler for Hangs {
        async fn handle(&self, command: &str, _: &[u8], _: Replies) -> Result<Bytes, Refusal> {
            match command {
                "hang" => std::future::pending().await,
                other => Err(Refusal::Unknown(format!("no command `{other}`"))),
            }
        }
    }
}
