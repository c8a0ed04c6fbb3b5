//! Measures the disk usage of a folder.

use std::{collections::HashSet, io, path::Path};

use rustix::fs::{AtFlags, FileType, Stat};

use crate::{
    layer_folders::open_folder,
    store::files::walk::walk,
    unpack::{BLOCK, DiskUsage},
};

impl DiskUsage {
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

/// Measures a folder. `known` is an entry that is not measured, with the disk usage of it and everything below it.
pub(super) fn measure(folder: &Path, known: Option<(&str, DiskUsage)>) -> io::Result<DiskUsage> {
    let root = open_folder(folder)?;
    let (mut usage, mut linked) = (known.map_or_else(DiskUsage::default, |(_, usage)| usage), HashSet::new());
    let mut add = |stat: &Stat| {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory || stat.st_nlink <= 1 || linked.insert(stat.st_ino) {
            usage.add(stat);
        }
        is_directory
    };
    add(&rustix::fs::fstat(&root)?);
    walk(root, |path, found| {
        let (directory, name) = found?;
        if known.is_some_and(|(known, _)| path == known.as_bytes()) {
            return Ok(false);
        }
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
        let empty = measure(&root, None).expect("measured");
        assert_eq!(empty.inodes, 1);
        fs::create_dir(root.join("below")).expect("made");
        fs::write(root.join("below/file"), vec![7; 100_000]).expect("written");
        fs::hard_link(root.join("below/file"), root.join("again")).expect("linked");
        std::os::unix::fs::symlink("nowhere", root.join("link")).expect("linked");
        fs::File::create(root.join("hole")).and_then(|file| file.set_len(1 << 30)).expect("sized");
        let full = measure(&root, None).expect("measured");
        assert_eq!(full.inodes, 5);
        let added = full.bytes - empty.bytes;
        assert!((100_000..200_000).contains(&added), "{added}");
        fs::create_dir_all(folder.path().join("beside/root")).expect("made");
        let whole = measure(folder.path(), None).expect("measured");
        assert_eq!(
            measure(folder.path(), Some(("root", full))).expect("measured"),
            whole,
            "a known part is not walked"
        );
        assert!(measure(&root.join("below/file"), None).is_err() && measure(&root.join("absent"), None).is_err());
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
