//! `files.list`: the manifest of the files of one layer, written while the layer is unpacked and read to check it.

pub(super) mod read;
pub(super) mod write;
