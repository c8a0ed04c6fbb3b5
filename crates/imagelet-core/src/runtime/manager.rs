//! The one caller of the runtime ports: asks them, and assembles pods from what they answer (`spec/gc.md §11`).

use std::sync::Arc;

use super::{ContainerService, ImageService};

/// Asks a store of images and whatever runs containers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RuntimeManager {
    images: Arc<dyn ImageService>,
    containers: Arc<dyn ContainerService>,
}

/// A pod as the inventory needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its uid.
    pub uid: String,
}

impl RuntimeManager {
    /// Joins the two ports.
    pub fn new(images: Arc<dyn ImageService>, containers: Arc<dyn ContainerService>) -> Self {
        Self { images, containers }
    }

    /// The store of images.
    pub fn images(&self) -> &Arc<dyn ImageService> {
        &self.images
    }

    /// What runs containers.
    pub fn containers(&self) -> &Arc<dyn ContainerService> {
        &self.containers
    }
}
