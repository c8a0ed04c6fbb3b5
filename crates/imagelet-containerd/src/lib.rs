//! An unmodified containerd beside CRI: images that were fetched elsewhere become its own, through its own interface.
//!
//! **Invariant:** no code outside `client` sends a call, and no call is sent without a namespace, a deadline and a bound.

mod bounded;
mod client;
mod connection;
mod error;
mod lease;
pub mod v1;

pub use client::{ContainerdClient, Hold, SnapshotKind};
pub use error::{ContainerdError, ContainerdRefusal};
pub use lease::LeaseId;

/// The longest message either side takes or sends; containerd's own limit.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The namespace in which containerd keeps what CRI shows.
pub const NAMESPACE: &str = "k8s.io";
