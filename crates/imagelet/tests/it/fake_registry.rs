//! A registry that counts its requests and lies as told: what no honest one would serve.
//!
//! `imagelet_oci::testing` has one image and runs in a test's own runtime; the tests in here serve many images to other
//! processes, hold and change single blobs, and have no runtime.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use imagelet_core::image::Digest;

use crate::{images::Image, testbed::wait_until};

/// Bytes written between two pauses of a slow answer.
const SLICE: usize = 64 << 10;
/// The first byte of a connection with TLS.
const TLS_HANDSHAKE: u8 = 0x16;

/// What is served at one path.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) media_type: String,
    pub(crate) body: Vec<u8>,
    /// Send only this many bytes of the body, then close.
    pub(crate) cut_at: Option<usize>,
    /// Send the body up to this byte, and then nothing while this answer is served.
    pub(crate) stall_at: Option<usize>,
    /// Wait this long between slices of the body.
    pub(crate) pause: Duration,
    /// Wait this long before the head.
    pub(crate) delay: Duration,
    /// The value of `Retry-After`.
    pub(crate) retry_after: Option<&'static str>,
}

impl Answer {
    pub(crate) fn ok(media_type: &str, body: &[u8]) -> Self {
        Self {
            status: 200,
            media_type: media_type.to_owned(),
            body: body.to_vec(),
            cut_at: None,
            stall_at: None,
            pause: Duration::ZERO,
            delay: Duration::ZERO,
            retry_after: None,
        }
    }

    pub(crate) fn status(status: u16, body: &str) -> Self {
        Self { status, ..Self::ok("application/json", body.as_bytes()) }
    }
}

#[derive(Debug, Default)]
struct State {
    answers: BTreeMap<String, Answer>,
    requests: Vec<String>,
    /// Bytes of bodies by path.
    sent: BTreeMap<String, u64>,
    held: BTreeSet<String>,
}

impl State {
    fn asked(&self, path: &str) -> usize {
        self.requests.iter().filter(|request| request.ends_with(path)).count()
    }
}

/// A blob that is not answered yet.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    registry: &'a FakeRegistry,
    path: String,
    asked_before: usize,
}

impl Held<'_> {
    /// Waits until somebody asks for it.
    pub(crate) fn until_asked(&self) {
        wait_until("a request for the held blob", || {
            self.registry.state.lock().unwrap().asked(&self.path) > self.asked_before
        });
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.registry.state.lock().expect("no request panics under the lock").held.remove(&self.path);
    }
}

/// Serves on a free port of 127.0.0.1 until dropped.
#[derive(Debug)]
pub(crate) struct FakeRegistry {
    address: String,
    state: Arc<Mutex<State>>,
    _serving: Serving,
}

impl FakeRegistry {
    pub(crate) fn start() -> Self {
        let listening = Listening::bind();
        let state = Arc::new(Mutex::new(State::default()));
        let address = listening.address.clone();
        Self { address, _serving: listening.serve(&state, serve), state }
    }

    /// Serves the image and answers its full name.
    pub(crate) fn put(&self, name: &str, image: &Image) -> String {
        let (repository, tag) = name.rsplit_once(':').expect("a name with a tag");
        let manifest = Answer::ok(&image.manifest.media_type, &image.manifest.bytes);
        self.answer(&format!("/v2/{repository}/manifests/{tag}"), manifest.clone());
        self.answer(&format!("/v2/{repository}/manifests/{}", image.manifest.digest), manifest);
        for blob in image.layers.iter().chain([&image.config]) {
            let path = format!("/v2/{repository}/blobs/{}", blob.digest);
            self.answer(&path, Answer::ok("application/octet-stream", &blob.bytes));
        }
        self.name(name)
    }

    /// Serves an index of images under one name; the first is the one for this machine.
    pub(crate) fn put_index(&self, name: &str, image: &Image, others: &[(&Image, &str)]) -> String {
        let (repository, tag) = name.rsplit_once(':').expect("a name with a tag");
        for one in others.iter().map(|(other, _)| *other).chain([image]) {
            self.put(name, one);
        }
        let index = image.index(others);
        for one in [tag, &index.digest] {
            self.answer(&format!("/v2/{repository}/manifests/{one}"), Answer::ok(&index.media_type, &index.bytes));
        }
        self.name(name)
    }

    /// `address/name`.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// Serves this at the path from now on.
    pub(crate) fn answer(&self, path: &str, answer: Answer) {
        self.state.lock().unwrap().answers.insert(path.to_owned(), answer);
    }

    /// Changes what is served for one blob of a repository.
    pub(crate) fn spoil(&self, repository: &str, digest: &str, edit: impl FnOnce(&mut Answer)) {
        let mut state = self.state.lock().unwrap();
        edit(state.answers.get_mut(&format!("/v2/{repository}/blobs/{digest}")).expect("the blob is served"));
    }

    /// Delays the head of each answer.
    pub(crate) fn delay(&self, delay: Duration) {
        self.state.lock().unwrap().answers.values_mut().for_each(|answer| answer.delay = delay);
    }

    /// Keeps whoever asks for this blob waiting until the answer is dropped.
    pub(crate) fn hold(&self, repository: &str, digest: &str) -> Held<'_> {
        let path = format!("/v2/{repository}/blobs/{digest}");
        let mut state = self.state.lock().unwrap();
        state.held.insert(path.clone());
        let asked_before = state.asked(&path);
        Held { registry: self, path, asked_before }
    }

    /// Bytes of a blob sent so far, in all answers together.
    pub(crate) fn sent(&self, repository: &str, digest: &str) -> u64 {
        self.state.lock().unwrap().sent.get(&format!("/v2/{repository}/blobs/{digest}")).copied().unwrap_or_default()
    }

    /// `METHOD path` of every request so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }
}

/// A free port of 127.0.0.1 that nobody answers on yet.
pub(crate) struct Listening {
    listener: TcpListener,
    pub(crate) address: String,
}

impl Listening {
    pub(crate) fn bind() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        Self { listener, address }
    }

    /// Answers each connection on a thread of its own.
    pub(crate) fn serve<S: Send + 'static>(
        self,
        state: &Arc<Mutex<S>>,
        serve: fn(&TcpStream, &Mutex<S>) -> std::io::Result<()>,
    ) -> Serving {
        let stopped = Arc::new(AtomicBool::new(false));
        let (shared, ended) = (Arc::clone(state), Arc::clone(&stopped));
        let Self { listener, address } = self;
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let state = Arc::clone(&shared);
                // A client that goes away in the middle is its own affair.
                thread::spawn(move || stream.and_then(|stream| serve(&stream, &state)));
            }
        });
        Serving { address, stopped }
    }
}

/// Takes connections until dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    address: String,
    stopped: Arc<AtomicBool>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the listener, so that it sees the flag.
        drop(TcpStream::connect(&self.address));
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    if reader.fill_buf()?.first() == Some(&TLS_HANDSHAKE) {
        // As servers of plain HTTP do: a client that may do so tries again without TLS.
        let mut stream = stream;
        return stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\nThis is no HTTPS server.\n");
    }
    loop {
        let Some(request) = read_request(&mut reader)? else { return Ok(()) };
        let (range, Request { method, path, .. }) = (request.range(), request);
        let answer = {
            let mut state = state.lock().expect("no request panics under the lock");
            state.requests.push(format!("{method} {path}"));
            state.answers.get(&path).cloned().unwrap_or_else(|| absent(&path))
        };
        while state.lock().expect("no request panics under the lock").held.contains(&path) {
            thread::sleep(Duration::from_millis(2));
        }
        thread::sleep(answer.delay);
        let end = write_answer(stream, &method, &answer, &range, |bytes| {
            *state.lock().expect("no request panics under the lock").sent.entry(path.clone()).or_default() += bytes;
        })?;
        match end {
            AnswerEnd::Whole => {}
            AnswerEnd::Cut => return Ok(()),
            AnswerEnd::Stalled => {
                while state
                    .lock()
                    .expect("no request panics under the lock")
                    .answers
                    .get(&path)
                    .and_then(|now| now.stall_at)
                    == answer.stall_at
                {
                    thread::sleep(Duration::from_millis(2));
                }
                return Ok(());
            }
        }
    }
}

fn absent(path: &str) -> Answer {
    match path {
        "/v2/" | "/v2" => Answer::status(200, "{}"),
        _ if path.contains("/manifests/") => {
            Answer::status(404, r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#)
        }
        _ => Answer::status(404, r#"{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown to registry"}]}"#),
    }
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The bytes asked for.
    fn range(&self) -> Range<usize> {
        let Some(asked) = self.header("range").and_then(|range| range.strip_prefix("bytes=")) else {
            return 0..usize::MAX;
        };
        let mut bounds = asked.split('-').map(|bound| bound.parse::<usize>().ok());
        let (first, last) = (bounds.next().flatten(), bounds.next().flatten());
        first.unwrap_or(0)..last.map_or(usize::MAX, |last| last + 1)
    }
}

/// `None` at the end of the connection.
pub(crate) fn read_request(reader: &mut BufReader<&TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.by_ref().take(8192).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = Request { method, path, headers: Vec::new(), body: String::new() };
    loop {
        let mut header = String::new();
        if reader.by_ref().take(8192).read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some((key, value)) = header.split_once(':') {
            request.headers.push((key.to_owned(), value.trim().to_owned()));
        }
    }
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0_u64);
    reader.take(length).read_to_string(&mut request.body)?;
    Ok(Some(request))
}

/// How the body ended; a connection can be used again after a whole one.
enum AnswerEnd {
    Whole,
    Cut,
    Stalled,
}

fn write_answer(
    mut stream: &TcpStream,
    method: &str,
    answer: &Answer,
    range: &Range<usize>,
    mut sent: impl FnMut(u64),
) -> std::io::Result<AnswerEnd> {
    let total = answer.body.len();
    let partial = *range != (0..usize::MAX) && range.start < total && answer.status == 200;
    let (first, last) = if partial { (range.start, range.end.min(total)) } else { (0, total) };
    let (status, body) = if partial { (206, &answer.body[first..last]) } else { (answer.status, &answer.body[..]) };
    let mut head = format!(
        "HTTP/1.1 {status} Answer\r\nContent-Type: {}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\n",
        answer.media_type,
        body.len()
    );
    if partial {
        write!(head, "Content-Range: bytes {first}-{}/{total}\r\n", last - 1).expect("a string takes all");
    }
    if answer.status == 200 && (answer.media_type.contains(".manifest.") || answer.media_type.contains(".index.")) {
        write!(head, "Docker-Content-Digest: {}\r\n", Digest::of(&answer.body)).expect("a string takes all");
    }
    if let Some(value) = answer.retry_after {
        write!(head, "Retry-After: {value}\r\n").expect("a string takes all");
    }
    head += "\r\n";
    stream.write_all(head.as_bytes())?;
    if method == "HEAD" {
        return Ok(AnswerEnd::Whole);
    }
    let bound = |at: Option<usize>| at.map_or(body.len(), |at| at.saturating_sub(first).min(body.len()));
    let end = bound(answer.cut_at).min(bound(answer.stall_at));
    for slice in body[..end].chunks(SLICE) {
        stream.write_all(slice)?;
        sent(slice.len() as u64);
        thread::sleep(answer.pause);
    }
    Ok(match end {
        end if end == body.len() => AnswerEnd::Whole,
        end if end == bound(answer.stall_at) => AnswerEnd::Stalled,
        _ => AnswerEnd::Cut,
    })
}
