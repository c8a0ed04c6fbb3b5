//! The node's container runtime, from both sides.
//!
//! [`cri`] speaks the Container Runtime Interface as client and server. [`containerd`] calls containerd's own interface.
//! `import` makes images that were fetched elsewhere a containerd's own, and `sizes` reads there what an image's removal frees.

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

/// The longest message in either direction: the limit of both interfaces.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
