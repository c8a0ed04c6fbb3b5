//! The private readers and conversions that fuzz targets check. The program itself does not call this module.

pub mod containerd;
pub mod cri;
