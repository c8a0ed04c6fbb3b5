//! The port to whatever runs containers from images: containers, sandboxes and the images they use.

mod combined_containers;
mod container;
mod sandbox_image;

pub use combined_containers::CombinedContainers;
pub use container::{Container, ContainerService, ContainerState, NoContainers, Sandbox, SandboxImage};
pub use sandbox_image::default_sandbox_image;
