//! Repairs a damaged image: fetches only its damaged parts.

use std::sync::Arc;

use imagelet_core::{
    credentials::Credential,
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Digest, ImageId, Platform, Reference},
    ports::{Credentials, LayerState, Patience, Progress, PullEvent},
};

use crate::{
    engine::{Engine, sources::first_source},
    manifest::{CONFIG_BYTES_MAX, ImageConfig},
    mount,
    registry::Resolved,
    store::{DocumentBytes, StoredImage},
};

impl Engine {
    pub(in crate::engine) async fn repaired(
        &self,
        id: &ImageId,
        credentials: &Credentials<'_>,
        progress: &Progress,
    ) -> Result<(), RuntimeError> {
        self.store.check_writable()?;
        let Some(target) = self.store.damaged_images().find(|image| image.id == *id) else { return Ok(()) };
        self.refuse_if_mounted(&target.image.layers).await?;
        let attempt = |reference: Reference, shown: Vec<Credential>| {
            let target = &target;
            async move { self.attempt(target, &reference, &shown, progress).await }
        };
        let repaired = first_source(&target.names, credentials, &self.registry, attempt).await;
        repaired.map_err(|error| error.about(format!("could not repair image `{}`", target.id)))
    }

    async fn attempt(
        &self,
        target: &StoredImage,
        reference: &Reference,
        credentials: &[Credential],
        progress: &Progress,
    ) -> Result<(), RuntimeError> {
        let digest = match &target.image.record {
            Some(record) => Some(record.config().clone()),
            None => target.id.as_str().parse::<Digest>().ok(),
        };
        let config = match &digest {
            Some(digest) => self.kept(&target.id, "config.json", digest).await,
            None => None,
        };
        let session = self.registry.session(reference, credentials, Patience::FULL).await?;
        let resolved = if let Some(record) = &target.image.record {
            let (root, chosen, manifest) = self.recorded(record, Some(&session)).await?;
            Resolved { session, root, chosen, manifest, is_named: false }
        } else {
            let own = config.as_deref().and_then(|bytes| ImageConfig::parse(bytes).ok());
            let own = own.and_then(|ImageConfig { platform, .. }| {
                format!("{}/{}", platform.os, platform.architecture).parse().ok()
            });
            // The index may have named another platform than the configuration.
            let resolve = async |platform| session.clone().resolve(reference, &platform).await;
            match own {
                Some(own) if own != Platform::host() => match resolve(own).await {
                    Ok(resolved) if resolved.image_id() == target.id => resolved,
                    _ => resolve(Platform::host()).await?,
                },
                _ => resolve(Platform::host()).await?,
            }
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
        let read = resolved.manifest.read_config(&config)?;
        let layers = resolved.manifest.layers.iter().zip(&read.diff_ids);
        let lacking = layers.filter(|(_, diff_id)| self.store.layer(diff_id).is_none());
        progress(PullEvent::Resolved {
            manifest: resolved.chosen.digest.clone(),
            layers: lacking.map(|(layer, _)| (layer.digest.clone(), ByteSize(layer.size))).collect(),
        });
        // Only the missing parts were announced, so present layers are not reported.
        let heard = Arc::clone(progress);
        let quiet: Progress = Arc::new(move |event| match event {
            PullEvent::Layer { state: LayerState::Present, .. } => {}
            event => heard(event),
        });
        let config = (DocumentBytes::Memory(config.into()), read);
        self.fetch_layers(&resolved, config, target.names.clone(), Arc::default(), &quiet).await.map(drop)
    }

    pub(in crate::engine) async fn refuse_if_mounted(&self, layers: &[Digest]) -> Result<(), RuntimeError> {
        let replaced = self.store.replaced_by(layers);
        if replaced.is_empty() {
            return Ok(());
        }
        let damaged: Vec<StoredImage> = self.store.damaged_images().collect();
        for mounted in self.on_disk(|store| mount::mounts(store)).await? {
            let shown =
                damaged.iter().find(|other| other.id.as_str() == mounted.image).map(|other| &other.image.layers);
            // A mount with unknown layers may show any layer.
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
