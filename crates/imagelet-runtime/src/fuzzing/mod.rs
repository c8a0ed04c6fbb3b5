//! Access for fuzz targets to private parsers and conversions. The program does not call this module.

pub mod containerd;
pub mod cri;
