//! Native import: images are fetched and unpacked here, and become an unmodified containerd's own.
//!
//! Pulls are imported where that is possible, and forwarded to the runtime elsewhere. After an import the runtime owns ordinary
//! images without a reference to imagelet. A lease of containerd protects an import until it is complete; containerd reclaims a
//! failed one with its lease.

mod decide;
mod service;
pub(crate) mod sink;
mod site;

pub use decide::ImportMode;
pub use service::{ImportHealth, ImportSite, ImportingImages, RouteTaken};
pub use sink::{Containerd, ContainerdConfig};
pub use site::{Opened, RuntimeSite};
