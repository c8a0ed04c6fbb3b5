//! Reads blobs as one exact stream, however often the connection breaks.

pub(super) mod parallel;
mod range_concurrency;

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::{HeaderMap, Method, StatusCode, header};
use hyper::body::Incoming;
use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};

use super::{
    PullSession,
    connection::{
        reception::Silent,
        transport::{BodyReader, ReadError},
    },
    error::Failure,
    request::{Budget, Query},
    resolve::{about, verify},
};
use crate::manifest::{Descriptor, corrupt, unacceptable};

/// After this many bytes without a break, earlier breaks no longer count.
const REFILL_BYTES: u64 = 1 << 20;

impl PullSession {
    /// Fetches a small blob and verifies its size and digest. A mirror with wrong content is skipped.
    pub(crate) async fn fetch_blob_bytes(&self, descriptor: &Descriptor, limit: u64) -> Result<Bytes, RuntimeError> {
        let digest = &descriptor.digest;
        if descriptor.size > limit {
            let size = descriptor.size;
            return Err(unacceptable(format!("blob `{digest}` has {size} bytes; more than {limit} are refused")));
        }
        if let Some(archive) = self.archive() {
            let (archive, descriptor) = (Arc::clone(archive), descriptor.clone());
            return tokio::task::spawn_blocking(move || archive.read(&descriptor, limit))
                .await
                .map_err(|error| RuntimeError::defect("reading the archive was given up").caused_by(error))?;
        }
        let source = self.blob(descriptor);
        loop {
            match source.read_whole().await {
                Err(error) if error.kind() == RuntimeErrorKind::Corrupt && source.distrust_mirrors(&error) => {}
                other => return other,
            }
        }
    }

    pub(crate) fn blob(&self, descriptor: &Descriptor) -> BlobSource {
        BlobSource { session: self.clone(), descriptor: descriptor.clone(), notes: Arc::default() }
    }

    #[cfg(test)]
    /// Opens a blob at an offset. The stream enforces the size; the reader verifies the digest.
    pub(crate) async fn open_blob(&self, descriptor: &Descriptor, offset: u64) -> Result<BlobStream, RuntimeError> {
        let size = descriptor.size;
        if offset > size {
            let digest = &descriptor.digest;
            return Err(RuntimeError::other(format!(
                "blob `{digest}` has {size} bytes, and is asked for from {offset}"
            )));
        }
        let mut stream = self.blob(descriptor).stream(offset..size);
        stream.ready().await?;
        Ok(stream)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct BlobSource {
    session: PullSession,
    descriptor: Descriptor,
    notes: Arc<Mutex<HostNotes>>,
}

/// Hosts, as indices of the session's list.
#[derive(Debug, Default)]
struct HostNotes {
    served: BTreeSet<usize>,
    /// Hosts that sent wrong content; they are not used again.
    distrusted: BTreeSet<usize>,
    /// Hosts that stalled; they are retried only after every host stalled.
    stalled: BTreeSet<usize>,
}

impl BlobSource {
    pub(crate) fn size(&self) -> u64 {
        self.descriptor.size
    }

    /// A stream of a span. Sends no request yet.
    pub(crate) fn stream(&self, span: Range<u64>) -> BlobStream {
        BlobStream {
            source: self.clone(),
            body: None,
            place: String::new(),
            host: 0,
            body_reader: self.body_reader(),
            reached: span.start,
            end: span.end,
            is_open: false,
            unbroken: 0,
            budget: self.session.budget(),
        }
    }

    /// Excludes and logs the mirrors that sent bytes of a wrong blob.
    ///
    /// `false`: no mirror sent bytes, or no host is left.
    pub(crate) fn distrust_mirrors(&self, error: &RuntimeError) -> bool {
        let mut notes = self.notes();
        let served = std::mem::take(&mut notes.served);
        let mut found = false;
        for index in served {
            let host = &self.session.hosts()[index].host;
            if host.is_mirror && notes.distrusted.insert(index) {
                found = true;
                tracing::warn!(
                    mirror = host.origin.authority(),
                    blob = %self.descriptor.digest,
                    error = error.chain(),
                    "a mirror served another blob than was asked for, asking the next host"
                );
            }
        }
        let mut hosts = self.session.hosts().iter().enumerate();
        let left = hosts.any(|(index, host)| host.host.can_pull && !notes.distrusted.contains(&index));
        found && left
    }

    fn body_reader(&self) -> BodyReader {
        BodyReader::new(self.session.transport().progress_timeout, self.session.reception())
    }

    async fn read_whole(&self) -> Result<Bytes, RuntimeError> {
        let digest = &self.descriptor.digest;
        let mut stream = self.stream(0..self.descriptor.size);
        stream.ready().await?;
        let mut bytes = BytesMut::new();
        while let Some(chunk) = stream.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        verify(digest, &bytes).map_err(|error| about(error, &format!("blob `{digest}` is not what was asked for")))?;
        Ok(bytes.freeze())
    }

    fn notes(&self) -> MutexGuard<'_, HostNotes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct BlobStream {
    source: BlobSource,
    body: Option<Incoming>,
    /// The sender, and its index in the session's list.
    place: String,
    host: usize,
    body_reader: BodyReader,
    reached: u64,
    /// After the requested end when the host ignores ranges.
    end: u64,
    is_open: bool,
    unbroken: u64,
    budget: Budget,
}

impl BlobStream {
    /// Waits for the response head, so that an error of all hosts is known.
    pub(crate) async fn ready(&mut self) -> Result<(), RuntimeError> {
        let is_empty = self.reached == self.end && self.source.size() > 0;
        if self.is_open || is_empty {
            return Ok(());
        }
        self.open().await
    }

    /// The next bytes; `None` at the end of the span.
    ///
    /// A broken connection is resumed where it broke, with bounded retries. The time between calls does not count as
    /// silence. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, RuntimeError> {
        loop {
            let Some(body) = &mut self.body else {
                if self.reached == self.end {
                    return Ok(None);
                }
                self.open().await?;
                continue;
            };
            match self.body_reader.next(body).await {
                Ok(Some(chunk)) => return self.accept(chunk).map(Some),
                Ok(None) => {
                    self.body = None;
                    if self.reached < self.end {
                        return Err(self.wrong_size("only"));
                    }
                }
                Err(error) => {
                    self.body = None;
                    // The connection broke after the last byte: nothing is missing.
                    if self.reached < self.end {
                        self.broken(error).await?;
                    }
                }
            }
        }
    }

    fn accept(&mut self, chunk: Bytes) -> Result<Bytes, RuntimeError> {
        let length = chunk.len() as u64;
        if length > self.end - self.reached {
            self.reached += length;
            self.body = None;
            return Err(self.wrong_size("at least"));
        }
        self.reached += length;
        self.unbroken += length;
        if self.unbroken >= REFILL_BYTES {
            self.unbroken = 0;
            self.budget.refill();
        }
        Ok(chunk)
    }

    async fn broken(&mut self, error: ReadError) -> Result<(), RuntimeError> {
        self.unbroken = 0;
        if matches!(error, ReadError::Silent(Silent::Connection(_))) {
            self.source.notes().stalled.insert(self.host);
        }
        let Descriptor { digest, size, .. } = &self.source.descriptor;
        let what = format!("blob `{digest}` past byte {} of {size}", self.reached);
        let failure = error.failure(&what, &self.place);
        self.budget.pause(failure, &self.source.session).await
    }

    async fn open(&mut self) -> Result<(), RuntimeError> {
        let source = self.source.clone();
        let (session, size) = (&source.session, source.size());
        let span = self.reached..self.end;
        let query = Query {
            path: format!("blobs/{}", source.descriptor.digest),
            method: Method::GET,
            range: range_header(&span, size),
            is_tag: false,
            subject: format!("blob `{}` of `{}`", source.descriptor.digest, session.reference()),
        };
        let mut indexes = query.hosts(session)?;
        {
            let notes = source.notes();
            for avoided in [&notes.distrusted, &notes.stalled] {
                if indexes.iter().any(|index| !avoided.contains(index)) {
                    indexes.retain(|index| !avoided.contains(index));
                }
            }
        }
        let (query, span) = (&query, &span);
        let attempt = |index| {
            let opened = async move {
                let answer = session.send_to_host(index, query).await?;
                let end = check_head(answer.status, &answer.headers, span, size).map_err(|why| {
                    corrupt(format!("registry `{}` {why} for {}", answer.target.origin.authority(), query.subject))
                })?;
                Ok::<_, Failure>((index, answer, end))
            };
            opened.boxed()
        };
        let (index, answer, end) = session.first_success(&indexes, &mut self.budget, attempt).await?;
        source.notes().served.insert(index);
        (self.host, self.place) = (index, answer.target.origin.authority());
        (self.body, self.end, self.is_open) = (Some(answer.body), end, true);
        self.body_reader = source.body_reader();
        Ok(())
    }

    fn wrong_size(&self, bound: &str) -> RuntimeError {
        let Self { place, reached, end, .. } = self;
        let digest = &self.source.descriptor.digest;
        corrupt(format!("registry `{place}` sent {bound} {reached} bytes of blob `{digest}`, not {end}"))
    }
}

/// The `Range` header of a span; `None` for the whole blob, open-ended at the blob's end.
fn range_header(span: &Range<u64>, size: u64) -> Option<String> {
    match (span.start, span.end) {
        (0, end) if end == size => None,
        (start, end) if end == size => Some(format!("bytes={start}-")),
        (start, end) => Some(format!("bytes={start}-{}", end.saturating_sub(1))),
    }
}

/// Where the body ends, if the head promises exactly the span, or the whole blob for a request from offset 0.
fn check_head(status: StatusCode, headers: &HeaderMap, span: &Range<u64>, size: u64) -> Result<u64, String> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let Range { start, end } = *span;
    let is_whole = start == 0 && end == size;
    let end = match status {
        StatusCode::OK if start == 0 => size,
        StatusCode::OK => return Err(format!("ignored the range from byte {start}")),
        StatusCode::PARTIAL_CONTENT if !is_whole => {
            let range = text(header::CONTENT_RANGE).unwrap_or_default();
            if !is_span(range, span, size) {
                let range = crate::manifest::printable(range);
                return Err(format!("answered with the range `{range}`, not with bytes {start} to {end} of {size},"));
            }
            end
        }
        _ => return Err(format!("answered {status}")),
    };
    match text(header::CONTENT_LENGTH).map(str::parse::<u64>) {
        Some(Ok(length)) if length != end - start => {
            Err(format!("offers {length} bytes, not the {} requested,", end - start))
        }
        _ => Ok(end),
    }
}

fn is_span(range: &str, span: &Range<u64>, size: u64) -> bool {
    let total = range.trim().strip_prefix(&format!("bytes {}-{}/", span.start, span.end.saturating_sub(1)));
    total.is_some_and(|total| total == "*" || total == size.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_missing_rest_is_taken_up() {
        for (range, accepted) in [
            ("bytes 4-9/10", true),
            ("bytes 4-9/*", true),
            ("bytes 0-9/10", false),
            ("bytes 5-9/10", false),
            ("bytes 4-8/10", false),
            ("bytes 4-9/11", false),
            ("bytes 4-18446744073709551615/*", false),
            ("bytes */10", false),
            ("4-9/10", false),
            ("", false),
        ] {
            assert_eq!(is_span(range, &(4..10), 10), accepted, "{range}");
        }
        for (range, accepted) in [("bytes 4-6/10", true), ("bytes 4-9/10", false), ("bytes 4-7/10", false)] {
            assert_eq!(is_span(range, &(4..7), 10), accepted, "{range}");
        }
    }

    #[test]
    fn a_span_is_asked_for_by_its_exact_bytes() {
        for (span, header) in [
            (0..10, None),
            (0..4, Some("bytes=0-3")),
            (4..7, Some("bytes=4-6")),
            (4..10, Some("bytes=4-")),
            (9..10, Some("bytes=9-")),
        ] {
            assert_eq!(range_header(&span, 10).as_deref(), header, "{span:?}");
        }
    }

    #[test]
    fn a_head_promises_the_right_bytes_or_is_refused() {
        let head = |pairs: &[(header::HeaderName, &str)]| {
            pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        let length = |text| head(&[(header::CONTENT_LENGTH, text)]);
        assert_eq!(check_head(StatusCode::OK, &length("10"), &(0..10), 10), Ok(10));
        assert_eq!(check_head(StatusCode::OK, &HeaderMap::new(), &(0..10), 10), Ok(10));
        let rest = head(&[(header::CONTENT_RANGE, "bytes 4-9/10"), (header::CONTENT_LENGTH, "6")]);
        assert_eq!(check_head(StatusCode::PARTIAL_CONTENT, &rest, &(4..10), 10), Ok(10));
        let part = head(&[(header::CONTENT_RANGE, "bytes 0-3/10"), (header::CONTENT_LENGTH, "4")]);
        assert_eq!(check_head(StatusCode::PARTIAL_CONTENT, &part, &(0..4), 10), Ok(4));
        // A host that ignores ranges sends everything, which is correct from offset 0.
        assert_eq!(check_head(StatusCode::OK, &length("10"), &(0..4), 10), Ok(10));
        let short = head(&[(header::CONTENT_RANGE, "bytes 0-3/10"), (header::CONTENT_LENGTH, "3")]);
        for (status, headers, span) in [
            (StatusCode::OK, length("11"), 0..10),
            (StatusCode::OK, length("9"), 0..10),
            (StatusCode::OK, length("4"), 0..4),
            (StatusCode::OK, length("10"), 4..10),
            (StatusCode::OK, length("10"), 4..7),
            (StatusCode::NO_CONTENT, HeaderMap::new(), 0..10),
            (StatusCode::PARTIAL_CONTENT, rest.clone(), 0..10),
            (StatusCode::PARTIAL_CONTENT, rest.clone(), 4..7),
            (StatusCode::PARTIAL_CONTENT, rest, 5..10),
            (StatusCode::PARTIAL_CONTENT, HeaderMap::new(), 4..10),
            (StatusCode::PARTIAL_CONTENT, part, 0..5),
            (StatusCode::PARTIAL_CONTENT, short, 0..4),
        ] {
            assert!(check_head(status, &headers, &span, 10).is_err(), "{status} {span:?}");
        }
    }
}
