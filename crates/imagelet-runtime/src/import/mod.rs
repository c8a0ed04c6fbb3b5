//! Native import: imagelet fetches and unpacks images and adds them to an unmodified containerd as its own images.
//!
//! Pulls are imported if possible and otherwise forwarded to the runtime. After an import the runtime owns ordinary
//! images without a reference to imagelet. A containerd lease protects an import until it is complete. If an import
//! fails, containerd reclaims its content with the lease.

mod decide;
mod service;
pub(crate) mod sink;
mod site;

pub use decide::ImportMode;
pub use service::{ImportHealth, ImportSite, ImportingImages, RouteTaken};
pub use sink::{Containerd, ContainerdConfig};
pub use site::{Opened, RuntimeSite};
