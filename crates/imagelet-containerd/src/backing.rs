//! Whether what an image is made of is still in containerd's stores.

use std::collections::BTreeSet;

use async_trait::async_trait;
use imagelet_core::{
    image::{Digest, ImageId},
    runtime::{ImageBacking, RuntimeError},
};

use crate::{Containerd, snapshotter_folder::OVERLAYFS};

/// The prefix of the labels by which a manifest refers to its layers, and an index to its manifests.
const REFERS_TO_LAYER: &str = "containerd.io/gc.ref.content.l.";
const REFERS_TO_MANIFEST: &str = "containerd.io/gc.ref.content.m.";
const REFERS_TO_CONFIG: &str = "containerd.io/gc.ref.content.config";
/// Most blobs that are checked before an image counts as usable.
const BLOBS_MAX: usize = 2_000;

#[async_trait]
impl ImageBacking for Containerd {
    async fn is_usable(&self, image: &ImageId, chain: &Digest) -> Result<bool, RuntimeError> {
        let client = self.client();
        if client.snapshot(OVERLAYFS, chain.as_str()).await?.is_some() {
            return Ok(true);
        }
        // containerd unpacks the layers again if it has all their blobs.
        let target = client.image(image.as_str()).await?.and_then(|record| record.target);
        let mut waiting: Vec<String> = target.map(|target| target.digest).into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(digest) = waiting.pop() {
            if !seen.insert(digest.clone()) || seen.len() > BLOBS_MAX {
                continue;
            }
            let Some(document) = client.content(&digest).await? else { continue };
            let of = |prefix: &str| {
                let labels = document.labels.iter().filter(|(key, _)| key.starts_with(prefix));
                labels.map(|(_, digest)| digest.clone()).collect::<Vec<_>>()
            };
            if document.labels.get(REFERS_TO_CONFIG).is_none_or(|config| config != image.as_str()) {
                waiting.extend(of(REFERS_TO_MANIFEST));
                continue;
            }
            for layer in of(REFERS_TO_LAYER) {
                if client.content(&layer).await?.is_none() {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        // Without a manifest containerd cannot unpack the image again.
        Ok(seen.len() > BLOBS_MAX)
    }
}
