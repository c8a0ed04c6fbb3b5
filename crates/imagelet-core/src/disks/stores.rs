//! The statistics of stores of which the operating system knows each: images and writable layers may be on two disks.

use super::{DiskStats, FsEntry, FsInfo, FsStats, OsStats, StatsError};

/// What the statistics are made from. What may not be needed is asked for when it is.
#[derive(Debug)]
pub struct StoreFacts<B, C> {
    /// Whether two file systems are told apart at all (the gate `KubeletSeparateDiskGC`).
    pub is_split_counted: bool,
    /// The file system of the store of images.
    pub image_store: Result<OsStats, String>,
    /// The sizes of all images together.
    pub image_bytes: B,
    /// What the runtime tells; `Ok(None)`: nothing at all.
    pub info: Result<Option<FsInfo>, String>,
    /// The file system of the store of writable layers.
    pub container_store: C,
}

/// Brings them together.
///
/// # Errors
/// Where one that is needed is not known.
pub fn of_stores<B, C>(facts: StoreFacts<B, C>) -> Result<DiskStats, StatsError>
where
    B: FnOnce() -> Result<u64, String>,
    C: FnOnce() -> Result<OsStats, String>,
{
    let store = facts.image_store.map_err(StatsError::ImageStore)?;
    if !facts.is_split_counted {
        let used = (facts.image_bytes)().map_err(StatsError::Images)?;
        let images = measured(&store, &FsEntry { used: Some(used), ..FsEntry::default() });
        return Ok(DiskStats { containers: images.clone(), images });
    }
    let info = facts.info.map_err(StatsError::Images)?;
    let info = info.ok_or_else(|| StatsError::Missing("<nil>".to_owned()))?;
    let (Some(images_told), Some(containers_told)) = (info.images.first(), info.containers.first()) else {
        let (images, containers) = (info.images.len(), info.containers.len());
        return Err(StatsError::Missing(format!(
            "{images} file systems of images and {containers} of containers were told"
        )));
    };
    let images = measured(&store, images_told);
    if !info.is_split() {
        return Ok(DiskStats { containers: images.clone(), images });
    }
    let container_store = (facts.container_store)().map_err(StatsError::ContainerStore)?;
    if container_store.device == store.device {
        return Ok(DiskStats { containers: images.clone(), images });
    }
    Ok(DiskStats { containers: measured(&container_store, containers_told), images })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fails() -> Result<OsStats, String> {
        Err("no containerfs label for configured runtime".to_owned())
    }

    #[test]
    fn failures_are_told_in_the_kubelets_words() {
        let no_label = || Err("no imagefs label for configured runtime".to_owned());
        let two = |first: &str, second: &str| {
            let entry = |path: &str| vec![FsEntry { mountpoint: Some(path.into()), ..FsEntry::default() }];
            Ok(Some(FsInfo { images: entry(first), containers: entry(second) }))
        };
        let text = |is_split_counted, image_store, bytes: Result<u64, String>, info| {
            let facts =
                StoreFacts { is_split_counted, image_store, image_bytes: || bytes, info, container_store: fails };
            of_stores(facts).unwrap_err().to_string()
        };
        assert_eq!(
            text(true, no_label(), Ok(0), Ok(None)),
            "failed to get imageFs info: no imagefs label for configured runtime"
        );
        let down = || Err("down".to_owned());
        assert_eq!(text(false, Ok(OsStats::default()), down(), Ok(None)), "failed to get image stats: down");
        let failed = Err("down".to_owned());
        assert_eq!(text(true, Ok(OsStats::default()), Ok(0), failed), "failed to get image stats: down");
        assert_eq!(
            text(true, Ok(OsStats::default()), Ok(0), two("/a", "/b")),
            "failed to get container fs info: no containerfs label for configured runtime"
        );
    }

    #[test]
    fn without_the_gate_images_take_the_sum_of_their_sizes() {
        let facts = StoreFacts {
            is_split_counted: false,
            image_store: Ok(OsStats { inodes: Some(9), inodes_free: Some(4), ..OsStats::default() }),
            image_bytes: || Ok(77),
            info: Ok(None),
            container_store: fails,
        };
        let stats = of_stores(facts).unwrap();
        assert_eq!((stats.images.used_bytes, stats.images.inodes_used), (Some(77), Some(5)));
        assert_eq!(stats.images, stats.containers);
    }
}
