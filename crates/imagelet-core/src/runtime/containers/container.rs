//! What runs, and which images it holds.

use std::{collections::BTreeMap, fmt, time::SystemTime};

use async_trait::async_trait;

use crate::image::ImageSpec;
use crate::runtime::RuntimeError;

/// Whatever knows which images are held: a runtime seen through CRI, or the mounts of the embedded store.
#[async_trait]
pub trait ContainerService: Send + Sync + fmt::Debug {
    /// All containers, in any state: an exited one still holds its image.
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError>;

    /// All sandboxes, in any state.
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError>;

    /// Ids or references of the images mounted into a container as volumes.
    ///
    /// A container that is gone has none.
    async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError>;

    /// Whether a container that a list does not show any more is gone for certain. False: it cannot be told.
    async fn is_gone(&self, container_id: &str) -> Result<bool, RuntimeError> {
        let _ = container_id;
        Ok(false)
    }

    /// The image that a sandbox itself runs from, which is in no container's name.
    async fn sandbox_image(&self, sandbox_id: &str) -> Result<SandboxImage, RuntimeError> {
        let _ = sandbox_id;
        Ok(SandboxImage::Unknown)
    }

    /// Names of the images that the runtime starts new sandboxes from, where it reports them.
    async fn default_sandbox_images(&self) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }
}

/// What a runtime reports of the image of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxImage {
    /// Its id, or one of its names.
    Named(String),
    /// The sandbox is there, and the runtime does not report its image.
    Unknown,
    /// There is no such sandbox.
    Gone,
}

/// A container service for stores without containers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoContainers;

#[async_trait]
impl ContainerService for NoContainers {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        Ok(Vec::new())
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(Vec::new())
    }
    async fn mounted_images(&self, _container_id: &str) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }
}

/// A container, as far as images are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// The sandbox it belongs to; empty for a mount of the embedded store.
    pub sandbox_id: String,
    /// Its name in the pod.
    pub name: String,
    /// What it was created from, as the creator spelled it; its handler is in here.
    pub image: ImageSpec,
    /// The runtime's id or digest of that image.
    pub image_ref: String,
    /// The image's id, where the runtime says it (CRI 1.30).
    pub image_id: String,
    /// Whether it runs.
    pub state: ContainerState,
    /// When it was created.
    pub created_at: SystemTime,
    /// Its labels; the pod's identity is in here.
    pub labels: BTreeMap<String, String>,
}

/// Whether a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, not started.
    Created,
    /// Running.
    Running,
    /// Exited; it holds its image until it is removed.
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
    /// How often the pod was begun anew before it.
    pub attempt: u32,
    /// Whether it is ready.
    pub ready: bool,
    /// When it was created.
    pub created_at: SystemTime,
    /// The handler it runs under.
    pub runtime_handler: String,
}
