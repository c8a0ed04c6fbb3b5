//! Test equipment: a registry in this process that has one of many named faults.
//!
//! ```text
//! faults      the table of faults          registry    listeners, and what they record
//! fault       what a fault is made of      acts        the responses
//! http, tls   the protocols by hand        image       what is served
//! ```

#![allow(clippy::missing_panics_doc, reason = "a test helper panics to fail its test")]

mod acts;
mod fault;
mod faults;
mod http;
mod image;
mod registry;
pub(crate) mod tls;

pub use fault::RegistryFault;
pub use faults::{FAULTS, ONE_PERCENT};
pub use image::TestImage;
pub use registry::FaultRegistry;
