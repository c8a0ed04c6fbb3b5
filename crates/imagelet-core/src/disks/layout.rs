//! Whether images have a disk of their own.

use super::{DiskStats, FsInfo, FsLookup, FsStats, StatsError};

/// Whether the image device differs from the node's, or its numbers differ from the writable layers' on one device.
pub fn has_dedicated_images(root_device: &str, image_device: &str, stats: &DiskStats) -> bool {
    let numbers = |stats: &FsStats| {
        (stats.available_bytes, stats.capacity_bytes, stats.inodes_used, stats.inodes_free, stats.inodes)
    };
    root_device != image_device || numbers(&stats.images) != numbers(&stats.containers)
}

/// The device of the first readable image file system.
///
/// # Errors
/// When no image file system is readable.
pub fn image_device(info: &FsInfo, lookup: &dyn FsLookup) -> Result<String, StatsError> {
    let mut places = info.images.iter().filter_map(|entry| entry.mountpoint.as_deref());
    places
        .find_map(|place| lookup.look(place).ok())
        .map(|found| found.device)
        .ok_or_else(|| StatsError::new("imagefs device is not found"))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::disks::{FsEntry, FsLookupError, OsStats};

    #[derive(Debug)]
    struct OnlyB;

    impl FsLookup for OnlyB {
        fn look(&self, mountpoint: &Path) -> Result<OsStats, FsLookupError> {
            let found = OsStats { device: "b".to_owned(), ..OsStats::default() };
            if mountpoint == Path::new("/b") { Ok(found) } else { Err(FsLookupError::Unknown) }
        }
    }

    #[test]
    fn the_first_place_that_can_be_looked_at_tells_the_device() {
        let entry = |path: &str| FsEntry { mountpoint: Some(PathBuf::from(path)), ..FsEntry::default() };
        let info = FsInfo { images: vec![FsEntry::default(), entry("/a"), entry("/b")], containers: Vec::new() };
        assert_eq!(image_device(&info, &OnlyB).unwrap(), "b");
        let none = FsInfo { images: vec![entry("/a")], containers: Vec::new() };
        assert_eq!(image_device(&none, &OnlyB).unwrap_err().to_string(), "imagefs device is not found");
    }
}
