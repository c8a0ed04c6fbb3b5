//! Checks whether the content of an image is still in containerd's stores.

use std::collections::BTreeSet;

use async_trait::async_trait;
use imagelet_core::{error::RuntimeError, image::ImageId, ports::ImageBacking};

use crate::{
    containerd::{ContainerdClient, client::Answer, v1::content},
    sizes::refers_to_snapshot,
};

const REFERS_TO_LAYER: &str = "containerd.io/gc.ref.content.l.";
const REFERS_TO_MANIFEST: &str = "containerd.io/gc.ref.content.m.";
const REFERS_TO_CONFIG: &str = "containerd.io/gc.ref.content.config";
/// Limit of the documents that are read for one image. An image with more documents is treated as usable.
const BLOBS_MAX: usize = 2_000;

#[async_trait]
impl ImageBacking for ContainerdClient {
    async fn is_usable(&self, image: &ImageId) -> Result<bool, RuntimeError> {
        // containerd needs the configuration for each container. Its labels name the top snapshot of each snapshotter.
        let Some(config) = self.content(image.as_str()).await? else { return Ok(false) };
        for (snapshotter, chain) in config.labels.iter().filter_map(|(key, value)| refers_to_snapshot(key, value)) {
            if self.snapshot(snapshotter, chain).await?.is_some() {
                return Ok(true);
            }
        }
        // If all blobs of the layers are present, containerd unpacks the layers again.
        let target = self.image(image.as_str()).await?.and_then(|record| record.target);
        let Some(target) = target else { return Ok(false) };
        let Some(manifests) = self.manifests_of(&target.digest).await? else { return Ok(true) };
        // containerd needs the manifest to unpack the image again.
        let manifest = manifests.iter().find(|manifest| config_of(manifest) == Some(image.as_str()));
        let Some(manifest) = manifest else { return Ok(false) };
        for layer in labelled(manifest, REFERS_TO_LAYER) {
            if self.content(layer).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl ContainerdClient {
    /// Whether the target of an image record is this image, or an index that contains this image.
    pub(crate) async fn is_of(&self, target: &str, image: &ImageId) -> Answer<bool> {
        let manifests = self.manifests_of(target).await?.unwrap_or_default();
        Ok(manifests.iter().any(|manifest| config_of(manifest) == Some(image.as_str())))
    }

    /// The present manifests that are reachable from a target. `None` means that too many documents are reachable.
    async fn manifests_of(&self, target: &str) -> Answer<Option<Vec<content::Info>>> {
        let (mut waiting, mut seen, mut manifests) = (vec![target.to_owned()], BTreeSet::new(), Vec::new());
        while let Some(digest) = waiting.pop() {
            if !seen.insert(digest.clone()) {
                continue;
            }
            if seen.len() > BLOBS_MAX {
                return Ok(None);
            }
            let Some(document) = self.content(&digest).await? else { continue };
            waiting.extend(labelled(&document, REFERS_TO_MANIFEST).map(str::to_owned));
            if config_of(&document).is_some() {
                manifests.push(document);
            }
        }
        Ok(Some(manifests))
    }
}

fn config_of(document: &content::Info) -> Option<&str> {
    document.labels.get(REFERS_TO_CONFIG).map(String::as_str)
}

fn labelled<'a>(document: &'a content::Info, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    document.labels.iter().filter(move |(key, _)| key.starts_with(prefix)).map(|(_, digest)| digest.as_str())
}
