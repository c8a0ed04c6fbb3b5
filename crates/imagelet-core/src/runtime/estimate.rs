//! What a pull would still cost, told before it is begun.

use crate::image::{ByteSize, Digest};

/// What a pull would still cost, as far as manifests and what is already in the store tell.
///
/// Between the estimate and the pull a tag may move, other pulls may bring layers in, and a collection may remove them.
/// The queue puts small pulls before large ones by [`Self::bytes_missing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullEstimate {
    /// Digest of the manifest chosen for the platform.
    pub manifest: Digest,
    /// Compressed bytes of all layers, each blob once.
    pub bytes_total: ByteSize,
    /// Compressed bytes of the layers that are not here yet, each blob once; zero when all are here.
    pub bytes_missing: ByteSize,
    /// How many layers are not here yet.
    pub layers_missing: usize,
    /// Bytes the missing layers take once unpacked. `None`: not known.
    pub bytes_unpacked: Option<ByteSize>,
    /// Inodes the missing layers take once unpacked. `None`: not known.
    pub inodes: Option<u64>,
}
