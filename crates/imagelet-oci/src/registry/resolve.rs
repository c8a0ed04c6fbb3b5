//! Resolves a reference to the manifest of a platform; the digest of each document is verified.

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Method, StatusCode, header};
use imagelet_core::{
    credentials::Credential,
    image::{Digest, DigestError, Platform, Reference},
    runtime::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
};

use super::{PullSession, Registry, error::Failure, hosts, request::Question};
use crate::hash::Hash;
use crate::manifest::{
    Descriptor, INDEX_DEPTH_MAX, MANIFEST_BYTES_MAX, MANIFEST_MEDIA_TYPES, Manifest, ManifestDocument, corrupt,
    printable, unacceptable,
};

#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) session: PullSession,
    pub(crate) root: Document,
    /// The image manifest; equal to `root` where there is no index.
    pub(crate) chosen: Document,
    /// `chosen`, parsed.
    pub(crate) manifest: Manifest,
}

/// A manifest or index as sent, with verified digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document {
    pub(crate) digest: Digest,
    /// From the document itself or from the registry.
    pub(crate) media_type: String,
    pub(crate) bytes: Bytes,
}

impl Registry {
    /// Resolves a reference for a platform.
    pub(crate) async fn resolve(
        &self,
        reference: &Reference,
        credential: Option<&Credential>,
        platform: &Platform,
    ) -> Result<Resolved, RuntimeError> {
        let session = self.session(reference, credential).await?;
        let (root, mut read) = self.fetch_manifest(&session, &Wanted::Named(reference)).await?;
        let mut chosen = root.clone();
        for depth in 0..=INDEX_DEPTH_MAX {
            match read {
                ManifestDocument::Image(manifest) => return Ok(Resolved { session, root, chosen, manifest }),
                // A deeper index is not fetched.
                ManifestDocument::Index(_) if depth == INDEX_DEPTH_MAX => break,
                ManifestDocument::Index(index) => {
                    let entry = index.choose(platform).map_err(|error| about(error, &format!("`{reference}`")))?;
                    (chosen, read) = self.fetch_manifest(&session, &Wanted::Entry(entry)).await?;
                }
            }
        }
        Err(unacceptable(format!("`{reference}` is an index of more than {INDEX_DEPTH_MAX} levels")))
    }

    /// A session for content that is known by digest.
    pub(crate) async fn session(
        &self,
        reference: &Reference,
        credential: Option<&Credential>,
    ) -> Result<PullSession, RuntimeError> {
        let hosts = self.hosts(reference).await?;
        Ok(PullSession::new(reference.canonical(), hosts, credential.cloned(), self.reception()))
    }

    pub(crate) async fn fetch_document(
        &self,
        session: &PullSession,
        digest: &Digest,
    ) -> Result<(Document, ManifestDocument), RuntimeError> {
        let reference = session.reference().with_digest(digest.clone());
        self.fetch_manifest(session, &Wanted::Named(&reference)).await
    }

    /// Checks with a `HEAD` that the repository still has a manifest and grants it to the session's credential.
    pub(crate) async fn confirm(&self, session: &PullSession, digest: &Digest) -> Result<(), RuntimeError> {
        let reference = session.reference().with_digest(digest.clone());
        let question = Question { method: Method::HEAD, ..Wanted::Named(&reference).question(session) };
        let attempt = |index| self.ask_host(session, index, &question).boxed();
        let answer = self.in_turn(session, &question.hosts(session)?, &mut self.budget(), attempt).await?;
        if answer.status == StatusCode::OK {
            return Ok(());
        }
        let place = answer.target.origin.authority();
        Err(corrupt(format!("registry `{place}` answered {} for {}", answer.status, question.subject)))
    }

    async fn hosts(&self, reference: &Reference) -> Result<Vec<hosts::Host>, RuntimeError> {
        let domain = reference.domain().to_owned();
        if domain.is_empty() {
            let message = format!("`{reference}` names no registry");
            return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, message));
        }
        let shared = std::sync::Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || hosts::load(&shared.hosts_dirs, &domain))
            .await
            .map_err(|error| RuntimeError::defect("reading the registry configuration was given up").caused_by(error))?
    }

    /// Fetches a manifest from the first host that has a valid copy.
    async fn fetch_manifest(
        &self,
        session: &PullSession,
        wanted: &Wanted<'_>,
    ) -> Result<(Document, ManifestDocument), RuntimeError> {
        let question = wanted.question(session);
        let attempt = |index| self.fetch_manifest_from(session, index, wanted, &question).boxed();
        self.in_turn(session, &question.hosts(session)?, &mut self.budget(), attempt).await
    }

    async fn fetch_manifest_from(
        &self,
        session: &PullSession,
        index: usize,
        wanted: &Wanted<'_>,
        question: &Question,
    ) -> Result<(Document, ManifestDocument), Failure> {
        let answer = self.ask_host(session, index, question).await?;
        let place = answer.target.origin.authority();
        let subject = &question.subject;
        if answer.status != StatusCode::OK {
            return Err(corrupt(format!("registry `{place}` answered {} for {subject}", answer.status)).into());
        }
        let text = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content_type = text(header::CONTENT_TYPE.as_str()).to_owned();
        let claimed = text("docker-content-digest").to_owned();
        let limit = usize::try_from(MANIFEST_BYTES_MAX).unwrap_or(usize::MAX);
        let (bytes, cut) = self
            .transport()
            .read(answer.body, limit, session.reception())
            .await
            .map_err(|error| error.failure(subject, &place))?;
        if cut {
            return Err(
                unacceptable(format!("the manifest of {subject} is larger than {MANIFEST_BYTES_MAX} bytes")).into()
            );
        }
        let context = format!("registry `{place}` sent no usable manifest for {subject}");
        let digest = wanted.verified(&bytes, &claimed).map_err(|error| about(error, &context))?;
        let read = ManifestDocument::parse(&bytes, &content_type).map_err(|error| about(error, &context))?;
        let media_type = ManifestDocument::media_type(&bytes, &content_type, &read);
        wanted.check_kind(&read, &media_type).map_err(|error| about(error, &context))?;
        Ok((Document { digest, media_type, bytes }, read))
    }
}

enum Wanted<'a> {
    Named(&'a Reference),
    Entry(&'a Descriptor),
}

impl Wanted<'_> {
    fn question(&self, session: &PullSession) -> Question {
        let (name, is_tag) = match self {
            Self::Named(reference) => match (reference.digest(), reference.tag()) {
                (Some(digest), _) => (digest.to_string(), false),
                (None, tag) => (tag.unwrap_or("latest").to_owned(), true),
            },
            Self::Entry(entry) => (entry.digest.to_string(), false),
        };
        let subject = match self {
            Self::Named(reference) => format!("`{reference}`"),
            Self::Entry(entry) => format!("`{}`", session.reference().with_digest(entry.digest.clone())),
        };
        let accept = Some(MANIFEST_MEDIA_TYPES);
        let path = format!("manifests/{name}");
        Question { path, method: Method::GET, accept, range: None, is_tag, subject }
    }

    /// Verifies the body against the wanted digest and the registry's `Docker-Content-Digest`.
    fn verified(&self, bytes: &[u8], claimed: &str) -> Result<Digest, RuntimeError> {
        let wanted = match self {
            Self::Named(reference) => reference.digest(),
            Self::Entry(entry) => {
                if entry.size != bytes.len() as u64 {
                    return Err(corrupt(format!("its size is {}, not {} as the index says", bytes.len(), entry.size)));
                }
                Some(&entry.digest)
            }
        };
        if let Some(digest) = wanted {
            verify(digest, bytes)?;
        }
        if claimed.is_empty() {
            return Ok(wanted.cloned().unwrap_or_else(|| Digest::of(bytes)));
        }
        let claimed: Digest = claimed.parse().map_err(|error: DigestError| {
            corrupt(format!("the registry calls it `{}`, which is no digest", printable(claimed))).caused_by(error)
        })?;
        verify(&claimed, bytes)?;
        Ok(wanted.cloned().unwrap_or(claimed))
    }

    fn check_kind(&self, read: &ManifestDocument, media_type: &str) -> Result<(), RuntimeError> {
        match self {
            Self::Entry(entry) if !read.is_called(&entry.media_type) => {
                Err(corrupt(format!("it is `{media_type}`, not `{}` as the index says", printable(&entry.media_type))))
            }
            Self::Entry(_) | Self::Named(_) => Ok(()),
        }
    }
}

pub(super) fn verify(wanted: &Digest, bytes: &[u8]) -> Result<(), RuntimeError> {
    let found = Hash::digest(wanted.algorithm(), bytes);
    if found == *wanted {
        return Ok(());
    }
    let fault = Fault::new(ErrorClass::DigestMismatch, Stage::Digest);
    Err(corrupt(format!("its digest is `{found}`, not `{wanted}`")).with_fault(fault))
}

/// Prefixes an error with its context; kind and hint stay.
pub(crate) fn about(error: RuntimeError, context: &str) -> RuntimeError {
    let hint = error.hint().map(str::to_owned);
    let outer = RuntimeError::new(error.kind(), context).caused_by(error);
    match hint {
        Some(hint) => outer.with_hint(hint),
        None => outer,
    }
}
