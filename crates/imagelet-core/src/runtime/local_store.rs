//! The port to an image store in this process: calls beyond CRI's image service.

use std::fmt;

use async_trait::async_trait;

use super::{LayerGraph, PullEstimate, RuntimeError, pull_request::PullRequest};

/// The calls of a store in this process. Reached through [`super::ImageService::local`].
#[async_trait]
pub trait LocalStore: Send + Sync + fmt::Debug {
    /// Estimates a pull; fetches manifests only. `None`: not known.
    ///
    /// It leaves nothing behind. The `manifest` is that of a pull at the same moment, and after that pull nothing is
    /// missing.
    ///
    /// # Errors
    /// Where a pull at the same moment would fail before its first layer, with the same reason.
    async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        let _ = request;
        Ok(None)
    }

    /// Removes one name, and the image with its last name; a missing name counts as success.
    async fn untag(&self, name: &str) -> Result<(), RuntimeError> {
        Err(RuntimeError::unsupported(format!("this store cannot remove the name `{name}` alone")))
    }

    /// The parts that images share, and their sizes. `None`: not known.
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        Ok(None)
    }
}
