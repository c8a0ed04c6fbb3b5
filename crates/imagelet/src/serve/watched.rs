//! The images as the daemon serves them over CRI: what is pulled for a kubelet counts as asked for.

use std::{sync::Arc, time::SystemTime};

use async_trait::async_trait;
use imagelet_core::{
    image::{Image, ImageId, ImageKey, ImageSpec},
    inventory::Inventory,
    runtime::{
        ImageFilesystems, ImageService, Progress, PullEstimate, PullRequest, RuntimeError, RuntimeErrorKind,
        RuntimeManager,
    },
};
use tokio_util::sync::CancellationToken;

use crate::node::LocalNode;

/// A store whose pulls the inventory hears of, and which gives them up when the daemon stops.
#[derive(Debug)]
pub(super) struct WatchedImages {
    runtime: RuntimeManager,
    inventory: Arc<Inventory>,
    working: CancellationToken,
}

impl WatchedImages {
    pub(super) fn new(node: &LocalNode, working: CancellationToken) -> Self {
        let parts = node.parts();
        Self { runtime: parts.runtime.clone(), inventory: Arc::clone(&parts.inventory), working }
    }
}

#[async_trait]
impl ImageService for WatchedImages {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Vec<Image>, RuntimeError> {
        self.runtime.list(filter).await
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        self.runtime.status(spec).await
    }

    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        let id = tokio::select! {
            pulled = self.runtime.pull(request, progress) => pulled?,
            () = self.working.cancelled() => {
                let message = format!("the pull of `{}` was given up: the daemon is stopping", request.image.image);
                return Err(RuntimeError::new(RuntimeErrorKind::Cancelled, message));
            }
        };
        tracing::info!(image = request.image.image, %id, "pulled over CRI");
        self.inventory.touch(&ImageKey::new(id.clone(), request.image.runtime_handler.clone()), SystemTime::now());
        Ok(id)
    }

    async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        self.runtime.images().estimate(request).await
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        self.runtime.remove(spec).await?;
        tracing::info!(image = spec.image, "removed over CRI");
        Ok(())
    }

    async fn untag(&self, name: &str) -> Result<(), RuntimeError> {
        self.runtime.untag(name).await
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        self.runtime.filesystem().await
    }
}
