//! A registry that repeats what it is shown, in every answer it can.

use std::{
    collections::BTreeMap,
    io::{BufReader, Write as _},
    net::TcpStream,
    sync::{Arc, Mutex},
};

use crate::{
    fake_registry::{Listening, Request, Serving, read_request},
    images::Image,
};

/// How a repository answers; its name begins with one of these.
pub(super) const WAYS: [&str; 15] = [
    // Those that fail at a layer come first: once it is here, nobody asks for it.
    "redirect-refused",
    "redirect-nowhere",
    "cut",
    "redirect",
    "basic",
    "bearer",
    "echo-basic",
    "echo-bearer",
    "page-basic",
    "challenge",
    "token-broken",
    "token-text",
    "token-echo",
    "token-refused",
    "teapot",
];

/// A pull repeats what fails like an outage for as long as its retry budget lasts: so many times it fails like one, then it
/// is refused, and so on.
const OUTAGES: u32 = 2;

/// What the registry's own secrets are.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// Of the token service.
    pub(super) token: String,
    /// In the addresses it sends to.
    pub(super) signature: String,
}

#[derive(Debug)]
struct State {
    own: Own,
    address: String,
    /// Manifests and blobs by what follows the repository.
    served: BTreeMap<String, (String, Vec<u8>)>,
    /// What came in `Authorization`, so that a test can tell that it came.
    shown: Vec<String>,
    /// By path: requests whose answer was an outage or the refusal after it.
    outages: BTreeMap<String, u32>,
}

impl State {
    fn is_outage_over(&mut self, path: &str) -> bool {
        let count = self.outages.entry(path.to_owned()).or_default();
        *count += 1;
        count.is_multiple_of(OUTAGES + 1)
    }
}

/// Serves on a free port until dropped.
#[derive(Debug)]
pub(super) struct EchoRegistry {
    pub(super) address: String,
    state: Arc<Mutex<State>>,
    _serving: Serving,
}

/// All a registry could repeat.
fn everything(request: &Request) -> String {
    let headers: Vec<String> = request.headers.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    format!("{} {} {} {}", request.method, request.path, headers.join(" "), request.body)
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Less than the body is sent, and the connection ends.
    cut: bool,
}

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), cut: false }
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

impl EchoRegistry {
    pub(super) fn start(own: Own, image: &Image) -> Self {
        let listening = Listening::bind();
        let address = listening.address.clone();
        let mut served = BTreeMap::new();
        let manifest = (image.manifest.media_type.clone(), image.manifest.bytes.clone());
        served.insert("manifests/v1".to_owned(), manifest.clone());
        served.insert(format!("manifests/{}", image.manifest.digest), manifest);
        for blob in image.layers.iter().chain([&image.config]) {
            let answer = ("application/octet-stream".to_owned(), blob.bytes.clone());
            served.insert(format!("blobs/{}", blob.digest), answer);
        }
        let state = State { own, address: address.clone(), served, shown: Vec::new(), outages: BTreeMap::new() };
        let state = Arc::new(Mutex::new(state));
        Self { address, _serving: listening.serve(&state, serve), state }
    }

    /// What was shown to it so far.
    pub(super) fn shown(&self) -> Vec<String> {
        self.state.lock().unwrap().shown.clone()
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        let answer = {
            let mut state = state.lock().expect("no request panics under the lock");
            state.shown.push(everything(&request));
            answer(&mut state, &request)
        };
        let mut head = format!("HTTP/1.1 {} Answer\r\nContent-Length: {}\r\n", answer.status, answer.body.len());
        for (name, value) in &answer.headers {
            head += name;
            head += ": ";
            head += value;
            head += "\r\n";
        }
        let mut stream = stream;
        stream.write_all(head.as_bytes())?;
        stream.write_all(b"\r\n")?;
        if request.method != "HEAD" {
            let end = if answer.cut { answer.body.len() / 2 } else { answer.body.len() };
            stream.write_all(&answer.body[..end])?;
        }
        if answer.cut {
            return Ok(());
        }
    }
    Ok(())
}

fn answer(state: &mut State, request: &Request) -> Answer {
    let Own { token, signature } = &state.own.clone();
    let echo = everything(request);
    let path = request.path.split('?').next().unwrap_or_default();
    if let Some(way) = path.strip_prefix("/token/") {
        return match way {
            "token-broken" => Answer::new(200, format!("{{\"access_token\": \"{token}\", \"token\": ")),
            "token-text" => Answer::new(200, token.clone()).header("Content-Type", "text/plain"),
            "token-echo" => Answer::new(401, errors(&echo)),
            "token-refused" => Answer::new(403, format!("{{\"access_token\":\"{token}\"}}")),
            _ => Answer::new(
                200,
                format!("{{\"token\": \"{token}\", \"access_token\": \"{token}\", \"expires_in\": 60}}"),
            ),
        };
    }
    if let Some(rest) = path.strip_prefix("/cdn/") {
        let (way, content) = rest.split_once('/').unwrap_or_default();
        return match state.served.get(content) {
            Some((kind, body)) if way == "redirect" => Answer::new(200, body.clone()).header("Content-Type", kind),
            _ => Answer::new(403, format!("SignatureDoesNotMatch {echo}")).header("Content-Type", "text/plain"),
        };
    }
    let Some(rest) = path.strip_prefix("/v2/").filter(|rest| !rest.is_empty()) else { return Answer::new(200, "{}") };
    let (way, content) = rest.split_once('/').unwrap_or_default();
    let content = content.split_once('/').map_or(content, |(_, content)| content);
    let wants_basic = way.contains("basic") || way == "challenge";
    let shown = request.header("authorization").unwrap_or_default();
    let is_shown = shown.starts_with(if wants_basic { "Basic " } else { "Bearer " });
    if !is_shown || way == "challenge" {
        let challenge = if wants_basic {
            format!("Basic realm=\"{}\"", if way == "challenge" { shown } else { "here" })
        } else {
            format!("Bearer realm=\"http://{}/token/{way}\",service=\"echo\"", state.address)
        };
        return Answer::new(401, errors(&echo)).header("WWW-Authenticate", challenge);
    }
    let is_blob = content.starts_with("blobs/");
    let location = format!("http://{}/cdn/{way}/{content}?X-Amz-Signature={signature}", state.address);
    let is_outage = way == "page-basic" || (is_blob && matches!(way, "cut" | "redirect-nowhere"));
    match way {
        "echo-basic" | "echo-bearer" => Answer::new(403, errors(&echo)),
        _ if is_outage && state.is_outage_over(path) => Answer::new(403, errors(&echo)),
        "page-basic" => Answer::new(500, echo).header("Content-Type", "text/plain"),
        "teapot" => Answer::new(418, shown.as_bytes().to_vec()).header("Docker-Distribution-Api-Version", shown),
        "redirect" | "redirect-refused" if is_blob => Answer::new(307, echo).header("Location", location),
        "redirect-nowhere" if is_blob => {
            Answer::new(307, "").header("Location", format!("http://user:{signature}@127.0.0.1:1/x?sig={signature}"))
        }
        _ => match state.served.get(content) {
            Some((kind, body)) => {
                let answer = Answer::new(200, body.clone()).header("Content-Type", kind);
                Answer { cut: way == "cut" && is_blob, ..answer }
            }
            None => Answer::new(404, errors(&echo)),
        },
    }
}

fn errors(message: &str) -> String {
    serde_json::json!({ "errors": [{ "code": "DENIED", "message": message, "detail": message }] }).to_string()
}
