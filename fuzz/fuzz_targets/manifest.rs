//! Manifests, indexes and image configurations.

#![no_main]

imagelet_fuzz::target!("manifest");
