//! An image service without a runtime: engine, registry, manifest, store, unpack.
//!
//! [`Engine`] is the whole of it behind one seam. It opens no state outside its store and asks only the registries that
//! the references it is given name.

mod admission;
mod confine;
mod engine;
#[doc(hidden)]
pub mod failpoint;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
mod manifest;
mod mount;
mod overlay;
mod pipeline;
mod registry;
mod scarce;
mod store;
mod unpack;
mod usage;

pub use crate::admission::Admission;
pub use crate::confine::Confinement;
pub use crate::engine::{
    BlobsCheck, Credentials, Engine, EngineConfig, ImageCheck, LayerName, LayerSharing, VerifyProgress, VerifyReport,
};
pub use crate::mount::{MountOptions, MountedImage, UnmountedImage};
pub use crate::pipeline::LayerLimits;
pub use crate::registry::{RegistryConfig, Trickle};
pub use crate::store::{Access, CheckResult, Durability, Finding, Findings, LayerCheck, LayerEntry, SweepReport};
pub use crate::usage::{ImageUsage, StoreUsage, StoredImage};
