//! An image service without a runtime: engine, registry, manifest, store, unpack.
//!
//! [`Engine`] is the only entry point. It has no state outside its store, and contacts only the registries of the
//! references that it receives.

mod admission;
mod confine;
mod engine;
mod event_pair;
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
mod image_archive;
#[doc(hidden)]
pub mod layer_folders;
mod layer_sink;
mod machine;
mod manifest;
mod mount;
mod overlay;
mod page_cache;
mod pipeline;
mod registry;
mod scarce;
mod signature;
mod store;
mod tenant;
#[cfg(feature = "test-util")]
pub mod testing;
mod unpack;

pub use admission::Admission;
pub use confine::Confinement;
pub use engine::{Engine, EngineConfig, EngineImporter, StorePlace, check_signature_policy};
pub use layer_sink::{
    ImportError, ImportStage, ImportedImage, ImportedLayer, LayerImport, LayerSink, StagedTree, Taken,
};
pub use machine::{FetchSizes, Machine};
pub use pipeline::LayerLimits;
pub use registry::{
    Bandwidth, ImageDocument, LoginCheck, PathReport, PathStep, ProxyConfig, ProxyRule, ProxyRules, RegistryConfig,
    RegistryTimeouts, check_login, check_path, check_registry_files, registry_hosts,
};
pub use store::{Access, DocumentBytes, Durability, command_of_owner};
pub use unpack::{UNPACK_MEMORY_DEFAULT, UNPACK_MEMORY_MIN};
