//! Containers, sandboxes, and the port that lists them.

use std::{collections::BTreeMap, fmt, time::SystemTime};

use async_trait::async_trait;

use crate::image::ImageSpec;
use crate::runtime::RuntimeError;

/// The images in use: those of a runtime behind CRI, or the mounts of the embedded store.
#[async_trait]
pub trait ContainerService: Send + Sync + fmt::Debug {
    /// All containers, in any state: an exited one still uses its image.
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError>;

    /// All sandboxes, in any state.
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(Vec::new())
    }

    /// Ids or references of the images mounted into a container as volumes; a missing container has none.
    async fn mounted_images(&self, _container_id: &str) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }

    /// Whether a container that is no longer listed is certainly removed. False in doubt.
    async fn is_gone(&self, _container_id: &str) -> Result<bool, RuntimeError> {
        Ok(false)
    }

    /// The image of a sandbox itself, which no container names.
    async fn sandbox_image(&self, _sandbox_id: &str) -> Result<SandboxImage, RuntimeError> {
        Ok(SandboxImage::Unknown)
    }

    /// Names of the images for new sandboxes, where the runtime reports them.
    async fn default_sandbox_images(&self) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }
}

/// The reported image of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxImage {
    /// Its id, or one of its names.
    Named(String),
    /// The sandbox exists, and the runtime does not report its image.
    Unknown,
    /// The sandbox does not exist.
    Gone,
}

/// The container service of a store without containers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoContainers;

#[async_trait]
impl ContainerService for NoContainers {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        Ok(Vec::new())
    }
}

/// A container and the image it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// The sandbox it belongs to; empty for a mount of the embedded store.
    pub sandbox_id: String,
    /// Its name in the pod.
    pub name: String,
    /// The image as its creator spelled it, with its handler.
    pub image: ImageSpec,
    /// The runtime's id or digest of that image.
    pub image_ref: String,
    /// The image's id, where the runtime reports it (CRI 1.30).
    pub image_id: String,
    /// Its state.
    pub state: ContainerState,
    /// The time of its creation.
    pub created_at: SystemTime,
    /// Its labels, with the pod's identity.
    pub labels: BTreeMap<String, String>,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, not started.
    Created,
    /// Running.
    Running,
    /// Exited; it uses its image until it is removed.
    Exited,
    /// The runtime does not know.
    Unknown,
}

/// A pod's sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
    /// The number of earlier sandboxes of the pod.
    pub attempt: u32,
    /// Whether it is ready.
    pub ready: bool,
    /// The time of its creation.
    pub created_at: SystemTime,
    /// Its runtime handler.
    pub runtime_handler: String,
}
