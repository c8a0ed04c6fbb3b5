//! File-system statistics of a directory, read through `statvfs`.

use std::{fmt, io, path::Path};

/// The statistics of one file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsStats {
    /// The identity of the file system.
    pub device: String,
    /// Capacity in bytes.
    pub capacity: u64,
    /// Bytes that an unprivileged user can write.
    pub available: u64,
    /// All inodes, where the file system counts them.
    pub inodes: Option<u64>,
    /// Free inodes, where the file system counts them.
    pub inodes_free: Option<u64>,
}

/// Why a lookup has no result.
#[derive(Debug, thiserror::Error)]
pub enum FsLookupError {
    /// The directory or its device is not visible from this process; the values are unknown, which is not a failure.
    #[error("the file system is not visible from here")]
    Unknown,
    /// Any other error.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// Reads file-system statistics.
pub trait FsLookup: Send + Sync + fmt::Debug {
    /// Reads the statistics now. May block.
    fn look(&self, mountpoint: &Path) -> Result<OsStats, FsLookupError>;
}

/// Reads through the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsLookup;

impl FsLookup for OsLookup {
    fn look(&self, mountpoint: &Path) -> Result<OsStats, FsLookupError> {
        let unseen = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => FsLookupError::Unknown,
            _ => FsLookupError::Failed(error),
        };
        let stat = rustix::fs::statvfs(mountpoint).map_err(|error| unseen(error.into()))?;
        let place = rustix::fs::stat(mountpoint).map_err(|error| unseen(error.into()))?;
        let (major, minor) = (rustix::fs::major(place.st_dev), rustix::fs::minor(place.st_dev));
        Ok(OsStats {
            device: format!("{major}:{minor}"),
            capacity: stat.f_frsize.saturating_mul(stat.f_blocks),
            available: stat.f_frsize.saturating_mul(stat.f_bavail),
            inodes: Some(stat.f_files).filter(|count| *count > 0),
            inodes_free: Some(stat.f_ffree).filter(|_| stat.f_files > 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operating_system_knows_the_file_system_of_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let here = OsLookup.look(directory.path()).unwrap();
        assert!(here.capacity > 0 && here.available <= here.capacity);
        let inside = directory.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        assert_eq!(OsLookup.look(&inside).unwrap().device, here.device);
        assert!(matches!(OsLookup.look(&directory.path().join("absent")), Err(FsLookupError::Unknown)));
    }
}
