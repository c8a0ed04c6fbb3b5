//! What the operating system says of the file system below a directory.

use std::{fmt, io, path::Path};

/// What it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsStats {
    /// What tells this file system from others.
    pub device: String,
    /// All its bytes.
    pub capacity: u64,
    /// Bytes an ordinary user can still write.
    pub available: u64,
    /// All its inodes, where it counts them.
    pub inodes: Option<u64>,
    /// Those still free, where it counts them.
    pub inodes_free: Option<u64>,
}

/// Why it says nothing.
#[derive(Debug, thiserror::Error)]
pub enum FsLookupError {
    /// The directory, or its device, is not to be seen from here: that is no failure, the numbers are just not known.
    #[error("the file system is not visible from here")]
    Unknown,
    /// Anything else.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// Looks at file systems.
pub trait FsLookup: Send + Sync + fmt::Debug {
    /// Looks now. May block.
    fn look(&self, mountpoint: &Path) -> Result<OsStats, FsLookupError>;
}

/// The operating system's own answer.
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
