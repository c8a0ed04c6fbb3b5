//! The lists of a containerd.

#![no_main]

imagelet_fuzz::target!("containerd");
