//! Declarative prefetch: `ImageSet` objects name images, and the nodes of the cluster fetch these images.
//!
//! ```text
//! objects     the three kinds of object, their limits and their CustomResourceDefinitions
//! node        the agent of a node: images to pull and to pin, and the report of the node
//! controller  one process of the cluster: admits nodes, counts them, and deletes finished sets
//! commands    the requests of the command line
//! ```

mod commands;
mod controller;
mod node;
mod objects;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use commands::{PrefetchApi, SetDocument, SetRow};
pub use controller::{ControllerReport, PrefetchController, controller_metric_families};
pub use node::{FetchConditions, FetchFailure, ImagePresence, PREFETCH_PRIORITY, PrefetchAgent, PrefetchNode, SetPin};
pub use objects::{CRDS, NodeCounts, SetRejection};
