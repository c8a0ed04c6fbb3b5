//! Resolves a reference to the manifest of a platform; the digest of each document is verified.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::StatusCode;
use imagelet_core::{
    credentials::Credential,
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    image::{ByteSize, Digest, ImageId, Platform, Reference},
    ports::{Patience, PullEvent, RegistryHost},
    text::PlainError,
};

use tokio::time::Instant;

use super::{
    PARSED_BYTES_MAX, PullSession, Registry,
    connection::Urgency,
    error::{Failure, Retry},
    hosts::{self, ConfiguredHosts},
    next_host::Attempts,
    request::Query,
};
use crate::hash::Hash;
use crate::manifest::{
    CONFIG_BYTES_MAX, Descriptor, DescriptorPlatform, DocumentSource, ImageConfig, MANIFEST_BYTES_MAX, Manifest,
    ManifestDocument, Selected, corrupt, printable, select, unacceptable,
};
use crate::store::{DocumentBytes, DocumentWriter};

#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) session: PullSession,
    pub(crate) root: ImageDocument,
    /// The manifest of the image. It equals `root` if there is no index.
    pub(crate) chosen: ImageDocument,
    pub(crate) manifest: Manifest,
    /// Whether an index names the platform. Then another platform in the configuration is accepted.
    pub(crate) is_named: bool,
}

impl Resolved {
    /// Returns the mismatch as `Some` if the image is accepted although its configuration has another platform. As in the
    /// runtimes, a platform in the index decides, because the configuration of a cross-built image is often wrong. Without
    /// an index, the node may emulate another architecture, unless the caller named the platform (`is_given`).
    pub(crate) fn check_platform(
        &self,
        own: &DescriptorPlatform,
        platform: &Platform,
        is_given: bool,
    ) -> Result<Option<RuntimeError>, RuntimeError> {
        let is_without_index = self.root.digest == self.chosen.digest;
        match own.check(platform) {
            Ok(()) => Ok(None),
            Err(error) if self.is_named => Ok(Some(error)),
            Err(error) if is_without_index && !is_given && own.has_system_of(platform) => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn in_memory(&self) -> usize {
        self.root.bytes.in_memory() + self.chosen.bytes.in_memory()
    }

    pub(crate) fn image_id(&self) -> ImageId {
        ImageId::new(self.manifest.id(&self.chosen.digest).as_str())
    }
}

/// A document of an image, verified against its digest.
#[derive(Clone, Debug)]
pub struct ImageDocument {
    pub digest: Digest,
    /// The media type in the document, else in the registry's answer.
    pub media_type: String,
    pub bytes: DocumentBytes,
}

impl Registry {
    pub(crate) async fn session(
        &self,
        reference: &Reference,
        credentials: impl IntoIterator<Item = &Credential>,
        patience: Patience,
    ) -> Result<PullSession, RuntimeError> {
        let credentials: Vec<Credential> = credentials.into_iter().cloned().collect();
        let ConfiguredHosts { hosts, warnings } = self.configured_hosts(reference).await?;
        let session = PullSession::new(Arc::clone(&self.shared), reference.canonical(), hosts, &credentials, patience);
        for text in warnings {
            session.report(PullEvent::Warning { text });
        }
        Ok(session)
    }

    /// The hosts of an image other than its registry. Empty if the configuration is unusable: the pull reports it.
    pub(crate) async fn other_hosts(&self, reference: &Reference) -> Vec<RegistryHost> {
        let reference = reference.canonical();
        let found = self.configured_hosts(&reference).await;
        found.map(|found| hosts::other_hosts(&found.hosts, &reference)).unwrap_or_default()
    }

    pub(super) async fn configured_hosts(&self, reference: &Reference) -> Result<ConfiguredHosts, RuntimeError> {
        if reference.domain().is_empty() {
            let message = format!("`{reference}` names no registry");
            return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, message));
        }
        let (shared, reference) = (Arc::clone(&self.shared), reference.clone());
        tokio::task::spawn_blocking(move || hosts::load(&shared.config.hosts_dirs, &reference)).await?
    }
}

impl PullSession {
    pub(crate) async fn resolve(self, reference: &Reference, platform: &Platform) -> Result<Resolved, RuntimeError> {
        let (root, read) = self.fetch_manifest(reference.clone(), None).await?;
        let (chosen, manifest, is_named) = match read {
            ManifestDocument::Image(manifest) => (root.clone(), manifest, false),
            ManifestDocument::Index(index) => {
                let Selected { chosen, manifest, is_named, .. } = Box::pin(select(&self, index, 1, platform)).await?;
                (chosen, manifest, is_named)
            }
        };
        Ok(Resolved { session: self, root, chosen, manifest, is_named })
    }

    /// Parses a document as soon as it fits into the bytes that all pulls together may parse at once.
    pub(crate) async fn parse<T>(
        &self,
        document: &DocumentBytes,
        parse: impl FnOnce(&Bytes) -> T,
    ) -> Result<T, RuntimeError> {
        if let DocumentBytes::Memory(bytes) = document {
            return Ok(parse(bytes));
        }
        let size = u32::try_from(document.len().min(PARSED_BYTES_MAX)).unwrap_or(u32::MAX);
        let _turn = self.shared.parsing.acquire_many(size).await.expect("the semaphore is never closed");
        let document = document.clone();
        Ok(parse(&tokio::task::spawn_blocking(move || document.read()).await??))
    }

    pub(super) fn document_writer(&self) -> DocumentWriter {
        DocumentWriter::new(self.shared.documents.get().cloned())
    }

    /// Checks with a `HEAD` that the registry still has a manifest, and that the session's credential may read it.
    /// Returns `false` if the tag names another manifest, or if the answer is a page or has no `Docker-Content-Digest`.
    pub(crate) async fn confirm(&self, reference: &Reference, digest: &Digest) -> Result<bool, RuntimeError> {
        let query = manifest_query(reference, true);
        let attempt = |index| {
            let (session, query) = (self, &query);
            let answer = async move {
                let began = Instant::now();
                let answer = session.send_to_host(index, query).await?;
                session.sent_manifest(index, began);
                Ok(answer)
            };
            answer.boxed()
        };
        let answer = self.first_success(&mut Attempts::new(query.hosts(self)?), &query.subject, attempt).await?;
        if answer.header("content-type").starts_with("text/html") {
            return Ok(false);
        }
        if answer.status == StatusCode::OK {
            return Ok(!query.is_tag || answer.header("docker-content-digest") == digest.to_string());
        }
        let place = answer.target.origin.authority();
        Err(corrupt(format!("registry `{place}` answered {} for {}", answer.status, query.subject)))
    }

    /// Fetches a manifest from the first host that has a valid copy. `entry` is its entry in an index, if any.
    pub(crate) async fn fetch_manifest(
        &self,
        reference: Reference,
        entry: Option<&Descriptor>,
    ) -> Result<(ImageDocument, ManifestDocument), RuntimeError> {
        let query = manifest_query(&reference, false);
        let attempt = |index| self.fetch_manifest_from(index, (&reference, entry), &query).boxed();
        self.first_success(&mut Attempts::new(query.hosts(self)?), &query.subject, attempt).await
    }

    fn sent_manifest(&self, index: usize, began: Instant) {
        self.record_success(index, began);
        self.hosts[index].sent().manifest = true;
    }

    async fn fetch_manifest_from(
        &self,
        index: usize,
        (reference, entry): (&Reference, Option<&Descriptor>),
        query: &Query,
    ) -> Result<(ImageDocument, ManifestDocument), Failure> {
        let began = Instant::now();
        let answer = self.send_to_host(index, query).await?;
        let place = answer.target.origin.authority();
        let subject = &query.subject;
        if answer.status != StatusCode::OK {
            let error = corrupt(format!("registry `{place}` answered {} for {subject}", answer.status));
            return Err(error.with_fault(Fault::new(ErrorClass::AnswerInvalid, Stage::Manifest)).into());
        }
        let content_type = answer.header("content-type").to_owned();
        let claimed = answer.header("docker-content-digest").to_owned();
        let limit = usize::try_from(MANIFEST_BYTES_MAX).unwrap_or(usize::MAX);
        let mut body = answer.body;
        let mut document = self.document_writer();
        while let Some(chunk) =
            body.next().await.map_err(|error| error.failure(subject, &place).of_redirect(answer.redirected))?
        {
            if document.len() + chunk.len() > limit {
                let limit = ByteSize(MANIFEST_BYTES_MAX);
                let message = format!("the manifest of {subject} is larger than {limit}");
                return Err(unacceptable(message).into());
            }
            document.push(&chunk).await?;
        }
        let bytes = document.finish().await?;
        let context = format!("registry `{place}` sent no usable manifest for {subject}");
        let damaged = |error: RuntimeError| Failure { error: error.about(&context), retry: Retry::Again { times: 1 } };
        // After a redirect, the error shows no part of the document, because it may be of any origin.
        let unusable = |error: RuntimeError| {
            if answer.redirected {
                RuntimeError::new(error.kind(), &context).with_fault(error.fault())
            } else {
                error.about(&context)
            }
        };
        let parsed = self.parse(&bytes, |bytes| {
            if is_page(bytes) {
                let fault = Fault::new(ErrorClass::AnswerInvalid, Stage::Manifest);
                let page = if content_type.is_empty() { "a page".into() } else { printable(&content_type) };
                return Err(unusable(corrupt(format!("the answer is `{page}`, and no manifest")).with_fault(fault))
                    .with_hint(PAGE_HINT)
                    .into());
            }
            let digest = verified((reference, entry), bytes, &claimed).map_err(damaged)?;
            let parsed = ManifestDocument::parse_named(bytes, &content_type);
            let (read, media_type) = parsed.map_err(unusable)?;
            Ok::<_, Failure>((digest, read, media_type))
        });
        let (digest, read, media_type) = parsed.await??;
        if let Some(entry) = entry.filter(|entry| !read.is_called(&entry.media_type)) {
            let called = printable(&entry.media_type);
            return Err(unusable(corrupt(format!("it is `{media_type}`, not `{called}` as the index says"))).into());
        }
        self.sent_manifest(index, began);
        Ok((ImageDocument { digest, media_type, bytes }, read))
    }
}

impl DocumentSource for PullSession {
    type Document = ImageDocument;

    fn about(&self, error: RuntimeError) -> RuntimeError {
        error.about(format!("`{}`", self.reference()))
    }

    async fn manifest(&self, entry: &Descriptor) -> Result<(ImageDocument, ManifestDocument), RuntimeError> {
        entry.check_texts().map_err(|error| self.about(error))?;
        let reference = self.reference().with_digest(entry.digest.clone());
        self.fetch_manifest(reference, Some(entry)).await
    }

    async fn config(&self, manifest: &Manifest) -> Result<ImageConfig, RuntimeError> {
        let bytes = self.fetch_document_blob(&manifest.config, CONFIG_BYTES_MAX).await?;
        self.parse(&bytes, |bytes| ImageConfig::parse(bytes)).await?
    }
}

const PAGE_HINT: &str =
    "check the address: a page, such as that of a login or of a proxy, answers in place of the registry";

fn is_page(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    bytes.trim_ascii_start().first() == Some(&b'<')
}

fn manifest_query(reference: &Reference, is_head: bool) -> Query {
    let (name, is_tag) = match reference.digest() {
        Some(digest) => (digest.to_string(), false),
        None => (reference.tag().unwrap_or("latest").to_owned(), true),
    };
    let (path, subject) = (format!("manifests/{name}"), format!("`{reference}`"));
    Query { path, is_head, range: None, is_tag, subject, urgency: Urgency::is_next() }
}

fn verified(
    (reference, entry): (&Reference, Option<&Descriptor>),
    bytes: &[u8],
    claimed: &str,
) -> Result<Digest, RuntimeError> {
    if let Some(entry) = entry.filter(|entry| entry.size != bytes.len() as u64) {
        return Err(corrupt(format!("its size is {}, not {} as the index says", bytes.len(), entry.size)));
    }
    let wanted = reference.digest();
    if let Some(digest) = wanted {
        verify(digest, bytes)?;
    }
    if claimed.is_empty() {
        return Ok(wanted.cloned().unwrap_or_else(|| Digest::of(bytes)));
    }
    let claimed: Digest = claimed.parse().map_err(|error: PlainError| {
        corrupt(format!("the registry calls it `{}`, which is no digest", printable(claimed))).caused_by(error)
    })?;
    verify(&claimed, bytes)?;
    Ok(wanted.cloned().unwrap_or(claimed))
}

pub(super) fn verify(wanted: &Digest, bytes: &[u8]) -> Result<(), RuntimeError> {
    let found = Hash::digest(wanted.algorithm(), bytes);
    if found == *wanted {
        return Ok(());
    }
    let fault = Fault::new(ErrorClass::DigestMismatch, Stage::Digest);
    Err(corrupt(format!("its digest is `{found}`, not `{wanted}`")).with_fault(fault))
}
