//! The node's container runtime: its clients and its server.
//!
//! [`cri`] is client and server of the Container Runtime Interface. [`containerd`] calls containerd's own API. `import`
//! adds fetched images to a containerd. `sizes` reads from containerd how much space the removal of an image frees.

pub mod containerd;
pub mod cri;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub(crate) mod import;
mod sizes;
mod wire;

pub use import::{
    Containerd, ContainerdConfig, ImportHealth, ImportMode, ImportSite, ImportingImages, Opened, RouteTaken,
    RuntimeSite,
};
pub use sizes::ContainerdSizes;

/// The maximum length of a message in either direction, in both interfaces.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
