//! The Kubernetes side of the image manager: the images that pods wait for, and the images that nodes prefetch.
//!
//! The node agent watches the pods of its node, leases their images, and fetches these images before the kubelet does.
//! It sends warnings about the node and the progress of pulls as events. The prefetch agent fetches the images of
//! `ImageSet` objects and reports them in `NodeImages`. A controller of the cluster admits nodes in waves.

mod access;
mod agent;
mod api_error;
mod client;
mod credentials;
mod look_ahead;
mod metadata;
mod names;
mod node_events;
mod pods;
mod prefetch;
mod progress_events;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod watch;

pub use access::ApiAccess;
pub use agent::{NodeAgent, NodeAgentParts, metric_families};
pub use api_error::ApiError;
pub use credentials::ClusterTokens;
pub use look_ahead::LookAheadParts;
pub use prefetch::{
    CRDS, ControllerReport, FetchConditions, FetchFailure, ImagePresence, NodeCounts, PREFETCH_PRIORITY, PrefetchAgent,
    PrefetchApi, PrefetchController, PrefetchNode, SetDocument, SetPin, SetRejection, SetRow,
    controller_metric_families,
};
pub use watch::{WatchHealth, WatchReport};

/// Implements `Debug` for types with a `kube` client, because the client has no `Debug`.
macro_rules! opaque {
    ($($type:ty),*) => {$(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($type))
            }
        }
    )*};
}
opaque!(ClusterTokens, NodeAgent, PrefetchAgent, PrefetchApi, PrefetchController);
