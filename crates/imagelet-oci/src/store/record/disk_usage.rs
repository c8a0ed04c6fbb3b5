//! The disk usage of a folder: allocated blocks and inodes, as `statvfs` reports them free after its removal.

use std::{
    collections::HashSet,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

/// The unit of `st_blocks`, whatever the file system's block size.
const BLOCK: u64 = 512;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskUsage {
    pub bytes: u64,
    pub inodes: u64,
}

impl DiskUsage {
    pub(crate) const MAX: Self = Self { bytes: u64::MAX, inodes: u64::MAX };

    /// The sum with one more plain file of `size` bytes, in blocks of this folder's file system.
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
    let mut here = rustix::fs::open(folder, DIRECTORY, Mode::empty())?;
    let mut sum = Sum::default();
    sum.add(&rustix::fs::fstat(&here)?);
    // For each open directory, the subdirectories still to visit.
    let mut below = vec![sum.entries(here.as_fd())?];
    while let Some(level) = below.last_mut() {
        if let Some(child) = level.pop() {
            here = rustix::fs::openat(&here, child.as_slice(), DIRECTORY, Mode::empty())?;
            below.push(sum.entries(here.as_fd())?);
        } else {
            below.pop();
            if !below.is_empty() {
                // Only this process moves directories in the store, so `..` is the directory visited before.
                here = rustix::fs::openat(&here, c"..", DIRECTORY, Mode::empty())?;
            }
        }
    }
    Ok(sum.allocated)
}

#[derive(Default)]
struct Sum {
    allocated: DiskUsage,
    linked: HashSet<u64>,
}

impl Sum {
    fn entries(&mut self, directory: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
        let mut below = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.add(&stat);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                below.push(name.to_bytes().to_vec());
            }
        }
        Ok(below)
    }

    fn add(&mut self, stat: &Stat) {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_directory && stat.st_nlink > 1 && !self.linked.insert(stat.st_ino) {
            return;
        }
        self.allocated.bytes += u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(BLOCK);
        self.allocated.inodes += 1;
    }
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
