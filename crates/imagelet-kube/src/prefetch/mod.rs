//! Declarative prefetch: `ImageSet` objects name images, and the nodes of the cluster fetch these images.

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
