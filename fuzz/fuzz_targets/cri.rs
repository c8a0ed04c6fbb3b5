//! Messages of CRI, of a kubelet and of a runtime.

#![no_main]

imagelet_fuzz::target!("cri");
