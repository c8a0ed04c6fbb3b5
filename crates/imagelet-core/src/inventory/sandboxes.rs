//! The images of sandboxes, which no container names: images of running sandboxes are in use, images of new ones are
//! pinned.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::inventory::{Inventory, InventoryError, PinPattern, STATUS_CALLS_MAX};
use crate::runtime::{Pod, RuntimeErrorKind, SandboxImage};

/// The pin of an image for new sandboxes.
pub(crate) const PINNED_FOR_SANDBOXES: &str = "sandbox image";

/// Image of each sandbox by id; `None` where the runtime does not report it.
pub(crate) type SandboxImages = BTreeMap<String, Option<String>>;

#[derive(Debug, Default)]
pub(super) struct Sandboxes {
    /// Neither in use nor pinned, as in the kubelet.
    are_ignored: bool,
    /// A sandbox never changes its image, so each is queried once.
    pub(super) images: SandboxImages,
    configured: Vec<PinPattern>,
    reported: Vec<PinPattern>,
}

impl Sandboxes {
    /// Stores the images of a pass; `ids` replace names.
    pub(super) fn keep(&mut self, images: SandboxImages, ids: SandboxImages) {
        self.images = images;
        self.images.extend(ids);
    }

    /// Sandboxes of the last pass with an image that are no longer listed.
    pub(super) fn missing(&self, listed: &SandboxImages) -> impl Iterator<Item = String> {
        let missing = self.images.iter().filter(|(id, image)| image.is_some() && !listed.contains_key(*id));
        missing.map(|(id, _)| id.clone())
    }

    pub(super) fn defaults(&self) -> impl Iterator<Item = &PinPattern> {
        self.configured.iter().chain(&self.reported)
    }
}

impl Inventory {
    /// Pins the configured and reported images of new sandboxes. `None` pins none, as in the kubelet.
    pub fn protect_sandbox_images(&self, configured: Option<Vec<PinPattern>>) {
        let mut state = self.lock();
        let are_ignored = configured.is_none();
        if state.sandboxes.are_ignored != are_ignored {
            state.sandboxes = Sandboxes { are_ignored, ..Sandboxes::default() };
        }
        let configured = configured.unwrap_or_default();
        if state.sandboxes.configured != configured {
            state.sandboxes.configured = configured;
            state.repin();
        }
    }

    /// The images of these sandboxes; only new ones are queried.
    ///
    /// The pass fails where the runtime does not answer for a present sandbox, as for a container.
    pub(super) async fn sandbox_images(&self, pods: &[Pod]) -> Result<SandboxImages, InventoryError> {
        let (mut images, unknown): (SandboxImages, Vec<String>) = {
            let known = &self.lock().sandboxes;
            if known.are_ignored {
                return Ok(SandboxImages::new());
            }
            let ids = || pods.iter().flat_map(|pod| &pod.sandboxes).map(|sandbox| &sandbox.id);
            let seen = ids().filter_map(|id| known.images.get(id).map(|image| (id.clone(), image.clone())));
            (seen.collect(), ids().filter(|id| !known.images.contains_key(*id)).cloned().collect())
        };
        let asked: Vec<(String, Option<String>)> = stream::iter(unknown)
            .map(|id| async move {
                match self.runtime.sandbox_image(&id).await {
                    Ok(SandboxImage::Named(image)) => Ok((id, Some(image))),
                    Ok(SandboxImage::Unknown | SandboxImage::Gone) => Ok((id, None)),
                    Err(error) if error.kind() == RuntimeErrorKind::Unsupported => Ok((id, None)),
                    Err(error) => Err(InventoryError::Sandboxes(error)),
                }
            })
            .buffer_unordered(STATUS_CALLS_MAX)
            .try_collect()
            .await?;
        images.extend(asked);
        Ok(images)
    }

    pub(super) async fn reload_default_sandbox_images(&self) -> Result<(), InventoryError> {
        if self.lock().sandboxes.are_ignored {
            return Ok(());
        }
        let names = match self.runtime.default_sandbox_images().await {
            Err(error) if error.kind() == RuntimeErrorKind::Unsupported => Vec::new(),
            names => names.map_err(InventoryError::Sandboxes)?,
        };
        // An invalid reference names no image.
        let reported: Vec<PinPattern> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let mut state = self.lock();
        if state.sandboxes.reported != reported && !state.sandboxes.are_ignored {
            state.sandboxes.reported = reported;
        }
        Ok(())
    }
}
