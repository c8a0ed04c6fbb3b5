//! Kubernetes around the image manager: which pods of the node wait for which images.
//!
//! The agent watches the pods that are bound to its node, leases their images in the core's inventory, and fetches them ahead of the
//! kubelet. Kubernetes' API is read; only events about the node are
//! written to it.

mod access;
mod agent;
mod api_client;
mod api_error;
mod credentials;
mod look_ahead;
mod node_events;
mod pods;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod watch;

pub use access::ApiAccess;
pub use agent::{NodeAgent, metric_families};
pub use api_error::ApiError;
pub use credentials::ClusterTokens;
pub use look_ahead::LookAheadParts;
pub use pods::{BoundPod, PodImageUse, PodRejection, read_pod};
pub use watch::{WatchHealth, WatchReport};
