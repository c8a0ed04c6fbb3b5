//! Reads blobs as one exact stream, however often the connection breaks.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header};
use hyper::body::Incoming;
use imagelet_core::runtime::RuntimeError;

use super::{
    PullSession, Registry,
    ask::{Budget, Question},
    error::Failure,
    resolve::{about, after_mirrors, passed_over, verify},
    transport::{Answer, Patience, ReadError},
};
use crate::manifest::{Descriptor, corrupt, unacceptable};

/// After this many bytes without a break, earlier breaks no longer count.
const REFILL_BYTES: u64 = 1 << 20;

impl Registry {
    /// Fetches a small blob whole, and checks its size and digest.
    ///
    /// # Errors
    /// `Unacceptable` when it is said to be larger than `limit`; else as [`BlobStream::next`].
    pub async fn fetch_blob_bytes(
        &self,
        session: &PullSession,
        descriptor: &Descriptor,
        limit: u64,
    ) -> Result<Bytes, RuntimeError> {
        let digest = &descriptor.digest;
        if descriptor.size > limit {
            let size = descriptor.size;
            return Err(unacceptable(format!("blob `{digest}` has {size} bytes; more than {limit} are refused")));
        }
        let mut stream = self.open_blob(session, descriptor, 0).await?;
        let mut bytes = BytesMut::new();
        while let Some(chunk) = stream.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        verify(digest, &bytes).map_err(|error| about(error, &format!("blob `{digest}` is not what was asked for")))?;
        Ok(bytes.freeze())
    }

    /// Opens a blob at an offset. Its size is held to, its digest is the reader's to check.
    ///
    /// # Errors
    /// When no host hands it out.
    pub async fn open_blob(
        &self,
        session: &PullSession,
        descriptor: &Descriptor,
        offset: u64,
    ) -> Result<BlobStream, RuntimeError> {
        let digest = &descriptor.digest;
        if offset > descriptor.size {
            let size = descriptor.size;
            return Err(RuntimeError::other(format!(
                "blob `{digest}` has {size} bytes, and is asked for from {offset}"
            )));
        }
        let mut stream = BlobStream {
            registry: self.clone(),
            session: session.clone(),
            descriptor: descriptor.clone(),
            body: None,
            place: String::new(),
            patience: Patience::new(self.transport().progress_timeout),
            reached: offset,
            unbroken: 0,
            budget: Budget::new(self.shared.retries),
            has_stalled: false,
        };
        if offset < descriptor.size || descriptor.size == 0 {
            stream.open().await?;
        }
        Ok(stream)
    }

    /// Asks one host for the rest of a blob.
    async fn open_blob_at(
        &self,
        session: &PullSession,
        index: usize,
        question: &Question,
        size: u64,
    ) -> Result<Answer, Failure> {
        let answer = self.ask_host(session, index, question).await?;
        let offset = question.offset.unwrap_or_default();
        check_head(answer.status, &answer.headers, offset, size).map_err(|why| {
            corrupt(format!("registry `{}` {why} for {}", answer.target.origin.authority(), question.subject))
        })?;
        Ok(answer)
    }
}

/// The bytes of a blob in order, each once.
pub struct BlobStream {
    registry: Registry,
    session: PullSession,
    descriptor: Descriptor,
    body: Option<Incoming>,
    /// Who sends.
    place: String,
    patience: Patience,
    /// Bytes of the blob that are read, the skipped ones included.
    reached: u64,
    /// Bytes since the last break.
    unbroken: u64,
    budget: Budget,
    has_stalled: bool,
}

impl BlobStream {
    /// The next bytes; `None` when the blob is complete.
    ///
    /// A broken connection is taken up again where it broke, a few times. The time between calls does not count
    /// against the sender. Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Corrupt` when there are fewer or more bytes than the descriptor says, `TimedOut` when they come too slowly,
    /// `RegistryUnavailable` when the connection keeps breaking.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RuntimeError> {
        loop {
            let Some(body) = &mut self.body else {
                if self.reached == self.descriptor.size {
                    return Ok(None);
                }
                self.open().await?;
                continue;
            };
            match self.patience.next(body).await {
                Ok(Some(chunk)) => return self.accept(chunk).map(Some),
                Ok(None) => {
                    self.body = None;
                    if self.reached < self.descriptor.size {
                        return Err(self.wrong_size("only"));
                    }
                }
                Err(error) => {
                    self.body = None;
                    // All was here before the end was: nothing is missing.
                    if self.reached < self.descriptor.size {
                        self.broken(error).await?;
                    }
                }
            }
        }
    }

    /// How many bytes of the blob are read.
    pub fn reached(&self) -> u64 {
        self.reached
    }

    fn accept(&mut self, chunk: Bytes) -> Result<Bytes, RuntimeError> {
        let length = chunk.len() as u64;
        if length > self.descriptor.size - self.reached {
            self.reached += length;
            self.body = None;
            return Err(self.wrong_size("at least"));
        }
        self.reached += length;
        self.unbroken += length;
        if self.unbroken >= REFILL_BYTES {
            self.unbroken = 0;
            self.has_stalled = false;
            self.budget.refill();
        }
        Ok(chunk)
    }

    async fn broken(&mut self, error: ReadError) -> Result<(), RuntimeError> {
        self.unbroken = 0;
        let stalled = matches!(error, ReadError::Stalled(_));
        let what = format!("blob `{}` past byte {} of {}", self.descriptor.digest, self.reached, self.descriptor.size);
        let failure = error.failure(&what, &self.place);
        // A connection may have died unnoticed, so one more is tried; who stalls again is stalling.
        if stalled && std::mem::replace(&mut self.has_stalled, true) {
            return Err(failure.error);
        }
        self.budget.pause(failure).await
    }

    /// Asks for what is still missing.
    async fn open(&mut self) -> Result<(), RuntimeError> {
        let question = Question {
            path: format!("blobs/{}", self.descriptor.digest),
            accept: None,
            offset: (self.reached > 0).then_some(self.reached),
            is_tag: false,
            subject: format!("blob `{}` of `{}`", self.descriptor.digest, self.session.reference()),
        };
        let indexes = question.hosts(&self.session)?;
        let (last, mirrors) = indexes.split_last().expect("there is a host to ask");
        let size = self.descriptor.size;
        let mut before = Vec::new();
        for index in mirrors {
            match self.registry.open_blob_at(&self.session, *index, &question, size).await {
                Ok(answer) => {
                    self.begin(answer);
                    return Ok(());
                }
                Err(failure) => before.push(passed_over(&self.session, *index, &failure)),
            }
        }
        loop {
            match self.registry.open_blob_at(&self.session, *last, &question, size).await {
                Ok(answer) => {
                    self.begin(answer);
                    return Ok(());
                }
                Err(failure) => self.budget.pause(failure).await.map_err(|error| after_mirrors(error, &before))?,
            }
        }
    }

    fn begin(&mut self, answer: Answer) {
        self.place = answer.target.origin.authority();
        self.patience = Patience::new(self.registry.transport().progress_timeout);
        self.body = Some(answer.body);
    }

    fn wrong_size(&self, bound: &str) -> RuntimeError {
        let Descriptor { digest, size, .. } = &self.descriptor;
        corrupt(format!(
            "registry `{}` sent {bound} {} bytes of blob `{digest}`, which has {size}",
            self.place, self.reached
        ))
    }
}

impl fmt::Debug for BlobStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobStream")
            .field("digest", &self.descriptor.digest)
            .field("reached", &self.reached)
            .field("size", &self.descriptor.size)
            .finish_non_exhaustive()
    }
}

/// Whether the head of an answer promises exactly the bytes from `offset` to the end.
fn check_head(status: StatusCode, headers: &HeaderMap, offset: u64, size: u64) -> Result<(), String> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    match (status, offset) {
        (StatusCode::OK, 0) => {}
        (StatusCode::OK, _) => return Err(format!("ignored the range from byte {offset}")),
        (StatusCode::PARTIAL_CONTENT, 1..) => {
            let range = text(header::CONTENT_RANGE).unwrap_or_default();
            if !is_rest(range, offset, size) {
                let range = crate::manifest::printable(range);
                return Err(format!("answered with the range `{range}` when asked from byte {offset} of {size}"));
            }
        }
        _ => return Err(format!("answered {status}")),
    }
    match text(header::CONTENT_LENGTH).map(str::parse::<u64>) {
        Some(Ok(length)) if length != size - offset => {
            Err(format!("offers {} bytes, not the {size} of its manifest,", length.saturating_add(offset)))
        }
        _ => Ok(()),
    }
}

/// `bytes OFFSET-LAST/SIZE`, or `*` for a size not told.
fn is_rest(range: &str, offset: u64, size: u64) -> bool {
    let parsed = || {
        let (span, total) = range.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = span.trim().split_once('-')?;
        let is_total = total == "*" || total.parse() == Ok(size);
        Some(is_total && first.parse() == Ok(offset) && last.parse::<u64>().ok()?.checked_add(1) == Some(size))
    };
    parsed().unwrap_or(false)
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
            assert_eq!(is_rest(range, 4, 10), accepted, "{range}");
        }
    }

    #[test]
    fn a_head_promises_the_right_bytes_or_is_refused() {
        let head = |pairs: &[(header::HeaderName, &str)]| {
            pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        let length = |text| head(&[(header::CONTENT_LENGTH, text)]);
        assert!(check_head(StatusCode::OK, &length("10"), 0, 10).is_ok());
        assert!(check_head(StatusCode::OK, &HeaderMap::new(), 0, 10).is_ok());
        let rest = head(&[(header::CONTENT_RANGE, "bytes 4-9/10"), (header::CONTENT_LENGTH, "6")]);
        assert!(check_head(StatusCode::PARTIAL_CONTENT, &rest, 4, 10).is_ok());
        for (status, headers, offset) in [
            (StatusCode::OK, length("11"), 0),
            (StatusCode::OK, length("9"), 0),
            (StatusCode::OK, length("10"), 4),
            (StatusCode::NO_CONTENT, HeaderMap::new(), 0),
            (StatusCode::PARTIAL_CONTENT, rest.clone(), 0),
            (StatusCode::PARTIAL_CONTENT, rest, 5),
            (StatusCode::PARTIAL_CONTENT, HeaderMap::new(), 4),
        ] {
            assert!(check_head(status, &headers, offset, 10).is_err(), "{status} {offset}");
        }
    }
}
