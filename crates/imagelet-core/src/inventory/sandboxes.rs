//! Sandbox images, which no container names. Running sandboxes use them, and pins keep them for new sandboxes.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::inventory::{Inventory, InventoryError, PinPattern, STATUS_CALLS_MAX, split_known};
use crate::{
    error::RuntimeErrorKind,
    ports::{Pod, SandboxImage},
};

pub(crate) const PINNED_FOR_SANDBOXES: &str = "sandbox image";

/// Sandbox id → image of the sandbox. `None`: the runtime does not report the image.
pub(crate) type SandboxImages = BTreeMap<String, Option<String>>;

#[derive(Debug, Default)]
pub(super) struct Sandboxes {
    /// On: sandboxes do not count as users, and their images are not pinned, as in the kubelet.
    are_ignored: bool,
    /// A sandbox never changes its image, so each sandbox is queried once.
    pub(super) images: SandboxImages,
    configured: Vec<PinPattern>,
    reported: Vec<PinPattern>,
}

impl Sandboxes {
    pub(super) fn defaults(&self) -> impl Iterator<Item = &PinPattern> {
        self.configured.iter().chain(&self.reported)
    }
}

impl Inventory {
    /// Protects the images of running and new sandboxes. `None`: protects no sandbox image, as in the kubelet.
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

    /// The images of the sandboxes in these pods. Only new sandboxes are queried. If a query fails, the pass fails.
    pub(super) async fn sandbox_images(&self, pods: &[Pod]) -> Result<SandboxImages, InventoryError> {
        if self.lock().sandboxes.are_ignored {
            return Ok(SandboxImages::new());
        }
        let ids = pods.iter().flat_map(|pod| &pod.sandboxes).map(|sandbox| &sandbox.id);
        let (mut images, unknown) = split_known(ids, &self.lock().sandboxes.images);
        let ask = |id: String| async move {
            match self.runtime.sandbox_image(&id).await {
                Ok(SandboxImage::Named(image)) => Ok((id, Some(image))),
                Ok(SandboxImage::Unknown | SandboxImage::Gone) => Ok((id, None)),
                Err(error) if error.kind() == RuntimeErrorKind::Unsupported => Ok((id, None)),
                Err(error) => Err(InventoryError::Sandboxes(error)),
            }
        };
        let asked = stream::iter(unknown).map(ask).buffer_unordered(STATUS_CALLS_MAX);
        images.extend(asked.try_collect::<Vec<_>>().await?);
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
        // An invalid reference is skipped, because no image can have this name.
        let reported: Vec<PinPattern> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let mut state = self.lock();
        if !state.sandboxes.are_ignored {
            state.sandboxes.reported = reported;
        }
        Ok(())
    }
}
