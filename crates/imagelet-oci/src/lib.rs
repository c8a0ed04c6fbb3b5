//! An image service without a runtime: engine, registry, manifest, store, unpack.

pub mod manifest;
pub mod registry;
pub mod unpack;
