//! A configuration file, of imagelet or of a kubelet.

#![no_main]

imagelet_fuzz::target!("configuration");
