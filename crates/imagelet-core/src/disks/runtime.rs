//! Statistics of a CRI runtime: its first file system, measured by the operating system.

use std::sync::Arc;

use super::{DiskStats, FsInfo, FsLookup, FsLookupError, FsStats, StatsError, stores::of_stores};
use crate::runtime::RuntimeManager;

/// Combines a runtime's report with the operating system's statistics of the same place.
///
/// Only the first file system counts and includes the writable layers, as in the kubelet. Operating-system values are
/// absent for an invisible place.
///
/// # Errors
/// When the runtime reports no place, or the operating system fails to read it.
pub fn of_runtime(info: &FsInfo, lookup: &dyn FsLookup) -> Result<DiskStats, StatsError> {
    let first = info.images.first().ok_or_else(|| StatsError::new("imageFs information is unavailable"))?;
    let mut images =
        FsStats { time: first.time, used_bytes: first.used, inodes_used: first.inodes_used, ..FsStats::default() };
    match first.mountpoint.as_deref().map(|mountpoint| lookup.look(mountpoint)) {
        Some(Ok(place)) => {
            images.capacity_bytes = Some(place.capacity);
            images.available_bytes = Some(place.available);
            images.inodes = place.inodes;
            images.inodes_free = place.inodes_free;
        }
        Some(Err(FsLookupError::Failed(error))) => {
            let what = "get filesystem info: Failed to get the info of the filesystem with mountpoint";
            return Err(StatsError::Other(format!("{what}: {error}")));
        }
        Some(Err(FsLookupError::Unknown)) => {
            let mountpoint = first.mountpoint.as_deref().map(|path| path.display().to_string());
            tracing::debug!(mountpoint, "Failed to get the info of the filesystem with mountpoint");
        }
        None => tracing::debug!("the runtime tells no mountpoint of its images"),
    }
    Ok(DiskStats { containers: images.clone(), images })
}

/// Measures the first file system of a store, or both where the store reports two devices and `splits` is set.
///
/// # Errors
/// When the store or the operating system does not answer.
pub async fn look(runtime: &RuntimeManager, lookup: Arc<dyn FsLookup>, splits: bool) -> Result<DiskStats, StatsError> {
    let told = FsInfo::from(&runtime.filesystem().await?);
    let looked = tokio::task::spawn_blocking(move || measure(&told, &*lookup, splits)).await;
    looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Depends on the fields the store reports, not on the store's name.
fn measure(told: &FsInfo, lookup: &dyn FsLookup, splits: bool) -> Result<DiskStats, StatsError> {
    let place = |entries: &[super::FsEntry]| {
        let mountpoint = entries.first().and_then(|entry| entry.mountpoint.clone());
        mountpoint.map(|mountpoint| lookup.look(&mountpoint).map_err(|error| error.to_string()))
    };
    match (place(&told.images), place(&told.containers)) {
        (Some(Ok(images)), Some(containers)) if splits && told.is_split() => {
            of_stores(&images, Some(told), || containers)
        }
        _ => of_runtime(told, lookup),
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::disks::{FsEntry, OsStats};

    #[derive(Debug)]
    struct TwoDevices;

    impl FsLookup for TwoDevices {
        fn look(&self, mountpoint: &Path) -> Result<OsStats, FsLookupError> {
            let is_first = mountpoint.starts_with("/a");
            let device = if is_first { "first" } else { "second" }.to_owned();
            let capacity = if is_first { 100 } else { 200 };
            Ok(OsStats { device, capacity, available: 50, inodes: Some(9), inodes_free: Some(4) })
        }
    }

    fn told(images: &str, containers: &str) -> FsInfo {
        let entry =
            |path: &str| vec![FsEntry { mountpoint: Some(PathBuf::from(path)), used: Some(7), ..FsEntry::default() }];
        FsInfo { images: entry(images), containers: entry(containers) }
    }

    #[test]
    fn two_places_on_two_devices_are_told_apart_where_that_is_wanted() {
        let capacities = |splits, images, containers| {
            let stats = measure(&told(images, containers), &TwoDevices, splits).unwrap();
            (stats.images.capacity_bytes.unwrap(), stats.containers.capacity_bytes.unwrap())
        };
        assert_eq!(capacities(true, "/a/images", "/b/layers"), (100, 200));
        assert_eq!(capacities(true, "/a/images", "/a/layers"), (100, 100), "one device is one file system");
        assert_eq!(capacities(false, "/a/images", "/b/layers"), (100, 100), "the kubelet looks at the first alone");
    }

    #[test]
    fn a_failing_lookup_is_told_and_an_unseen_place_is_not() {
        #[derive(Debug)]
        struct Broken(bool);
        impl FsLookup for Broken {
            fn look(&self, _mountpoint: &Path) -> Result<OsStats, FsLookupError> {
                Err(if self.0 { FsLookupError::Unknown } else { FsLookupError::Failed(std::io::Error::other("io")) })
            }
        }
        let error = measure(&told("/a", "/a"), &Broken(false), true).unwrap_err();
        assert_eq!(
            error.to_string(),
            "get filesystem info: Failed to get the info of the filesystem with mountpoint: io"
        );
        assert_eq!(measure(&told("/a", "/a"), &Broken(true), true).unwrap().images.capacity_bytes, None);
    }
}
