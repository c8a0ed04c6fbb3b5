//! Makes a damaged image whole: fetches what is damaged of it, and nothing else.

use std::sync::Arc;

use imagelet_core::{
    credentials::Credential,
    image::{ByteSize, Digest, ImageId, Platform, Reference},
    runtime::{Credentials, LayerState, Progress, PullEvent, RuntimeError, RuntimeErrorKind},
};

use crate::{
    engine::{
        Engine, blocking,
        confirm::{Read, read_document},
    },
    manifest::{CONFIG_BYTES_MAX, ImageConfig, Manifest, ManifestDocument},
    mount,
    registry::{PullSession, Resolved, about},
    store::ImageRecord,
};

struct RepairTarget {
    id: ImageId,
    names: Vec<String>,
    record: Option<ImageRecord>,
    layers: Vec<Digest>,
}

impl Engine {
    /// Whole layers and documents are not fetched, and nothing of an image that is whole by now.
    pub(in crate::engine) async fn repaired(
        &self,
        id: &ImageId,
        credentials: &Credentials<'_>,
        progress: &Progress,
    ) -> Result<(), RuntimeError> {
        self.store.check_writable()?;
        let damaged = self.store.damaged_images().into_iter().find(|(damaged, ..)| damaged == id);
        let Some((id, image, names)) = damaged else { return Ok(()) };
        let target = RepairTarget { id, names, record: image.record, layers: image.layers };
        self.refuse_if_mounted(&target.layers).await?;
        let failed = format!("could not repair image `{}`", target.id);
        let mut last = RuntimeError::new(RuntimeErrorKind::NotFound, "no name of it says where it came from");
        for reference in sources(&target.names) {
            let credentials = credentials(&reference);
            let anonymous = credentials.is_empty().then_some(None);
            for credential in credentials.iter().map(Some).chain(anonymous) {
                match self.attempt(&target, &reference, credential, progress).await {
                    Ok(()) => return Ok(()),
                    Err(error) => last = error,
                }
                // Another credential may have access.
                if !matches!(last.kind(), RuntimeErrorKind::Denied | RuntimeErrorKind::NotFound) {
                    break;
                }
            }
        }
        Err(about(last, &failed))
    }

    async fn attempt(
        &self,
        target: &RepairTarget,
        reference: &Reference,
        credential: Option<&Credential>,
        progress: &Progress,
    ) -> Result<(), RuntimeError> {
        let digest = match &target.record {
            Some(record) => Some(record.config().clone()),
            None => target.id.as_str().parse::<Digest>().ok(),
        };
        let config = match &digest {
            Some(digest) => self.kept(&target.id, "config.json", digest).await,
            None => None,
        };
        let resolved = if let Some(record) = &target.record {
            self.documents(target, record, reference, credential).await?
        } else {
            let own = config.as_deref().and_then(|bytes| ImageConfig::parse(bytes).ok());
            let platform = own.and_then(|config| format!("{}/{}", config.os, config.architecture).parse().ok());
            self.registry.resolve(reference, credential, &platform.unwrap_or_else(Platform::host)).await?
        };
        if resolved.image_id() != target.id {
            return Err(RuntimeError::new(
                RuntimeErrorKind::NotFound,
                format!("`{reference}` is another image than `{}` by now", target.id),
            )
            .with_hint(format!("imagelet pull {reference}")));
        }
        let config = match config {
            Some(config) => config,
            None => resolved.session.fetch_blob_bytes(&resolved.manifest.config, CONFIG_BYTES_MAX).await?.to_vec(),
        };
        let layers = resolved.manifest.layers.iter().zip(resolved.manifest.read_config(&config)?.diff_ids);
        let lacking = layers.filter(|(_, diff_id)| self.store.layer(diff_id).is_none());
        progress(PullEvent::Resolved {
            manifest: resolved.chosen.digest.clone(),
            layers: lacking.map(|(layer, _)| (layer.digest.clone(), ByteSize(layer.size))).collect(),
        });
        // Only the missing parts were announced.
        let heard = Arc::clone(progress);
        let quiet: Progress = Arc::new(move |event| match event {
            PullEvent::Layer { state: LayerState::Present, .. } => {}
            event => heard(event),
        });
        self.fetch_layers(&target.id, &resolved, &config, target.names.clone(), Arc::default(), &quiet).await.map(drop)
    }

    /// Manifest and index as recorded: from the disk where they are whole, else from the registry.
    async fn documents(
        &self,
        target: &RepairTarget,
        record: &ImageRecord,
        reference: &Reference,
        credential: Option<&Credential>,
    ) -> Result<Resolved, RuntimeError> {
        let session = self.registry.session(reference, credential).await?;
        let (chosen, read) = self.document(target, "manifest.json", &record.manifest, &session).await?;
        let ManifestDocument::Image(manifest) = read else {
            return Err(RuntimeError::new(RuntimeErrorKind::Corrupt, "the manifest of the record is an index"));
        };
        let root = match &record.index {
            Some(index) => self.document(target, "index.json", index, &session).await?.0,
            None => chosen.clone(),
        };
        Ok(Resolved { session, root, chosen, manifest: Manifest { ..manifest } })
    }

    async fn document(
        &self,
        target: &RepairTarget,
        name: &'static str,
        digest: &Digest,
        session: &PullSession,
    ) -> Result<Read, RuntimeError> {
        match self.kept(&target.id, name, digest).await {
            Some(bytes) => read_document(digest.clone(), bytes),
            None => session.fetch_document(digest).await,
        }
    }

    pub(in crate::engine) async fn refuse_if_mounted(&self, layers: &[Digest]) -> Result<(), RuntimeError> {
        let replaced = self.store.replaced_by(layers);
        if replaced.is_empty() {
            return Ok(());
        }
        let damaged = self.store.damaged_images();
        let store = Arc::clone(&self.store);
        for mounted in blocking(move || mount::mounts(&store)).await? {
            let shown = damaged.iter().find(|(id, ..)| id.as_str() == mounted.image).map(|(_, image, _)| &image.layers);
            // A mount with unknown layers may show any.
            if shown.is_some_and(|shown| shown.is_empty() || shown.iter().any(|layer| replaced.contains(layer))) {
                let target = mounted.target.display();
                let message = format!("layer `{}` is damaged, and `{target}` still shows it", replaced[0]);
                return Err(RuntimeError::new(RuntimeErrorKind::InUse, message)
                    .with_hint(format!("{}, then repair or pull again", mounted.hint())));
            }
        }
        Ok(())
    }
}

/// The sources of an image: each repository once, by digest where a name has one.
pub(in crate::engine) fn sources(names: &[String]) -> Vec<Reference> {
    let mut parsed: Vec<Reference> = names.iter().filter_map(|name| name.parse().ok()).collect();
    parsed.sort_by_key(|reference| reference.digest().is_none());
    let mut sources: Vec<Reference> = Vec::new();
    for reference in parsed {
        if !sources.iter().any(|known| known.repository() == reference.repository()) {
            sources.push(reference);
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_repository_is_asked_once_and_by_digest_first() {
        let digest = Digest::of(b"x");
        let names = ["a.io/app:v1".into(), format!("a.io/app@{digest}"), "b.io/app:v2".into(), "b.io/app:v1".into()];
        let found: Vec<String> = sources(&names).iter().map(ToString::to_string).collect();
        assert_eq!(found, [format!("a.io/app@{digest}"), "b.io/app:v2".into()]);
    }
}
