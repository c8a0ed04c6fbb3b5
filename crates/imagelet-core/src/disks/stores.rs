//! The statistics of stores of which the operating system knows each: images and writable layers may be on two disks.

use super::{DiskStats, FsEntry, FsInfo, FsStats, OsStats, StatsError};

/// Combines a store's report with the operating system's statistics of images and, on another device, writable layers.
///
/// # Errors
/// When a required value is unknown.
pub(super) fn of_stores(
    image_store: &OsStats,
    info: Option<&FsInfo>,
    container_store: impl FnOnce() -> Result<OsStats, String>,
) -> Result<DiskStats, StatsError> {
    let info = info.ok_or_else(|| StatsError::new("missing image stats: <nil>"))?;
    let (Some(of_images), Some(of_containers)) = (info.images.first(), info.containers.first()) else {
        let (images, containers) = (info.images.len(), info.containers.len());
        return Err(StatsError::Other(format!(
            "missing image stats: {images} file systems of images and {containers} of containers were reported"
        )));
    };
    let images = measured(image_store, of_images);
    if !info.is_split() {
        return Ok(DiskStats { containers: images.clone(), images });
    }
    let container_store =
        container_store().map_err(|error| StatsError::Other(format!("failed to get container fs info: {error}")))?;
    if container_store.device == image_store.device {
        return Ok(DiskStats { containers: images.clone(), images });
    }
    Ok(DiskStats { containers: measured(&container_store, of_containers), images })
}

fn measured(store: &OsStats, told: &FsEntry) -> FsStats {
    let inodes_used = store.inodes.zip(store.inodes_free).map(|(all, free)| all.saturating_sub(free));
    FsStats {
        time: told.time,
        available_bytes: Some(store.available),
        capacity_bytes: Some(store.capacity),
        used_bytes: Some(told.used.unwrap_or(0)),
        inodes_free: store.inodes_free,
        inodes: store.inodes,
        inodes_used,
    }
}
