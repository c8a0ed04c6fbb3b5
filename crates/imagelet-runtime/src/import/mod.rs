//! Native import: imagelet fetches and unpacks images and adds them to an unmodified containerd as its own images.
//!
//! Pulls are imported if possible and otherwise forwarded to the runtime. After an import, the image is an ordinary
//! image of the runtime without a reference to imagelet. A containerd lease protects a running import. If the import
//! fails, the lease ends and containerd reclaims the content.

mod decide;
mod service;
pub(crate) mod sink;
mod site;

pub use decide::ImportMode;
pub use service::{ImportHealth, ImportSite, ImportingImages, RouteTaken};
pub use sink::{Containerd, ContainerdConfig};
pub use site::{Opened, RuntimeSite};
