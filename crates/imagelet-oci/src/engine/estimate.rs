//! The estimate of a pull, and the cache of its resolved manifest for the pull that follows.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Mutex,
    time::Duration,
};

use imagelet_core::{
    credentials::Credential,
    error::RuntimeError,
    image::{ByteSize, Digest, Platform, Reference},
    lock::locked,
    ports::{Patience, Progress, PullEstimate, PullEvent, PullRequest},
};
use tokio::time::Instant;

use super::{Engine, parse_reference, sharing::only_from};
use crate::{admission::expected, manifest::Descriptor, registry::Resolved};

/// Maximum age of a cached resolution: after its estimate, a pull waits at most this long for its turn.
const AGE_MAX: Duration = Duration::from_secs(30);
const KEPT_MAX: usize = 64;
/// Maximum bytes of cached documents. A larger document is fetched again.
const BYTES_MAX: usize = 8 << 20;

/// The key of a cached resolution. It has the credentials: a request must not get another credential's resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PullTarget {
    pub(super) reference: Reference,
    pub(super) platform: Platform,
    pub(super) is_platform_given: bool,
    pub(super) credentials: Vec<Credential>,
    pub(super) patience: Patience,
}

impl PullTarget {
    pub(super) fn by(request: &PullRequest) -> Result<Self, RuntimeError> {
        Ok(Self {
            reference: parse_reference(&request.image.image)?,
            platform: request.platform.clone().unwrap_or_else(Platform::host),
            is_platform_given: request.platform.is_some(),
            credentials: request.credential.iter().chain(&request.host_credentials).cloned().collect(),
            patience: request.patience,
        })
    }
}

/// Recently resolved manifests. Each resolution serves one pull with the same credential.
#[derive(Default)]
pub(super) struct Resolutions(Mutex<VecDeque<CachedResolution>>);

struct CachedResolution {
    target: PullTarget,
    resolved: Resolved,
    at: Instant,
}

impl Resolutions {
    pub(super) fn keep(&self, target: PullTarget, resolved: Resolved, now: Instant) {
        let mut kept = locked(&self.0);
        kept.retain(|old| old.target != target && now.saturating_duration_since(old.at) <= AGE_MAX);
        kept.push_back(CachedResolution { target, resolved, at: now });
        while kept.len() > KEPT_MAX || kept.iter().map(|old| old.resolved.in_memory()).sum::<usize>() > BYTES_MAX {
            kept.pop_front();
        }
    }

    pub(super) fn take(&self, target: &PullTarget, now: Instant) -> Option<Resolved> {
        let mut kept = locked(&self.0);
        kept.retain(|old| now.saturating_duration_since(old.at) <= AGE_MAX);
        let place = kept.iter().position(|old| old.target == *target)?;
        kept.remove(place).map(|found| found.resolved)
    }
}

impl Engine {
    pub(super) async fn resolve(
        &self,
        target: &PullTarget,
        progress: Option<&Progress>,
    ) -> Result<Resolved, RuntimeError> {
        // The check and the fetch of a manifest share a session, so they use one token and send a bad credential once.
        let session = self.registry.session(&target.reference, &target.credentials, target.patience).await?;
        if let Some(progress) = progress {
            session.report_to(progress);
        }
        let resolved = match self.confirmed(target, &session).await {
            Ok(None) => session.clone().resolve(&target.reference, &target.platform).await,
            Ok(Some(resolved)) => Ok(resolved),
            Err(error) => Err(error),
        };
        if let (Err(_), Some(progress)) = (&resolved, progress) {
            progress(PullEvent::Hosts(session.senders()));
        }
        resolved
    }

    pub(super) async fn estimated(&self, request: &PullRequest) -> Result<PullEstimate, RuntimeError> {
        let target = PullTarget::by(request)?;
        self.store.check_writable()?;
        let resolved = self.resolve(&target, None).await?;
        resolved
            .manifest
            .check_layers()
            .map_err(|error| error.about(format!("could not fetch and unpack `{}`", target.reference)))?;
        let estimate = self.compare(&resolved);
        self.resolutions.keep(target, resolved, Instant::now());
        Ok(estimate)
    }

    /// Compares a resolution with the store. Without the configuration, a layer is identified by its blob, so a present
    /// layer counts as missing if its compression differs. A file of an artifact is identified by its blob and path.
    fn compare(&self, resolved: &Resolved) -> PullEstimate {
        let id = resolved.image_id();
        let reference = resolved.session.reference();
        let is_here = self.store.is_named_in(&id, reference.repository());
        let manifest = &resolved.manifest;
        let missing: Vec<&Descriptor> = if is_here {
            Vec::new()
        } else if manifest.artifact_kind().is_some() {
            let repository = only_from(manifest, reference);
            let is_missing = |key: &Digest| self.store.layer(key).is_none() || !self.may_share(repository, key);
            let files = manifest.artifact_files().unwrap_or_default();
            let files: BTreeMap<Digest, &Descriptor> = files.into_iter().map(|file| (file.key, file.blob)).collect();
            files.into_iter().filter(|(key, _)| is_missing(key)).map(|(_, blob)| blob).collect()
        } else {
            let here = self.store.unpacked_blobs(&manifest.layers.iter().map(|layer| &layer.digest).collect());
            distinct(&manifest.layers).filter(|layer| !here.contains(&layer.digest)).collect()
        };
        let unpacked = |layer: &Descriptor| {
            ByteSize(expected(manifest.compression(layer), layer.size, self.config.keep_blobs).bytes)
        };
        PullEstimate {
            manifest: resolved.chosen.digest.clone(),
            bytes_total: distinct(&manifest.layers).map(|layer| ByteSize(layer.size)).sum(),
            bytes_missing: distinct(missing.iter().copied()).map(|layer| ByteSize(layer.size)).sum(),
            bytes_unpacked: missing.iter().map(|layer| unpacked(layer)).sum(),
            layers_missing: missing.len(),
        }
    }
}

/// The layers without repeated blobs, because a blob is fetched once.
fn distinct<'a>(layers: impl IntoIterator<Item = &'a Descriptor>) -> impl Iterator<Item = &'a Descriptor> {
    let mut seen = HashSet::new();
    layers.into_iter().filter(move |layer| seen.insert(&layer.digest))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use imagelet_core::image::ImageSpec;

    use super::*;
    use crate::{
        manifest::Manifest,
        registry::{ImageDocument, PullSession},
        store::DocumentBytes,
    };

    fn target_of(name: &str) -> PullTarget {
        let request = PullRequest { image: ImageSpec::new(name), ..PullRequest::default() };
        PullTarget::by(&request).expect("a name")
    }

    fn resolved(target: &PullTarget, length: usize) -> Resolved {
        let bytes = Bytes::from(vec![b' '; length]);
        let document = ImageDocument {
            digest: Digest::of(&bytes),
            media_type: String::new(),
            bytes: DocumentBytes::Memory(bytes),
        };
        let config = Descriptor::new("", document.digest.clone(), 0);
        Resolved {
            session: PullSession::nowhere(target.reference.clone()),
            root: document.clone(),
            chosen: document,
            manifest: Manifest { config, layers: Vec::new(), artifact_type: None },
            is_named: false,
        }
    }

    #[test]
    fn an_answer_grows_old_is_handed_out_once_and_gives_way_to_a_newer_one() {
        let (kept, now) = (Resolutions::default(), Instant::now());
        let target = target_of("reg.io/a:v1");
        kept.keep(target.clone(), resolved(&target, 1), now);
        kept.keep(target.clone(), resolved(&target, 2), now);
        assert!(kept.take(&target_of("reg.io/a:v2"), now).is_none());
        assert_eq!(kept.take(&target, now + AGE_MAX).map(|found| found.root.bytes.len()), Some(2));
        assert!(kept.take(&target, now).is_none());
        kept.keep(target.clone(), resolved(&target, 1), now);
        assert!(kept.take(&target, now + AGE_MAX + Duration::from_millis(1)).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded_in_number_and_size_and_the_oldest_goes() {
        let (kept, now) = (Resolutions::default(), Instant::now());
        let names: Vec<PullTarget> = (0..=KEPT_MAX).map(|number| target_of(&format!("reg.io/a:v{number}"))).collect();
        for target in &names {
            kept.keep(target.clone(), resolved(target, 1), now);
        }
        assert!(kept.take(&names[0], now).is_none());
        assert!(kept.take(&names[1], now).is_some());
        let large = target_of("reg.io/large:v1");
        kept.keep(large.clone(), resolved(&large, BYTES_MAX / 2 - KEPT_MAX), now);
        assert!(kept.take(&names[2], now).is_some(), "there is still room");
        kept.keep(target_of("reg.io/more:v1"), resolved(&large, KEPT_MAX), now);
        assert!(kept.take(&names[3], now).is_none());
    }
}
