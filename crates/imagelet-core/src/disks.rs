//! Usage of the file systems of images and of writable layers, in the kubelet's terms (`docs/spec/gc.md §13`).

use std::{fmt, io, path::Path, time::SystemTime};

use crate::{
    image::ByteSize,
    ports::{Certainty, FilesystemUsage, Freed, ImageFilesystems},
    text::PlainError,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsStats {
    pub measured_at: SystemTime,
    pub used: ByteSize,
    pub inodes_used: Option<u64>,
    /// The disk of the file system. `None` if this process cannot see the disk.
    pub disk: Option<DiskUse>,
}

/// The file systems of images and of writable layers. The fields are equal if there is only one file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStats {
    pub images: FsStats,
    pub containers: FsStats,
}

impl DiskStats {
    /// Measures the file system of images and writable layers, or two file systems if they are separate. May block.
    pub fn measure(reported: &ImageFilesystems, probe: &dyn DiskProbe) -> Result<Self, PlainError> {
        if let Some((images, containers)) = split(reported)
            && let Ok(disk) = probe.look(&images.mountpoint)
        {
            return Self::of_stores(disk, reported, || probe.look(&containers.mountpoint));
        }
        Self::of_runtime(reported, probe)
    }

    /// Takes the first reported file system for images and for writable layers, as the kubelet does.
    fn of_runtime(reported: &ImageFilesystems, probe: &dyn DiskProbe) -> Result<Self, PlainError> {
        let first = image_filesystem(reported)?;
        let disk = image_disk(first, probe)?;
        let (measured_at, used, inodes_used) = (first.measured_at, first.used, first.inodes_used);
        let images = FsStats { measured_at, used, inodes_used, disk };
        Ok(Self { containers: images.clone(), images })
    }

    fn of_stores(
        image_disk: DiskUse,
        reported: &ImageFilesystems,
        container_disk: impl FnOnce() -> io::Result<DiskUse>,
    ) -> Result<Self, PlainError> {
        let (Some(of_images), Some(of_containers)) = (reported.images.first(), reported.containers.first()) else {
            let (images, containers) = (reported.images.len(), reported.containers.len());
            return Err(PlainError(format!(
                "missing image stats: {images} file systems of images and {containers} of containers were reported"
            )));
        };
        let container_disk = split(reported).map(|_| container_disk()).transpose();
        let container_disk =
            container_disk.map_err(|error| PlainError(format!("failed to get container fs info: {error}")))?;
        let other = container_disk.filter(|disk| disk.device != image_disk.device);
        let images = measured(of_images, image_disk);
        Ok(Self { containers: other.map_or_else(|| images.clone(), |disk| measured(of_containers, disk)), images })
    }
}

pub(crate) fn image_filesystem(reported: &ImageFilesystems) -> Result<&FilesystemUsage, PlainError> {
    reported.images.first().ok_or_else(|| PlainError::new("imageFs information is unavailable"))
}

/// Measures the disk on which the images are. `None`: this process cannot see their folder.
pub(crate) fn image_disk(images: &FilesystemUsage, probe: &dyn DiskProbe) -> Result<Option<DiskUse>, PlainError> {
    match probe.look(&images.mountpoint) {
        Ok(disk) => Ok(Some(disk)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::debug!(directory = %images.mountpoint.display(), "the image filesystem is not visible from here");
            Ok(None)
        }
        Err(error) => {
            let what = "get filesystem info: Failed to get the info of the filesystem with mountpoint";
            Err(PlainError(format!("{what}: {error}")))
        }
    }
}

/// The file systems of images and of writable layers. `None`: the runtime does not report two mount points.
fn split(reported: &ImageFilesystems) -> Option<(&FilesystemUsage, &FilesystemUsage)> {
    let (images, containers) = (reported.images.first()?, reported.containers.first()?);
    let is_placed = |usage: &FilesystemUsage| !usage.mountpoint.as_os_str().is_empty();
    let is_split = is_placed(images) && is_placed(containers) && images.mountpoint != containers.mountpoint;
    is_split.then_some((images, containers))
}

fn measured(reported: &FilesystemUsage, disk: DiskUse) -> FsStats {
    let inodes_used = disk.inodes.zip(disk.inodes_free).map(|(all, free)| all.saturating_sub(free));
    FsStats { measured_at: reported.measured_at, used: reported.used, inodes_used, disk: Some(disk) }
}

/// A measurement of a disk. All fields are zero if the measurement failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    pub device: String,
    pub capacity: ByteSize,
    /// Bytes that an unprivileged user can write. At most the capacity.
    pub available: ByteSize,
    /// Total and free inodes, if the file system counts them.
    pub inodes: Option<u64>,
    pub inodes_free: Option<u64>,
    /// Disk space that running pulls have reserved but not yet written.
    pub reserved: Freed,
}

impl DiskUse {
    pub fn of(capacity: ByteSize, available: ByteSize) -> Self {
        if available > capacity {
            tracing::info!(available = available.0, capacity = capacity.0, "Availability is larger than capacity");
        }
        Self { capacity, available: available.min(capacity), ..Self::default() }
    }

    /// The used bytes, including the blocks that the file system reserves for root.
    pub fn used(&self) -> ByteSize {
        self.capacity.saturating_sub(self.available)
    }

    pub(crate) fn with_more_available(&self, freed: Freed) -> Self {
        let available = (self.available + freed.bytes).min(self.capacity);
        let inodes_free = self.inodes_free.map(|free| free.saturating_add(freed.inodes));
        Self { available, inodes_free, ..self.clone() }
    }

    /// Limits a claimed `freed` to the used bytes, because a claimed sum counts a shared layer once per image.
    pub(crate) fn at_most_used(&self, freed: Freed, certainty: Certainty) -> Freed {
        if certainty != Certainty::Claimed || self.capacity == ByteSize::ZERO {
            return freed;
        }
        Freed { bytes: freed.bytes.min(self.used()), ..freed }
    }

    /// The used share in percent, rounded up. 100 for a disk without capacity.
    pub fn used_percent(&self) -> u8 {
        if self.capacity == ByteSize::ZERO {
            return 100;
        }
        let free = u128::from(self.available.0) * 100 / u128::from(self.capacity.0);
        100 - u8::try_from(free.min(100)).unwrap_or(100)
    }
}

pub trait DiskProbe: Send + Sync + fmt::Debug {
    /// Measures the disk on which the directory is. May block.
    fn look(&self, directory: &Path) -> io::Result<DiskUse>;
}

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

#[cfg(test)]
mod tests {
    use std::{cell::Cell, path::PathBuf, time::Duration};

    use imagelet_vectors::vectors;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug)]
    struct Scripted(Value);

    impl DiskProbe for Scripted {
        fn look(&self, mountpoint: &Path) -> io::Result<DiskUse> {
            let answer = &self.0[mountpoint.to_str().unwrap()];
            match answer["error"].as_str() {
                Some("no such device") => return Err(io::ErrorKind::NotFound.into()),
                Some(error) => return Err(io::Error::other(error)),
                None => {}
            }
            let bytes = |field: &str| ByteSize(answer[field].as_u64().unwrap());
            Ok(DiskUse {
                device: answer["device"].as_str().unwrap_or_default().to_owned(),
                inodes: answer["inodes"].as_u64(),
                inodes_free: answer["inodes_free"].as_u64(),
                ..DiskUse::of(bytes("capacity"), bytes("available"))
            })
        }
    }

    fn usage(value: &Value) -> FilesystemUsage {
        FilesystemUsage {
            measured_at: SystemTime::UNIX_EPOCH + Duration::from_nanos(value["timestamp"].as_u64().unwrap_or_default()),
            mountpoint: PathBuf::from(value["fs_id"]["mountpoint"].as_str().unwrap_or_default()),
            used: ByteSize(value["used_bytes"].as_u64().unwrap_or_default()),
            inodes_used: value["inodes_used"].as_u64(),
        }
    }

    fn reported(value: &Value) -> ImageFilesystems {
        let usages = |field: &str| value[field].as_array().into_iter().flatten().map(usage).collect();
        let (images, containers) = (usages("image_filesystems"), usages("container_filesystems"));
        ImageFilesystems { images, containers, ..ImageFilesystems::default() }
    }

    /// The kubelet's summary as the vectors write it.
    fn summary(stats: &FsStats) -> Value {
        let disk = |field: fn(&DiskUse) -> Option<u64>| stats.disk.as_ref().and_then(field);
        json!({
            "time": u64::try_from(stats.measured_at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos()).unwrap(),
            "used_bytes": stats.used.0,
            "inodes_used": stats.inodes_used,
            "capacity_bytes": disk(|disk| Some(disk.capacity.0)),
            "available_bytes": disk(|disk| Some(disk.available.0)),
            "inodes": disk(|disk| disk.inodes),
            "inodes_free": disk(|disk| disk.inodes_free),
        })
    }

    #[test]
    fn every_vector_of_file_system_statistics_holds() {
        let cases = vectors("gc-imagefs-stats.json");
        assert_eq!(cases.len(), 13);
        let mut compared = 0;
        for case in &cases {
            let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
            let mut seen = serde_json::Map::new();
            let result = match input["provider"].as_str().unwrap() {
                "cadvisor" => {
                    let asked = Cell::new(false);
                    let disk = |device: &str| DiskUse { device: device.to_owned(), ..DiskUse::default() };
                    let result = DiskStats::of_stores(disk("images"), &reported(&input["image_fs_info"]), || {
                        asked.set(true);
                        Ok(disk("containers"))
                    });
                    seen.insert("container_fs_queried".into(), asked.get().into());
                    result
                }
                "cri" => {
                    let probe = Scripted(input["statfs"].clone());
                    let result = DiskStats::of_runtime(&reported(&input["image_fs_info"]), &probe);
                    if let Ok(stats) = &result {
                        // A collection refuses a disk that it cannot see.
                        let gc_error = stats.images.disk.is_none().then_some("invalid capacity 0 on image filesystem");
                        seen.insert("then_gc_error".into(), gc_error.into());
                        seen.insert("container_fs_equals_image_fs".into(), (stats.images == stats.containers).into());
                        let shown = summary(&stats.images);
                        for (field, value) in expected["image_fs"].as_object().unwrap() {
                            assert_eq!(shown[field], *value, "{name}: {field}");
                        }
                        seen.insert("image_fs".into(), expected["image_fs"].clone());
                    }
                    result
                }
                // Which file systems share a disk matters to evictions alone, which are the kubelet's.
                "layout" => continue,
                other => panic!("{other}"),
            };
            seen.insert("error".into(), result.is_err().into());
            let text = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
            for (field, wanted) in expected.as_object().unwrap() {
                match field.as_str() {
                    "error_text" => assert_eq!(*wanted, text, "{name}"),
                    "error_text_prefix" => assert!(text.starts_with(wanted.as_str().unwrap()), "{name}: {text}"),
                    field => assert_eq!(seen.get(field), Some(wanted), "{name}: {field}"),
                }
                compared += 1;
            }
        }
        assert_eq!(compared, 26, "fields compared");
    }

    fn places(images: &str, containers: &str) -> ImageFilesystems {
        let entry = |path: &str| json!([{"fs_id": {"mountpoint": path}, "used_bytes": 7}]);
        reported(&json!({"image_filesystems": entry(images), "container_filesystems": entry(containers)}))
    }

    #[test]
    fn two_places_on_two_devices_are_distinguished() {
        let disk = |device, capacity| json!({"device": device, "capacity": capacity, "available": 50});
        let probe = Scripted(json!({"/a": disk("a", 100), "/a/layers": disk("a", 100), "/b": disk("b", 200)}));
        let capacities = |images, containers| {
            let stats = DiskStats::measure(&places(images, containers), &probe).unwrap();
            [stats.images, stats.containers].map(|stats| stats.disk.unwrap().capacity.0)
        };
        assert_eq!(capacities("/a", "/b"), [100, 200]);
        assert_eq!(capacities("/a", "/a/layers"), [100, 100], "one device is one file system");
    }

    #[test]
    fn a_failed_probe_is_an_error_and_an_invisible_place_is_not() {
        let probe = Scripted(json!({"/a": {"error": "io"}, "/b": {"error": "no such device"}}));
        let error = DiskStats::measure(&places("/a", "/a"), &probe).unwrap_err();
        assert_eq!(
            error.to_string(),
            "get filesystem info: Failed to get the info of the filesystem with mountpoint: io"
        );
        assert_eq!(DiskStats::measure(&places("/b", "/b"), &probe).unwrap().images.disk, None);
    }

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
        let absent = FilesystemUsage::nothing(directory.path().join("absent"), SystemTime::UNIX_EPOCH);
        assert_eq!(image_disk(&absent, &StatVfs).unwrap(), None);
    }
}
