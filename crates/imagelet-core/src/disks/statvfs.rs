//! The usage of the disk of a directory, measured by `statvfs` (`docs/spec/gc.md §13.2`).

use std::{fmt, io, path::Path};

use crate::{
    image::ByteSize,
    runtime::{Certainty, Freed},
};

/// Capacity and usage of a disk; all zero where it could not be measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// The identity of the file system.
    pub device: String,
    /// Capacity in bytes.
    pub capacity: ByteSize,
    /// Bytes that an unprivileged user can write; at most the capacity.
    pub available: ByteSize,
    /// All inodes, where the file system counts them.
    pub inodes: Option<u64>,
    /// Free inodes, where the file system counts them.
    pub inodes_free: Option<u64>,
    /// Reservations of running pulls that are not written yet.
    pub reserved: Freed,
}

impl DiskUse {
    /// Available bytes above the capacity are cut to it.
    pub fn of(capacity: ByteSize, available: ByteSize) -> Self {
        if available > capacity {
            tracing::info!(available = available.0, capacity = capacity.0, "Availability is larger than capacity");
        }
        Self { capacity, available: available.min(capacity), ..Self::default() }
    }

    /// Capacity minus available; reserved blocks count as used, as in [`Self::used_percent`].
    pub fn used(&self) -> ByteSize {
        self.capacity.saturating_sub(self.available)
    }

    pub(crate) fn with_more_available(&self, freed: Freed) -> Self {
        let available = (self.available + freed.bytes).min(self.capacity);
        let inodes_free = self.inodes_free.map(|free| free.saturating_add(freed.inodes));
        Self { available, inodes_free, ..self.clone() }
    }

    /// Caps claimed bytes at the bytes in use: listed sizes count shared layers in each image.
    pub(crate) fn at_most_used(&self, freed: Freed, certainty: Certainty) -> Freed {
        if certainty != Certainty::Claimed || self.capacity == ByteSize::ZERO {
            return freed;
        }
        Freed { bytes: freed.bytes.min(self.used()), ..freed }
    }

    /// The share in use, rounded up to the next percent; 100 for a disk without capacity.
    pub fn used_percent(&self) -> u8 {
        if self.capacity == ByteSize::ZERO {
            return 100;
        }
        let free = u128::from(self.available.0) * 100 / u128::from(self.capacity.0);
        100 - u8::try_from(free.min(100)).unwrap_or(100)
    }
}

/// Measures the disk of a directory.
pub trait DiskProbe: Send + Sync + fmt::Debug {
    /// Measures the disk now. May block.
    fn look(&self, directory: &Path) -> io::Result<DiskUse>;
}

/// Measures through the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatVfs;

impl DiskProbe for StatVfs {
    fn look(&self, directory: &Path) -> io::Result<DiskUse> {
        let (stat, place) = (rustix::fs::statvfs(directory)?, rustix::fs::stat(directory)?);
        let bytes = |blocks: u64| ByteSize(stat.f_frsize.saturating_mul(blocks));
        Ok(DiskUse {
            device: format!("{}:{}", rustix::fs::major(place.st_dev), rustix::fs::minor(place.st_dev)),
            inodes: Some(stat.f_files).filter(|count| *count > 0),
            inodes_free: Some(stat.f_ffree).filter(|_| stat.f_files > 0),
            ..DiskUse::of(bytes(stat.f_blocks), bytes(stat.f_bavail))
        })
    }
}

/// The usage of the disk; `None` where the directory is not visible from this process, which is not a failure.
pub(crate) fn visible(probe: &dyn DiskProbe, directory: &Path) -> io::Result<Option<DiskUse>> {
    match probe.look(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::debug!(directory = %directory.display(), "the image filesystem is not visible from here");
            Ok(None)
        }
        looked => looked.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_rounded_up_to_the_next_percent() {
        for (capacity, available, percent) in [
            (1000, 600, 40),
            (1000, 109, 90),
            (1000, 110, 89),
            (1000, 0, 100),
            (1000, 5000, 0),
            (0, 0, 100),
            (u64::MAX, u64::MAX / 10, 91),
        ] {
            let disk = DiskUse::of(ByteSize(capacity), ByteSize(available));
            assert_eq!(disk.used_percent(), percent, "{available} of {capacity}");
        }
    }

    #[test]
    fn no_more_is_claimed_to_come_free_than_is_in_use() {
        let freed = |bytes| Freed { bytes: ByteSize(bytes), inodes: 7 };
        for (capacity, certainty, claimed, counted) in [
            (1000, Certainty::Claimed, 500, 400),
            (1000, Certainty::Claimed, 300, 300),
            (1000, Certainty::Exact, 500, 500),
            // An invisible disk.
            (0, Certainty::Claimed, 500, 500),
        ] {
            let disk = DiskUse::of(ByteSize(capacity), ByteSize(600));
            assert_eq!(disk.at_most_used(freed(claimed), certainty), freed(counted), "{capacity} {certainty:?}");
        }
    }

    #[test]
    fn the_operating_system_reports_the_disk_of_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let here = StatVfs.look(directory.path()).unwrap();
        assert!(here.capacity > ByteSize::ZERO && here.available <= here.capacity);
        let inside = directory.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        assert_eq!(StatVfs.look(&inside).unwrap().device, here.device);
        assert_eq!(visible(&StatVfs, &directory.path().join("absent")).unwrap(), None);
    }
}
