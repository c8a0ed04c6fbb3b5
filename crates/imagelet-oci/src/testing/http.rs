//! HTTP/1.1 by hand: a server that must send what no HTTP library lets it send.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

const HEAD_BYTES_MAX: usize = 256 << 10;
const BODY_BYTES_MAX: usize = 1 << 20;
const TRICKLE_BYTES: usize = 4 << 10;
const TRICKLE_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) method: String,
    pub(super) path: String,
    headers: Vec<(String, String)>,
    pub(super) form: String,
}

impl ParsedRequest {
    /// A `GET` without a header.
    pub(super) fn plain(path: &str) -> Self {
        Self { method: "GET".to_owned(), path: path.to_owned(), headers: Vec::new(), form: String::new() }
    }

    /// A header by its name in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// First and last byte of the requested range, in a body of `total` bytes.
    pub(super) fn range(&self, total: usize) -> Option<(usize, usize)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let last = if last.is_empty() { total.checked_sub(1)? } else { last.parse().ok()? };
        Some((first.parse().ok().filter(|first| *first <= last)?, last)).filter(|(_, last)| *last < total)
    }
}

/// The next request of a connection; `None` at its end.
pub(super) async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> io::Result<Option<ParsedRequest>> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if buffer.len() > HEAD_BYTES_MAX || stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = buffer.split_to(end);
    let head = String::from_utf8_lossy(&head);
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().to_owned();
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut request = ParsedRequest { method, path, headers, form: String::new() };
    let length = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    while buffer.len() < length && length <= BODY_BYTES_MAX {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let form = buffer.split_to(length.min(buffer.len()));
    request.form = String::from_utf8_lossy(&form).into_owned();
    Ok(Some(request))
}

/// How a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Whole,
    /// This many bytes, then what [`BodyEnd`] says.
    Until(usize, BodyEnd),
    Chunked,
    /// Without a length: the end of the connection ends it.
    Unmeasured,
    Trickling,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    Close,
    Reset,
    Stall,
}

#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) delivery: Delivery,
    /// The length that the head declares, where it is not the body's.
    pub(super) declared: Option<usize>,
}

impl Reply {
    pub(super) fn new(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Self { status, headers, body: body.into(), delivery: Delivery::Whole, declared: None }
    }

    pub(super) fn status(status: u16) -> Self {
        let body = format!(r#"{{"errors":[{{"code":"FAULT","message":"status {status}"}}]}}"#);
        Self::new(status, "application/json", body)
    }

    /// Adds a header, or replaces it.
    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.retain(|(key, _)| key != name);
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    fn head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} Answer\r\n", self.status);
        for (name, value) in &self.headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        let length = self.declared.unwrap_or(self.body.len());
        let end = match self.delivery {
            Delivery::Chunked => "transfer-encoding: chunked\r\n\r\n".to_owned(),
            Delivery::Unmeasured => "connection: close\r\n\r\n".to_owned(),
            _ if self.status == 204 => "\r\n".to_owned(),
            _ => format!("content-length: {length}\r\n\r\n"),
        };
        head + &end
    }

    /// Sends the reply; what is left to do with the connection, or `None` when it can be used again.
    pub(super) async fn send(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        method: &str,
    ) -> io::Result<Option<BodyEnd>> {
        stream.write_all(self.head().as_bytes()).await?;
        if method == "HEAD" || self.status == 204 {
            return Ok(None);
        }
        match self.delivery {
            Delivery::Whole => stream.write_all(&self.body).await?,
            Delivery::Until(end, then) => {
                stream.write_all(&self.body[..end.min(self.body.len())]).await?;
                stream.flush().await?;
                return Ok(Some(then));
            }
            Delivery::Chunked => {
                for chunk in self.body.chunks(TRICKLE_BYTES) {
                    stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await?;
                    stream.write_all(chunk).await?;
                    stream.write_all(b"\r\n").await?;
                }
                stream.write_all(b"0\r\n\r\n").await?;
            }
            Delivery::Unmeasured => {
                stream.write_all(&self.body).await?;
                return Ok(Some(BodyEnd::Close));
            }
            Delivery::Trickling => {
                for chunk in self.body.chunks(TRICKLE_BYTES) {
                    stream.write_all(chunk).await?;
                    stream.flush().await?;
                    tokio::time::sleep(TRICKLE_PAUSE).await;
                }
            }
        }
        stream.flush().await?;
        let is_short = self.declared.is_some_and(|declared| declared != self.body.len());
        Ok(is_short.then_some(BodyEnd::Close))
    }
}
