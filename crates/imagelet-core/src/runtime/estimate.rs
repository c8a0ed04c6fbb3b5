//! The estimated cost of a pull.

use crate::image::{ByteSize, Digest};

/// The estimated cost of a pull, from its manifests and the layers in the store.
///
/// Until the pull, a tag may move, and other pulls and collections may add or remove layers. The queue orders small
/// pulls before large ones by [`Self::bytes_missing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullEstimate {
    /// Digest of the manifest chosen for the platform.
    pub manifest: Digest,
    /// Compressed bytes of all distinct layers.
    pub bytes_total: ByteSize,
    /// Compressed bytes of the distinct missing layers.
    pub bytes_missing: ByteSize,
    /// Number of missing layers.
    pub layers_missing: usize,
    /// Unpacked bytes of the missing layers. `None`: not known.
    pub bytes_unpacked: Option<ByteSize>,
    /// Inodes of the missing layers. `None`: not known.
    pub inodes: Option<u64>,
}
