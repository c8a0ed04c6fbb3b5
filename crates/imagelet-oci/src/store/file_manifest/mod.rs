//! The manifest of a layer's files, `files.list`: written while the layer is unpacked, and read to check it.

pub(super) mod read;
pub(super) mod write;
