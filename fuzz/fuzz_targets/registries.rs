//! Files that say which hosts serve a registry.

#![no_main]

imagelet_fuzz::target!("registries");
