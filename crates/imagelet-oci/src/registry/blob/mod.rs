//! Reads a blob as one exact stream, even if connections break (`docs/spec/pull.md §13.7`).

mod overtake;
pub(super) mod parallel;
mod range_concurrency;
pub(super) mod straggler;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex},
};

use bytes::{Buf as _, Bytes};
use futures_util::FutureExt as _;
use http::{HeaderMap, StatusCode, header};
use imagelet_core::error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage};
use imagelet_core::image::ByteSize;
use tokio::time::Instant;

use self::straggler::WindowMeter;
use super::{
    PullSession,
    bandwidth::ByteTicket,
    connection::{BodyReader, ReadError, Response, Silent, Urgency},
    error::{Failure, Retry},
    locked,
    next_host::Attempts,
    request::Query,
    resolve::verify,
};
use crate::{
    manifest::{Descriptor, corrupt, unacceptable},
    store::DocumentBytes,
};

/// After this many bytes without a break, the recorded failures of the hosts are reset.
const REFILL_BYTES: u64 = 1 << 20;
/// A host that sent wrong bytes of a blob this often is not asked for the blob again.
const WRONG_MAX: u32 = 2;
/// The second request for the bytes of a slow connection receives at most this many bytes again.
const TWICE_MAX: u64 = 1 << 20;
/// The retry after an answer that does not match the request, because the next answer may match.
const AGAIN: Retry = Retry::Again { times: 2 };

impl PullSession {
    pub(crate) async fn fetch_blob_bytes(&self, descriptor: &Descriptor, limit: u64) -> Result<Bytes, RuntimeError> {
        let document = self.fetch_document_blob(descriptor, limit).await?;
        self.parse(&document, Bytes::clone).await
    }

    /// Fetches and verifies a small blob. A host with wrong content is retried once, after all other hosts.
    pub(crate) async fn fetch_document_blob(
        &self,
        descriptor: &Descriptor,
        limit: u64,
    ) -> Result<DocumentBytes, RuntimeError> {
        let digest = &descriptor.digest;
        if descriptor.size > limit {
            let (beyond, limit) = (ByteSize(descriptor.size - limit), ByteSize(limit));
            return Err(unacceptable(format!("blob `{digest}` is {beyond} beyond the limit of {limit}")));
        }
        if let Some(archive) = self.archive() {
            let (archive, descriptor) = (Arc::clone(archive), descriptor.clone());
            let store = self.shared.documents.get().cloned();
            let read = move || match (archive.read(&descriptor, limit)?, store) {
                (bytes, Some(store)) => DocumentBytes::of(bytes, &store),
                (bytes, None) => Ok(DocumentBytes::Memory(bytes)),
            };
            return tokio::task::spawn_blocking(read).await?;
        }
        let source = self.blob(descriptor);
        loop {
            match source.read_whole().await {
                Err(error) if error.kind() == RuntimeErrorKind::Corrupt && source.distrust_senders(&error) => {}
                other => return other,
            }
        }
    }

    pub(crate) fn blob(&self, descriptor: &Descriptor) -> BlobSource {
        BlobSource { session: self.clone(), descriptor: descriptor.clone(), notes: Arc::default() }
    }
}

#[derive(Clone)]
pub(crate) struct BlobSource {
    session: PullSession,
    descriptor: Descriptor,
    notes: Arc<Mutex<HostNotes>>,
}

/// The results of the blob's requests at each host (an index in the session's list).
#[derive(Default)]
struct HostNotes {
    served: BTreeSet<usize>,
    counted: BTreeSet<usize>,
    lacking: BTreeSet<usize>,
    wrong: BTreeMap<usize, u32>,
    fetches: usize,
    /// Hosts that do not support ranges. They are asked for the whole blob.
    whole_only: BTreeSet<usize>,
    /// Hosts with a connection that was overtaken by another host's connection.
    slow: BTreeSet<usize>,
}

impl HostNotes {
    /// The hosts of the best tier. The tiers, best first: no problem, slow, wrong content once, without the blob.
    fn usable(&self, hosts: &[usize]) -> Vec<usize> {
        let tier = |host: &usize| match self.wrong.get(host).copied().unwrap_or_default() {
            WRONG_MAX.. => None,
            _ if self.lacking.contains(host) => Some(3),
            1.. => Some(2),
            0 => Some(i32::from(self.slow.contains(host))),
        };
        let best = hosts.iter().filter_map(tier).min();
        hosts.iter().copied().filter(|host| best.is_some() && tier(host) == best).collect()
    }
}

impl BlobSource {
    pub(crate) fn size(&self) -> u64 {
        self.descriptor.size
    }

    /// A stream for the span that the reader needs next. Sends no request yet.
    pub(crate) fn stream(&self, span: Range<u64>) -> BlobStream {
        let stream = self.stream_ahead(span);
        stream.urgency.raise();
        stream
    }

    fn stream_ahead(&self, span: Range<u64>) -> BlobStream {
        let meter = Arc::<WindowMeter>::default();
        let metered = Arc::clone(&meter);
        BlobStream {
            source: self.clone(),
            sender: None,
            reached: span.start,
            end: span.end,
            unbroken: 0,
            attempts: None,
            meter,
            ticket: None,
            // The meter starts when the request has a slot: a wait for a slot says nothing about the connection.
            urgency: Urgency::reads_ahead(move || metered.wait(Instant::now())),
        }
    }

    fn attempts(&self, query: &Query) -> Result<Attempts, RuntimeError> {
        let (hosts, notes) = (query.hosts(&self.session)?, locked(&self.notes));
        let mut attempts = Attempts::new(notes.usable(&hosts));
        attempts.is_underway = !notes.served.is_empty();
        Ok(attempts)
    }

    fn query(&self, urgency: &Arc<Urgency>) -> Query {
        let (digest, reference) = (&self.descriptor.digest, self.session.reference());
        let (path, subject) = (format!("blobs/{digest}"), format!("blob `{digest}` of `{reference}`"));
        Query { path, is_head: false, range: None, is_tag: false, subject, urgency: Arc::clone(urgency) }
    }

    /// The host for a second request from `offset` on, because `slow` is too slow: another healthy host, else the same.
    fn rival_host(&self, slow: usize, offset: u64) -> Option<usize> {
        let hosts = self.query(&Urgency::is_next()).hosts(&self.session).ok()?;
        let (usable, whole_only) = {
            let notes = locked(&self.notes);
            (notes.usable(&hosts), notes.whole_only.clone())
        };
        let suits = |host: &usize| {
            let standing = self.session.standing(*host);
            let sends_range = !whole_only.contains(host) || offset <= TWICE_MAX;
            sends_range && !standing.is_bad && standing.held_until.is_none_or(|end| end <= Instant::now())
        };
        let others = usable.iter().copied().filter(|host| *host != slow);
        others.chain([slow]).find(suits)
    }

    /// Records and logs the hosts that sent a wrong blob. Returns whether another fetch may help.
    pub(crate) fn distrust_senders(&self, error: &RuntimeError) -> bool {
        let mut notes = locked(&self.notes);
        let served = std::mem::take(&mut notes.served);
        let is_mismatch = error.fault().class == ErrorClass::DigestMismatch;
        let mut found = false;
        for index in served {
            let host = &self.session.hosts[index].host;
            if !is_mismatch && !host.is_mirror {
                continue;
            }
            found = true;
            self.session.hosts[index].count_failure(error.fault().class);
            *notes.wrong.entry(index).or_default() += if is_mismatch { 1 } else { WRONG_MAX };
            tracing::warn!(
                host = host.origin.authority(),
                blob = %self.descriptor.digest,
                error = error.chain(),
                "a host served another blob than the one requested; trying again"
            );
        }
        let hosts = self.session.hosts.iter().enumerate().filter(|(_, host)| host.host.capabilities.pull);
        let hosts: Vec<usize> = hosts.map(|(index, _)| index).collect();
        notes.fetches += 1;
        // If all hosts send a wrong blob, the blob is fetched once more in total, not once more from each host.
        found && notes.fetches <= hosts.len() && !notes.usable(&hosts).is_empty()
    }

    async fn read_whole(&self) -> Result<DocumentBytes, RuntimeError> {
        let digest = &self.descriptor.digest;
        let mut stream = self.stream(0..self.descriptor.size);
        stream.ready().await?;
        let mut document = self.session.document_writer();
        while let Some(chunk) = stream.next().await? {
            document.push(&chunk).await?;
        }
        let document = document.finish().await?;
        let verified = self.session.parse(&document, |bytes| verify(digest, bytes)).await?;
        verified.map_err(|error| error.about(format!("blob `{digest}` is not what was asked for")))?;
        Ok(document)
    }

    async fn request(&self, host: usize, query: &Query, span: &Range<u64>) -> Result<(Sender, u64), Failure> {
        let (session, size, began) = (&self.session, self.size(), Instant::now());
        let is_whole_only = locked(&self.notes).whole_only.contains(&host);
        let range = if is_whole_only { None } else { range_header(span, size) };
        let asked = if range.is_some() { span.clone() } else { 0..size };
        let query = Query { range, ..query.clone() };
        let checked = |answer: Response| match check_head(answer.status, &answer.headers, &asked, size) {
            Ok(end) => Ok((answer, end)),
            Err(why) => {
                let place = answer.target.origin.authority();
                let error = corrupt(format!("registry `{place}` {why} for {}", query.subject))
                    .with_fault(Fault::new(ErrorClass::AnswerInvalid, Stage::Blob));
                Err(Failure { error, retry: AGAIN })
            }
        };
        match session.send_to_host(host, &query).await.and_then(checked) {
            Ok((answer, end)) => {
                let (place, is_redirected) = (answer.target.origin.authority(), answer.redirected);
                let skip = span.start - asked.start;
                Ok((Sender { body: answer.body, host, place, is_redirected, began, skip, is_counted: false }, end))
            }
            Err(mut failure) => {
                let mut notes = locked(&self.notes);
                if failure.error.kind() == RuntimeErrorKind::NotFound {
                    notes.lacking.insert(host);
                }
                // Some registries reject a range instead of ignoring it, but serve the whole blob.
                if query.range.is_some() && failure.error.fault().class == ErrorClass::AnswerInvalid {
                    notes.whole_only.insert(host);
                    failure.retry = AGAIN;
                }
                Err(failure)
            }
        }
    }
}

struct Sender {
    body: BodyReader,
    host: usize,
    place: String,
    is_redirected: bool,
    began: Instant,
    /// Bytes to skip at the start of the body, if the request was for the whole blob.
    skip: u64,
    is_counted: bool,
}

pub(crate) struct BlobStream {
    source: BlobSource,
    sender: Option<Sender>,
    reached: u64,
    /// The offset where the body ends. It is larger than the requested end if the host ignores ranges.
    end: u64,
    unbroken: u64,
    attempts: Option<Attempts>,
    meter: Arc<WindowMeter>,
    ticket: ByteTicket,
    urgency: Arc<Urgency>,
}

impl BlobStream {
    pub(crate) async fn ready(&mut self) -> Result<(), RuntimeError> {
        // Even an empty blob is requested from a registry, because the registry may not have it.
        let is_here = self.source.size() > 0 || self.source.session.archive().is_some();
        let is_empty = self.reached == self.end && is_here;
        if self.sender.is_some() || is_empty { Ok(()) } else { self.open().await }
    }

    /// The next bytes; `None` at the end of the span. A body that breaks off continues from its next byte. Dropping the
    /// future loses no bytes. The time between two calls does not count as a wait for the network.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, RuntimeError> {
        loop {
            let Some(sender) = &mut self.sender else {
                if self.reached == self.end {
                    return Ok(None);
                }
                self.open().await?;
                continue;
            };
            let session = &self.source.session;
            let bandwidth = &session.shared.config.bandwidth;
            bandwidth.due(self.ticket).await;
            self.meter.wait(Instant::now());
            let read = sender.body.next().await;
            let bytes = read.as_ref().map_or(0, |chunk| chunk.as_ref().map_or(0, Bytes::len)) as u64;
            self.ticket = bandwidth.ticket(bytes);
            self.meter.received(bytes, &session.rates, Instant::now());
            match read {
                Ok(Some(chunk)) => {
                    if let Some(chunk) = self.accept(chunk)? {
                        return Ok(Some(chunk));
                    }
                }
                ended => {
                    // If the connection breaks after the last byte, no byte is missing.
                    if let Some(sender) = self.sender.take()
                        && self.reached < self.end
                    {
                        self.broken(&sender, ended.err());
                    }
                }
            }
        }
    }

    /// Adds a chunk to the received bytes, and returns the bytes that were not read before. `None` if there are none.
    fn accept(&mut self, mut chunk: Bytes) -> Result<Option<Bytes>, RuntimeError> {
        let Some(sender) = &mut self.sender else { return Ok(None) };
        let session = &self.source.session;
        let is_first =
            !std::mem::replace(&mut sender.is_counted, true) && locked(&self.source.notes).counted.insert(sender.host);
        let mut sent = session.hosts[sender.host].sent();
        sent.bytes += chunk.len() as u64;
        sent.blobs += u64::from(is_first);
        drop(sent);
        let known = sender.skip.min(chunk.len() as u64);
        sender.skip -= known;
        chunk.advance(usize::try_from(known).unwrap_or(usize::MAX));
        if chunk.is_empty() {
            return Ok(None);
        }
        let length = chunk.len() as u64;
        self.reached += length;
        self.unbroken += length;
        if self.reached > self.end {
            let place = std::mem::take(&mut sender.place);
            self.sender = None;
            return Err(self.wrong_size(&place, "at least"));
        }
        if self.unbroken >= REFILL_BYTES || self.reached == self.end {
            self.unbroken = 0;
            self.attempts.iter_mut().for_each(Attempts::refill);
            session.record_success(sender.host, sender.began);
        }
        Ok(Some(chunk))
    }

    fn broken(&mut self, sender: &Sender, problem: Option<ReadError>) {
        self.unbroken = 0;
        let Descriptor { digest, size, .. } = &self.source.descriptor;
        let what = format!("blob `{digest}` past byte {} of {size}", self.reached);
        let is_silent = matches!(problem, Some(ReadError::Silent(Silent::Connection(_))));
        let failure = match problem {
            Some(error) => error.failure(&what, &sender.place).of_redirect(sender.is_redirected),
            None => Failure { error: self.wrong_size(&sender.place, "only"), retry: AGAIN },
        };
        let (session, Some(attempts)) = (&self.source.session, &mut self.attempts) else { return };
        attempts.is_underway = true;
        if is_silent {
            session.record_failure(attempts, sender.host, failure, sender.began);
        } else {
            // A broken connection says little about the host, so the shared health of the host does not change.
            tracing::debug!(host = sender.place, error = failure.error.chain(), "a blob broke off");
            session.hosts[sender.host].count_failure(failure.error.fault().class);
            attempts.failed(sender.host, failure, Instant::now());
        }
    }

    async fn open(&mut self) -> Result<(), RuntimeError> {
        let source = self.source.clone();
        let (session, query, span) = (&source.session, source.query(&self.urgency), self.reached..self.end);
        if self.attempts.is_none() {
            self.attempts = Some(source.attempts(&query)?);
        }
        let (blob, query, span, meter) = (&source, &query, &span, &self.meter);
        let attempt = |host| {
            let opened = async move {
                meter.attempts(host);
                let opened = blob.request(host, query, span).await;
                meter.received(0, &blob.session.rates, Instant::now());
                opened
            };
            opened.boxed()
        };
        let attempts = self.attempts.get_or_insert_with(|| Attempts::new([]));
        let opened = session.first_success(attempts, &query.subject, attempt).await?;
        self.opened(opened);
        Ok(())
    }

    async fn open_at(&mut self, host: usize) -> bool {
        let source = self.source.clone();
        let (query, began) = (source.query(&self.urgency), Instant::now());
        let Ok(mut attempts) = source.attempts(&query) else { return false };
        self.meter.attempts(host);
        match source.request(host, &query, &(self.reached..self.end)).await {
            Ok(opened) => {
                attempts.is_underway = true;
                self.attempts = Some(attempts);
                self.opened(opened);
                true
            }
            Err(failure) => {
                source.session.record_failure(&mut Attempts::new([host]), host, failure, began);
                false
            }
        }
    }

    fn opened(&mut self, (sender, end): (Sender, u64)) {
        let session = &self.source.session;
        locked(&self.source.notes).served.insert(sender.host);
        if sender.is_redirected {
            session.retry_budget.served(true);
        }
        self.ticket = session.shared.config.bandwidth.ticket(0);
        (self.sender, self.end) = (Some(sender), end);
    }

    fn wrong_size(&self, place: &str, bound: &str) -> RuntimeError {
        let (digest, Self { reached, end, .. }) = (&self.source.descriptor.digest, self);
        corrupt(format!("registry `{place}` sent {bound} {reached} bytes of blob `{digest}`, not {end}"))
            .with_fault(Fault::new(ErrorClass::DigestMismatch, Stage::Digest))
    }
}

fn range_header(span: &Range<u64>, size: u64) -> Option<String> {
    match (span.start, span.end) {
        (0, end) if end == size => None,
        (start, end) if end == size => Some(format!("bytes={start}-")),
        (start, end) => Some(format!("bytes={start}-{}", end.saturating_sub(1))),
    }
}

/// Checks that the headers announce the requested span, or the whole blob if the span starts at 0, since a registry may
/// ignore a range. Returns the offset where the body ends.
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
