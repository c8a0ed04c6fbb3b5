//! Names of images.

#![no_main]

imagelet_fuzz::target!("reference");
