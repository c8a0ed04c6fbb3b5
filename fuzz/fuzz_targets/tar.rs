//! Whole tar archives, unpacked into a folder in memory.

#![no_main]

imagelet_fuzz::target!("tar");
