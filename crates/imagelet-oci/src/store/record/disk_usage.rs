//! The disk usage of a folder: the blocks and inodes that `statvfs` reports free after its removal.

use std::{collections::HashSet, io, path::Path};

use rustix::fs::{AtFlags, FileType, Mode, Stat};
use serde::{Deserialize, Serialize};

use crate::store::files::walk::{DIRECTORY, walk};

/// The unit of `st_blocks`, for every block size of the file system.
const BLOCK: u64 = 512;
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskUsage {
    pub bytes: u64,
    pub inodes: u64,
}

impl DiskUsage {
    pub(crate) const MAX: Self = Self { bytes: u64::MAX, inodes: u64::MAX };

    /// This usage plus one more plain file of `size` bytes, in blocks of the folder's file system.
    pub(crate) fn with_file(self, folder: &Path, size: usize) -> io::Result<Self> {
        let bytes = self.bytes + in_blocks(size as u64, block_size(folder)?);
        Ok(Self { bytes, inodes: self.inodes + 1 })
    }
}

pub(crate) fn in_blocks(bytes: u64, block: u64) -> u64 {
    bytes.div_ceil(block.max(1)).saturating_mul(block)
}

pub(crate) fn block_size(folder: &Path) -> io::Result<u64> {
    Ok(rustix::fs::statvfs(folder)?.f_frsize.max(BLOCK))
}

pub(crate) fn measure(folder: &Path) -> io::Result<DiskUsage> {
    let root = rustix::fs::open(folder, DIRECTORY, Mode::empty())?;
    let (mut usage, mut linked) = (DiskUsage::default(), HashSet::new());
    let mut add = |stat: &Stat| {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory || stat.st_nlink <= 1 || linked.insert(stat.st_ino) {
            usage.bytes += u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(BLOCK);
            usage.inodes += 1;
        }
        is_directory
    };
    add(&rustix::fs::fstat(&root)?);
    walk(root, |_, found| {
        let (directory, name) = found?;
        Ok(add(&rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?))
    })?;
    Ok(usage)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_takes_its_files_once_its_folders_and_no_hole() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        fs::create_dir(&root).expect("made");
        let empty = measure(&root).expect("measured");
        assert_eq!(empty.inodes, 1);
        fs::create_dir(root.join("below")).expect("made");
        fs::write(root.join("below/file"), vec![7; 100_000]).expect("written");
        fs::hard_link(root.join("below/file"), root.join("again")).expect("linked");
        std::os::unix::fs::symlink("nowhere", root.join("link")).expect("linked");
        fs::File::create(root.join("hole")).and_then(|file| file.set_len(1 << 30)).expect("sized");
        let full = measure(&root).expect("measured");
        assert_eq!(full.inodes, 5);
        let added = full.bytes - empty.bytes;
        assert!((100_000..200_000).contains(&added), "{added}");
        assert!(measure(&root.join("below/file")).is_err() && measure(&root.join("absent")).is_err());
    }

    #[test]
    fn a_file_that_is_still_to_come_takes_whole_blocks() {
        let folder = tempfile::tempdir().expect("a folder");
        let block = block_size(folder.path()).expect("a size");
        let more = DiskUsage::default().with_file(folder.path(), 1).expect("measured");
        assert_eq!((more.bytes, more.inodes), (block, 1));
        assert_eq!((in_blocks(0, 4096), in_blocks(4097, 4096)), (0, 8192));
    }
}
