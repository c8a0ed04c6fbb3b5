//! A node behind a daemon's socket. Each call opens a connection.

use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, select};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use imagelet_core::{image::ByteSize, text::duration_text};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::{
    net::UnixStream,
    time::{Instant, timeout},
};

use super::{AnswerTime, Command};
use crate::{
    api::{BODY_BYTES_MAX, COMMANDS, EventLine, EventsRequest, Line, StatusRequest, Step, Steps, VERSION},
    failure::Failure,
};

/// Limit of one line of a reply. The list of ten thousand images is a line of about five megabytes.
const LINE_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Debug)]
pub struct RemoteNode {
    socket: PathBuf,
    /// How long the client waits for an answer, or for the next message of a long call.
    patience: Duration,
}

#[derive(Debug)]
pub enum Probed {
    Ours,
    OtherCri,
    Missing,
    /// The socket does not answer, or the user of this process may not connect.
    Silent(io::Error),
}

#[derive(Debug)]
enum CallError {
    NotOurs,
    Absent(io::Error),
    Silent,
    Broken(String),
    Unanswered(String),
}

impl RemoteNode {
    pub fn new(socket: &Path, patience: Duration) -> Self {
        Self { socket: socket.to_owned(), patience }
    }

    pub async fn probe(&self) -> Probed {
        match self.send(Method::GET, "", Vec::new()).await {
            Ok(_) | Err(CallError::Broken(_)) => Probed::Ours,
            // A gRPC server answers an HTTP/1 request with its HTTP/2 settings, or closes the connection.
            Err(CallError::NotOurs | CallError::Unanswered(_)) => Probed::OtherCri,
            Err(CallError::Absent(error)) if error.kind() == io::ErrorKind::NotFound => Probed::Missing,
            Err(CallError::Absent(error)) => Probed::Silent(error),
            Err(CallError::Silent) => {
                let message = format!("it did not answer a first call within {}", duration_text(self.patience));
                Probed::Silent(io::Error::new(io::ErrorKind::TimedOut, message))
            }
        }
    }

    pub fn unreachable(&self, error: &io::Error) -> Failure {
        Failure::because(format!("could not reach a daemon or runtime at `{}`", self.socket.display()), error)
            .or_hint(socket_hint(error, "start it, a daemon with `imagelet serve`, or work without one: `--store DIR`"))
    }

    pub(super) async fn ask<C: Command>(&self, command: C, steps: Steps) -> Result<C::Answer, Failure> {
        let note = |note: &str| steps(Step::Notice { note: note.to_owned() });
        self.call(C::NAME, &command, &*steps, C::TIME, &note).await
    }

    pub(super) async fn follow(
        &self,
        asked: &EventsRequest,
        hear: &(dyn Fn(EventLine) + Send + Sync),
        note: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), Failure> {
        let time = if asked.follow { AnswerTime::Unlimited } else { AnswerTime::Limited };
        let _: serde_json::Value = self.call(EventsRequest::NAME, asked, hear, time, note).await?;
        Ok(())
    }

    /// Runs a command. A call with a time limit fails after `patience`; a call without one then probes the daemon.
    async fn call<P: DeserializeOwned, A: DeserializeOwned>(
        &self,
        name: &str,
        arguments: &(impl Serialize + Sync),
        progress: &(dyn Fn(P) + Send + Sync),
        time: AnswerTime,
        note: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<A, Failure> {
        let body = serde_json::to_vec(arguments)
            .map_err(|_| Failure::new("Failed", format!("could not write the arguments of `{name}`")))?;
        // A daemon of a later version may send messages that this client does not know. They are ignored.
        let progress = |document: &RawValue| drop(serde_json::from_str(document.get()).map(progress));
        let answer = self.exchange((name, time), body, &progress, note).await?;
        serde_json::from_str(answer.get()).map_err(|error| Failure {
            causes: vec![error.to_string()],
            ..Failure::new("Failed", format!("could not read the answer of {}", self.name()))
        })
    }

    /// This function is not generic, so that it is compiled once for all commands.
    async fn exchange(
        &self,
        (name, time): (&str, AnswerTime),
        body: Vec<u8>,
        progress: &(dyn Fn(&RawValue) + Send + Sync),
        note: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Box<RawValue>, Failure> {
        let broken = |why: String| self.failed(name, CallError::Broken(why));
        if body.len() > BODY_BYTES_MAX {
            let (size, limit) = (ByteSize(body.len() as u64), ByteSize(BODY_BYTES_MAX as u64));
            let message = format!("the arguments of `{name}` have {size}; the limit is {limit}");
            return Err(Failure::new("InvalidArgument", message)
                .or_hint("shorten annotations and secrets, or work without the daemon: `--store DIR`"));
        }
        let due = Instant::now().checked_add(self.patience);
        let sent = self.send(Method::POST, &format!("/{name}"), body).await;
        let mut body = sent.map_err(|error| self.failed(name, error))?.into_body();
        let (mut read, mut searched, mut is_noted) = (BytesMut::new(), 0, false);
        loop {
            while let Some(end) = read[searched..].iter().position(|byte| *byte == b'\n') {
                let line = read.split_to(searched + end + 1);
                searched = 0;
                match serde_json::from_slice::<Line<&RawValue, &RawValue>>(&line) {
                    Ok(Line::Progress(document)) => progress(document),
                    Ok(Line::Result(document)) => return Ok(document.to_owned()),
                    Ok(Line::Failure(failure)) => return Err(failure),
                    // A daemon of a later version may send lines that this client does not know. They are ignored.
                    Err(_) => {}
                }
            }
            searched = read.len();
            let left = match due {
                Some(due) if time == AnswerTime::Limited => due.saturating_duration_since(Instant::now()),
                _ => self.patience,
            };
            match timeout(left, body.frame()).await {
                Ok(Some(Ok(frame))) => read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
                Ok(Some(Err(error))) => return Err(broken(error.to_string())),
                Ok(None) => return Err(broken("the daemon ended the call without an answer".into())),
                Err(_) if time == AnswerTime::Limited => return Err(self.failed(name, CallError::Silent)),
                Err(_) => {
                    let answers = self.send(Method::GET, "", Vec::new()).await.is_ok();
                    if !answers && time == AnswerTime::WhileAlive {
                        return Err(self.failed(name, CallError::Silent));
                    }
                    // A stream of events may be silent. Its silence is reported only if the daemon does not answer.
                    let is_news = !(answers && name == EventsRequest::NAME);
                    if is_news && !is_noted {
                        note(&self.silence(name, answers));
                    }
                    is_noted = is_news;
                }
            }
            if read.len() > LINE_BYTES_MAX {
                return Err(broken(format!("the answer has more than {}", ByteSize(LINE_BYTES_MAX as u64))));
            }
        }
    }

    fn name(&self) -> String {
        format!("the daemon at `{}`", self.socket.display())
    }

    fn silence(&self, name: &str, answers: bool) -> String {
        let (daemon, patience) = (self.name(), duration_text(self.patience));
        if answers {
            format!("no progress of `{name}` for {patience}; {daemon} answers, and the command waits")
        } else {
            format!("{daemon} does not answer; `{name}` waits for it and ends with Ctrl-C")
        }
    }

    fn failed(&self, name: &str, error: CallError) -> Failure {
        let daemon = self.name();
        match error {
            CallError::Absent(error) => self.unreachable(&error),
            CallError::Silent => {
                let message = format!("{daemon} did not answer `{name}` within {}", duration_text(self.patience));
                Failure::new("TimedOut", message).or_hint(match name {
                    StatusRequest::NAME => "see `systemctl status imagelet`; `--timeout` sets another limit",
                    _ => "`imagelet status` says whether its runtime answers; `--timeout` sets another limit",
                })
            }
            CallError::NotOurs => {
                Failure::new("Unsupported", format!("the server at `{}` is not imagelet", self.socket.display()))
            }
            CallError::Broken(why) | CallError::Unanswered(why) => {
                Failure { causes: vec![why], ..Failure::new("Unavailable", format!("{daemon} ended the command")) }
            }
        }
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Response<Incoming>, CallError> {
        // A failed connect has an error of its own, so that a missing daemon is not reported as a broken call.
        let stream = self.in_time(UnixStream::connect(&self.socket)).await?.map_err(CallError::Absent)?;
        let exchange = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let request = Request::builder().method(method).uri(format!("{COMMANDS}{path}"));
            let request = request.header(header::HOST, "localhost").body(Full::new(Bytes::from(body)));
            let answer = pin!(sender.send_request(request.expect("a path of names is a URI")));
            // One task polls both. If two do, hyper may lose a request that is sent while the connection fails, and
            // the answer never comes (hyperium/hyper#4122). A server of gRPC lets it fail, because it speaks first.
            match select(answer, connection).await {
                Either::Left((answer, connection)) => {
                    tokio::spawn(connection);
                    answer
                }
                Either::Right((_, answer)) => answer.await,
            }
        };
        let answer = self.in_time(exchange).await?.map_err(|error| {
            if error.is_parse() { CallError::NotOurs } else { CallError::Unanswered(error.to_string()) }
        })?;
        // The daemon's listener answers with these statuses before a route adds the version header.
        let is_ours = answer.headers().contains_key(VERSION.0)
            || matches!(
                answer.status(),
                StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::SERVICE_UNAVAILABLE
            );
        match answer.status() {
            _ if !is_ours => Err(CallError::NotOurs),
            StatusCode::OK => Ok(answer),
            status => Err(CallError::Broken(format!("the daemon answered {status}"))),
        }
    }

    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, CallError> {
        timeout(self.patience, work).await.map_err(|_| CallError::Silent)
    }
}

/// Returns the hint for a failed connection to a socket. `is_down` is the hint if no process listens on the socket.
pub fn socket_hint(error: &io::Error, is_down: &'static str) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "run the command as root or as the owner of the socket, or work without a daemon: `--store DIR`"
        }
        _ => is_down,
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::net::UnixListener as StdUnixListener, sync::Mutex, thread};

    use axum::{Router, body::Bytes as Body, extract::Path as UrlPath, routing::post};
    use serde_json::{Value, json};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::UnixListener,
    };
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        api::streamed,
        connections::{self, Limits},
    };

    /// The first frame of a gRPC server.
    const HTTP2_SETTINGS: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0";

    fn serve(path: &Path) -> tokio::task::JoinHandle<()> {
        let listener = UnixListener::bind(path).expect("a socket");
        let command = async |UrlPath(command): UrlPath<String>, body: Body| {
            streamed(|replies| async move {
                for step in [1, 2] {
                    replies.report(&step);
                    tokio::task::yield_now().await;
                }
                match command.as_str() {
                    "echo" => Ok(serde_json::from_slice::<Box<RawValue>>(&body).expect("a document")),
                    "recite" => {
                        // More than the buffer holds; none may be lost.
                        for line in 0..2000_u32 {
                            assert!(replies.deliver(&line).await);
                        }
                        Ok(RawValue::from_string("{}".into()).expect("a document"))
                    }
                    "fail" => Err(Failure::new("Failed", "why")),
                    _ => std::future::pending().await,
                }
            })
        };
        let probe = || async { [VERSION] };
        let router = Router::new().route(COMMANDS, axum::routing::get(probe));
        let router = router.route(&format!("{COMMANDS}/{{command}}"), post(command));
        tokio::spawn(connections::serve(listener, router, Limits::of_socket(usize::MAX), CancellationToken::new()))
    }

    async fn call(
        client: &RemoteNode,
        name: &str,
        time: AnswerTime,
        arguments: &Value,
    ) -> (Result<Value, Failure>, Vec<u32>, Vec<String>) {
        let (steps, notes) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let hear = |step: u32| steps.lock().expect("no panic").push(step);
        let note = |note: &str| notes.lock().expect("no panic").push(note.to_owned());
        let called = timeout(Duration::from_secs(4), client.call(name, arguments, &hear, time, &note)).await;
        let called = called.unwrap_or_else(|_| Err(Failure::new("Test", "it waits")));
        (called, steps.into_inner().expect("no panic"), notes.into_inner().expect("no panic"))
    }

    #[tokio::test]
    async fn a_server_of_grpc_is_another_one_whether_it_speaks_before_the_request_or_after_it() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("s.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        tokio::spawn(async move {
            for call in 0.. {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                if call % 2 == 1 {
                    stream.read_u8().await.expect("a request");
                }
                drop(stream.write_all(HTTP2_SETTINGS).await);
            }
        });
        let client = RemoteNode::new(&path, Duration::from_mins(1));
        for _ in 0..40 {
            let probed = client.probe().await;
            assert!(matches!(probed, Probed::OtherCri), "{probed:?}");
        }
    }

    /// Whether the request is lost depends on the timing of threads, so the test sends many.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_fails_while_the_request_is_sent_is_answered_at_once() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("s.sock");
        let listener = StdUnixListener::bind(&path).expect("a socket");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                thread::spawn(move || {
                    drop(stream.write_all(HTTP2_SETTINGS));
                    drop(io::copy(&mut stream, &mut io::sink()));
                });
            }
        });
        let client = RemoteNode::new(&path, Duration::from_mins(1));
        for call in 0..20_000 {
            let probed = client.probe().await;
            assert!(matches!(probed, Probed::OtherCri), "call {call}: {probed:?}");
        }
    }

    #[tokio::test]
    async fn a_call_tells_its_progress_and_ends_with_one_answer() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("s.sock");
        let served = serve(&path);
        let client = RemoteNode::new(&path, Duration::from_mins(1));
        let (answer, steps, _) = call(&client, "echo", AnswerTime::Limited, &json!({ "y": "a\nb" })).await;
        assert_eq!((answer.expect("a result"), steps), (json!({ "y": "a\nb" }), vec![1, 2]));
        let (answer, steps, _) = call(&client, "recite", AnswerTime::Unlimited, &json!({})).await;
        assert_eq!(answer.expect("a result"), json!({}));
        assert_eq!(steps[2..], (0..2000).collect::<Vec<_>>());
        let laid_out = Line::<(), _>::Result(RawValue::from_string("{\n \"y\": 1}".into()).expect("a document"));
        assert_eq!(laid_out.encoded(), "{\"result\":{  \"y\": 1}}\n", "a line end between tokens is a blank");
        assert!(matches!(client.probe().await, Probed::Ours));
        let (failed, ..) = call(&client, "fail", AnswerTime::Limited, &json!({})).await;
        assert_eq!(failed, Err(Failure::new("Failed", "why")));
        served.abort();
        let absent = RemoteNode::new(&folder.path().join("none.sock"), Duration::from_mins(1));
        let (called, ..) = call(&absent, "echo", AnswerTime::Limited, &json!({})).await;
        assert!(called.expect_err("it is absent").message.starts_with("could not reach"));
        assert!(matches!(absent.probe().await, Probed::Missing));
    }

    #[tokio::test]
    async fn silence_ends_a_call_or_is_asked_about() {
        const PATIENCE: Duration = Duration::from_secs(1);
        let folder = tempfile::tempdir().expect("a directory");
        let [deaf, slow] = ["deaf.sock", "slow.sock"].map(|name| folder.path().join(name));
        // The kernel accepts connections, and nothing reads them.
        let _deaf = UnixListener::bind(&deaf).expect("a socket");
        let served = serve(&slow);
        let silent = |called: Result<Value, Failure>| assert_eq!(called.expect_err("it hangs").reason, "TimedOut");

        let client = RemoteNode::new(&deaf, PATIENCE);
        assert!(matches!(client.probe().await, Probed::Silent(_)));
        for time in [AnswerTime::Limited, AnswerTime::Unlimited] {
            silent(call(&client, "hang", time, &json!({})).await.0);
        }
        let client = RemoteNode::new(&slow, PATIENCE);
        silent(call(&client, "hang", AnswerTime::Limited, &json!({})).await.0);
        let (waits, _, notes) = call(&client, "hang", AnswerTime::WhileAlive, &json!({})).await;
        assert_eq!(waits.expect_err("it hangs").reason, "Test", "the daemon answers other calls");
        assert!(notes.len() == 1 && notes[0].starts_with("no progress of `hang` for 1s"), "{notes:?}");
        let (_, _, notes) = call(&client, EventsRequest::NAME, AnswerTime::Unlimited, &json!({})).await;
        assert_eq!(notes, Vec::<String>::new(), "a daemon without events is as usual");
        served.abort();
    }

    #[tokio::test]
    async fn a_refusal_by_the_listener_is_a_broken_call_and_another_answer_is_of_another_server() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("s.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let client = RemoteNode::new(&path, Duration::from_mins(1));
        for (status, is_ours) in [(408, true), (413, true), (503, true), (404, false)] {
            let answer = async {
                let mut stream = listener.accept().await.expect("a client").0;
                assert!(stream.read(&mut [0; 1024]).await.expect("it sends") > 0);
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(head.as_bytes()).await.expect("it reads");
                stream
            };
            let (probed, _stream) = tokio::join!(client.probe(), answer);
            assert_eq!(matches!(probed, Probed::Ours), is_ours, "{status}");
            assert_eq!(matches!(probed, Probed::OtherCri), !is_ours, "{status}");
        }
    }
}
