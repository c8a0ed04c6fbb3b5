//! The responses of a registry: the right one, and what a step of a fault makes of it.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use bytes::Bytes;
use imagelet_core::image::Digest;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::{
    fault::Act,
    http::{BodyEnd, Delivery, ParsedRequest, Reply},
    image::TestImage,
};

const LONG: usize = 60_000;
const HEAD_BYTES: usize = 20 << 20;
const HEAD_PAUSE: Duration = Duration::from_millis(50);

/// What to do with a request.
#[derive(Debug)]
pub(super) enum Outcome {
    Reply(Reply),
    /// These acts send no response.
    Raw(Act),
}

/// What the values of headers name.
#[derive(Debug)]
pub(super) struct Values<'a> {
    pub(super) own: &'a str,
    pub(super) storage: &'a str,
    pub(super) path: &'a str,
}

impl Values<'_> {
    fn fill(&self, text: &str) -> String {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let now = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(1));
        let long = if text.contains("{long}") { "x".repeat(LONG) } else { String::new() };
        let mut filled = text.to_owned();
        for (key, value) in [
            ("{self}", self.own),
            ("{storage}", self.storage),
            ("{path}", self.path),
            ("{name}", name),
            ("{now}", &now),
            ("{long}", &long),
        ] {
            filled = filled.replace(key, value);
        }
        filled
    }
}

/// The content at a path: whole, or the requested range of it.
pub(super) fn content(image: &TestImage, request: &ParsedRequest) -> Reply {
    let path = request.path.split('?').next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    if path.contains("/manifests/") {
        let digest = Digest::of(&image.manifest).to_string();
        let is_known = TestImage::NAME.ends_with(&format!(":{name}")) || name == digest;
        if !is_known {
            return Reply::status(404);
        }
        let manifest = Reply::new(200, TestImage::MEDIA_TYPE, image.manifest.clone());
        return manifest.with("docker-content-digest", digest);
    }
    let Some(blob) = image.blob(name) else { return Reply::status(404) };
    ranged(&blob, request)
}

fn ranged(blob: &Bytes, request: &ParsedRequest) -> Reply {
    let total = blob.len();
    match request.range(total) {
        Some((first, last)) => Reply::new(206, "application/octet-stream", blob.slice(first..=last))
            .with("content-range", format!("bytes {first}-{last}/{total}")),
        None => Reply::new(200, "application/octet-stream", blob.clone()),
    }
}

/// What an act makes of the right response. `whole` is the content without regard to a range.
pub(super) fn perform(
    act: Act,
    right: Reply,
    whole: impl FnOnce() -> Reply,
    request: &ParsedRequest,
    values: &Values<'_>,
) -> Outcome {
    // A body ends at its place in the content, wherever the requested range begins.
    let first = request.range(usize::MAX).map_or(0, |(first, _)| first);
    let until = |place: usize, end| Delivery::Until(place.saturating_sub(first), end);
    let total = right.body.len();
    Outcome::Reply(match act {
        Act::Silence
        | Act::Close
        | Act::Reset
        | Act::Bytes(_)
        | Act::HeadStall
        | Act::HeadTrickle
        | Act::HeadHuge
        | Act::Informational => return Outcome::Raw(act),
        Act::Challenge | Act::ExpireTokens => challenge(values.own),
        Act::Status(status) => Reply::status(status),
        Act::StatusWith(status, name, value) => Reply::status(status).with(name, values.fill(value)),
        Act::Redirect(target) => Reply::status(307).with("location", values.fill(target)),
        Act::Header(name, value) => right.with(name, values.fill(value)),
        Act::Page(content_type, body) => Reply::new(200, content_type, body),
        Act::Spaces(count) => Reply { body: vec![b' '; count].into(), ..right },
        Act::Half => Reply { body: right.body.slice(..total / 2), ..right },
        Act::WrongBytes => Reply { body: right.body.iter().map(|byte| byte ^ 1).collect(), ..right },
        Act::Cut(place) => Reply { delivery: until(place, BodyEnd::Close), ..right },
        Act::ResetBody(place) => Reply { delivery: until(place, BodyEnd::Reset), ..right },
        Act::Stall(place) => Reply { delivery: until(place, BodyEnd::Stall), ..right },
        Act::DeclareLess => Reply { declared: Some(total / 2), ..right },
        Act::DeclareMore => Reply { declared: Some(total + 100), ..right },
        Act::Chunked => Reply { delivery: Delivery::Chunked, ..right },
        Act::Unmeasured => Reply { delivery: Delivery::Unmeasured, ..right },
        Act::NoContent => Reply { status: 204, body: Bytes::new(), ..right },
        Act::UnaskedRange => {
            let half = total / 2;
            let range = format!("bytes 0-{}/{total}", half.saturating_sub(1));
            Reply { status: 206, body: right.body.slice(..half), ..right }.with("content-range", range)
        }
        Act::IgnoreRange => whole(),
        Act::IgnoreRangeAndCut(place) => Reply { delivery: Delivery::Until(place, BodyEnd::Close), ..whole() },
        Act::WrongRange => right.with("content-range", "bytes 0-9/10"),
        Act::Gzip => Reply { body: gzip(&right.body), ..right }.with("content-encoding", "gzip"),
        Act::Trickle => Reply { delivery: Delivery::Trickling, ..right },
        Act::PostOnly if request.method == "POST" => right,
        Act::PostOnly => Reply::status(405),
    })
}

pub(super) fn challenge(own: &str) -> Reply {
    let challenge = format!(r#"Bearer realm="http://{own}/token",service="{own}",scope="repository:*:*""#);
    Reply::status(401).with("www-authenticate", challenge)
}

fn gzip(bytes: &[u8]) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all").into()
}

/// Sends what is no response; what is left to do with the connection.
pub(super) async fn send_raw(act: Act, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<BodyEnd> {
    match act {
        Act::Close => return Ok(BodyEnd::Close),
        Act::Reset => return Ok(BodyEnd::Reset),
        Act::Bytes(bytes) => {
            stream.write_all(bytes).await?;
            stream.flush().await?;
            return Ok(BodyEnd::Close);
        }
        Act::HeadStall => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-ty").await?,
        Act::HeadTrickle => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nx-slow: ").await?;
            loop {
                stream.write_all(b"a").await?;
                stream.flush().await?;
                tokio::time::sleep(HEAD_PAUSE).await;
            }
        }
        Act::HeadHuge => {
            let line = format!("x-large: {}\r\n", "a".repeat(8 << 10));
            stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            for _ in 0..HEAD_BYTES / line.len() {
                stream.write_all(line.as_bytes()).await?;
            }
            return Ok(BodyEnd::Close);
        }
        Act::Informational => loop {
            stream.write_all(&b"HTTP/1.1 100 Continue\r\n\r\n".repeat(100)).await?;
            stream.flush().await?;
            tokio::time::sleep(HEAD_PAUSE / 10).await;
        },
        _ => {}
    }
    stream.flush().await?;
    Ok(BodyEnd::Stall)
}

/// Waits until the client closes the connection.
pub(super) async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) {
    while stream.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {}
}
