//! An unmodified containerd beside CRI: images that were fetched elsewhere become its own, through its own interface.
//!
//! [`Containerd`] is the end of a pull: layers are renamed into snapshots that containerd prepared, then documents and
//! image records are written as containerd's own pull writes them. A lease protects all of it from garbage collection
//! until it is complete; containerd reclaims a failed import with its lease. Afterwards nothing refers to imagelet.
//!
//! **Invariant:** only `calls` and `client` send calls, and every call has a namespace, a deadline and a bound.

mod backing;
mod bounded;
mod calls;
mod client;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod import;
mod lease;
mod names;
mod sink;
mod sizes;
mod snapshotter_folder;
pub mod v1;

pub use client::{ContainerdClient, Many, One};
pub use error::{ContainerdError, ContainerdRefusal};
pub use lease::LeaseId;
pub use names::ContainerdNames;
pub use sink::{Containerd, ContainerdConfig};
pub use sizes::ContainerdSizes;

/// The longest message in either direction; containerd's own limit.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The namespace of CRI's images.
pub(crate) const NAMESPACE: &str = "k8s.io";
