//! containerd's own API: the calls for imports, exact sizes and image names.
//!
//! **Invariant:** only `calls` and `client` send calls. Every call has a namespace, a deadline and a size limit.

pub(crate) mod bounded;
pub(crate) mod calls;
pub(crate) mod client;
mod error;
mod lease;
mod names;

pub use client::{ContainerdClient, Many, One};
pub use error::ContainerdError;
pub use lease::LeaseId;
pub use names::ContainerdNames;

#[allow(clippy::all, clippy::pedantic, unreachable_pub)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/containerd.rs"));
}

pub(crate) const NAMESPACE: &str = "k8s.io";

/// CRI ignores an image record without this label.
pub(crate) const MANAGED: (&str, &str) = ("io.cri-containerd.image", "managed");
