//! Clients of a node's container runtime, and the server of the CRI socket.
//!
//! [`cri`] has client and server of the Container Runtime Interface. [`containerd`] calls containerd's own API.
//! `import` adds images to containerd. `sizes` computes how much disk space the removal of each image frees.

#![cfg_attr(not(feature = "fuzzing"), allow(unreachable_pub, reason = "only fuzz targets reach the conversions"))]

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

/// Maximum length of a message in both directions, for CRI and for containerd's API.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
