//! Manifests of artifacts, and their archives.

#![no_main]

imagelet_fuzz::target!("artifact");
