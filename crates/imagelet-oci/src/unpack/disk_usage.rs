//! Blocks and inodes of files, counted while the files are written.

use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};

/// The unit of `st_blocks`, for every block size of the file system.
pub(crate) const BLOCK: u64 = 512;
/// The largest extent of ext4 with its smallest blocks. An inode has four extents. For more extents, ext4 allocates a
/// block when it writes the file's data back.
const EXTENT_MAX: u64 = 32 << 20;

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

    /// Adds a finished path. Returns `None` if only a walk through the finished tree can measure it: the path has more
    /// names, or its write-back allocates blocks.
    pub(crate) fn with_finished(mut self, stat: &Stat) -> Option<Self> {
        self.add(stat);
        let (size, blocks) = (stat.st_size.cast_unsigned(), stat.st_blocks.cast_unsigned());
        let is_final = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => true,
            // A file with holes may have as many extents as blocks.
            FileType::RegularFile => stat.st_nlink == 1 && size <= EXTENT_MAX && blocks.saturating_mul(BLOCK) >= size,
            _ => stat.st_nlink == 1,
        };
        is_final.then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn what_a_path_takes_is_known_if_its_blocks_and_its_name_are_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("empty"), "").unwrap();
        fs::write(path("file"), vec![7; 100_000]).unwrap();
        fs::write(path("large"), vec![7; 33 << 20]).unwrap();
        fs::write(path("twice"), "1").unwrap();
        fs::hard_link(path("twice"), path("again")).unwrap();
        fs::File::create(path("hole")).unwrap().set_len(1 << 20).unwrap();
        symlink("nowhere", path("link")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        for (name, is_known) in [
            ("empty", true),
            ("file", true),
            ("link", true),
            ("folder", true),
            ("large", false),
            ("twice", false),
            ("again", false),
            ("hole", false),
        ] {
            let stat = rustix::fs::lstat(path(name)).unwrap();
            let usage = DiskUsage { bytes: 1, inodes: 2 }.with_finished(&stat);
            let known = DiskUsage { bytes: 1 + stat.st_blocks.cast_unsigned() * 512, inodes: 3 };
            assert_eq!(usage, is_known.then_some(known), "{name}");
        }
    }
}
