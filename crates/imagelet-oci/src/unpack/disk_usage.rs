//! The space of files on the disk.

use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};

/// The unit of `st_blocks`, for every block size of the file system.
pub(crate) const BLOCK: u64 = 512;
/// ext4 maps a file by at most four extents of this size in its inode. Blocks for a longer map are allocated when the
/// file's data is written to the disk.
const EXTENT_MAX: u64 = 128 << 20;

/// Blocks and inodes that `statvfs` reports free after a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskUsage {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl DiskUsage {
    pub(crate) const MAX: Self = Self { bytes: u64::MAX, inodes: u64::MAX };

    pub(crate) fn add(&mut self, stat: &Stat) {
        self.bytes += u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(BLOCK);
        self.inodes += 1;
    }

    /// Adds a path that has just been finished. `None`: only a walk through the finished tree can tell, because the path
    /// may have further names, or blocks that are not allocated yet.
    pub(crate) fn with_finished(mut self, stat: &Stat) -> Option<Self> {
        self.add(stat);
        let is_final = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => true,
            _ => stat.st_nlink == 1 && stat.st_size.cast_unsigned() <= EXTENT_MAX,
        };
        is_final.then_some(self)
    }
}
