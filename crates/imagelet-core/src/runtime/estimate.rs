//! What a pull would still cost, told before it is begun.

use crate::image::{ByteSize, Digest};

/// What a pull would still cost, as far as manifests and what is already in the store tell.
///
/// It binds nobody: between the estimate and the pull a tag may move, and other pulls bring layers in or collection
/// takes them away. Two readers: the queue puts small pulls before large ones by [`Self::bytes_missing`]; admission
/// asks whether the disk has room for [`Self::bytes_on_disk`].
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
    /// Bytes the missing layers take once unpacked. `None`: nothing says it, see [`Self::bytes_on_disk`].
    pub bytes_unpacked: Option<ByteSize>,
    /// Inodes the missing layers take once unpacked. `None`: nothing says it.
    pub inodes: Option<u64>,
}

/// How much larger a layer is unpacked than packed, where nothing says it: what gzip makes of programs and text.
const EXPANSION: u64 = 3;

impl PullEstimate {
    /// Bytes the pull adds to the disk: as told, else three times what is fetched.
    pub fn bytes_on_disk(&self) -> ByteSize {
        self.bytes_unpacked.unwrap_or(ByteSize(self.bytes_missing.0.saturating_mul(EXPANSION)))
    }
}
