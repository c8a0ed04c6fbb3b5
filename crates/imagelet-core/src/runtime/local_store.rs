//! The port to a store of images in this process: what it offers beyond an image service, and CRI does not.

use std::fmt;

use async_trait::async_trait;

use super::{LayerGraph, PullEstimate, RuntimeError, pull_request::PullRequest};

/// What only a store in this process can do. Reached through [`super::ImageService::local`].
#[async_trait]
pub trait LocalStore: Send + Sync + fmt::Debug {
    /// What such a pull would still cost, without fetching more than manifests. `None`: not known.
    ///
    /// It leaves nothing behind. An estimate has the `manifest` that a pull at the same moment would report, and misses
    /// nothing once that pull is done.
    ///
    /// # Errors
    /// Where a pull at the same moment would fail before its first layer, for the same reason.
    async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        let _ = request;
        Ok(None)
    }

    /// Removes one name; the image goes with its last. Absent is success.
    async fn untag(&self, name: &str) -> Result<(), RuntimeError> {
        Err(RuntimeError::unsupported(format!("this store cannot remove the name `{name}` alone")))
    }

    /// Which images share which parts, and what each part takes. `None`: not known.
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        Ok(None)
    }
}
