//! Usage of the file systems of images and of writable layers, in the kubelet's terms (`docs/spec/gc.md §13`).

mod layout;
mod runtime;
mod statvfs;
mod stores;
mod usage;

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

pub use self::{
    layout::{has_dedicated_images, image_device},
    runtime::{look, of_runtime},
    statvfs::{FsLookup, FsLookupError, OsLookup, OsStats},
    usage::{DiskUsage, NoCapacity},
};
use crate::runtime::{FilesystemUsage, ImageFilesystems};

/// Statistics of one file system. An absent value is unknown, not zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsStats {
    /// When it was measured, in nanoseconds since 1970.
    pub time: u64,
    /// Bytes that an unprivileged user can write.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub available_bytes: Option<u64>,
    /// Capacity in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub capacity_bytes: Option<u64>,
    /// Bytes in use by images or writable layers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub used_bytes: Option<u64>,
    /// Free inodes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub inodes_free: Option<u64>,
    /// All inodes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub inodes: Option<u64>,
    /// Inodes in use by images or writable layers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub inodes_used: Option<u64>,
}

/// Both file systems; equal where images and writable layers share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStats {
    /// The file system of images.
    pub images: FsStats,
    /// The file system of writable layers.
    pub containers: FsStats,
}

/// A store's report on one of its file systems; every field is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsEntry {
    /// When it was measured, in nanoseconds since 1970.
    pub time: u64,
    /// A directory on the file system.
    pub mountpoint: Option<PathBuf>,
    /// Bytes in use.
    pub used: Option<u64>,
    /// Inodes in use.
    pub inodes_used: Option<u64>,
}

/// A store's report on all its file systems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsInfo {
    /// File systems of images.
    pub images: Vec<FsEntry>,
    /// File systems of writable layers.
    pub containers: Vec<FsEntry>,
}

impl From<&ImageFilesystems> for FsInfo {
    fn from(told: &ImageFilesystems) -> Self {
        let entries = |usages: &[FilesystemUsage]| usages.iter().map(FsEntry::from).collect();
        Self { images: entries(&told.images), containers: entries(&told.containers) }
    }
}

impl From<&FilesystemUsage> for FsEntry {
    fn from(told: &FilesystemUsage) -> Self {
        let since = told.measured_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self {
            time: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
            mountpoint: Some(told.mountpoint.clone()).filter(|path| !path.as_os_str().is_empty()),
            used: Some(told.used.0),
            inodes_used: told.inodes_used,
        }
    }
}

impl FsInfo {
    /// Whether images and writable layers are reported in two places.
    pub fn is_split(&self) -> bool {
        let place = |entries: &[FsEntry]| entries.first().and_then(|entry| entry.mountpoint.clone());
        let (images, containers) = (place(&self.images), place(&self.containers));
        images.is_some() && containers.is_some() && images != containers
    }
}

/// Why the statistics are unknown. Prints what the kubelet prints.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// The runtime did not answer.
    #[error(transparent)]
    Runtime(#[from] crate::runtime::RuntimeError),
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

impl StatsError {
    fn new(text: impl Into<String>) -> Self {
        Self::Other(text.into())
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, path::Path};

    use serde_json::Value;

    use super::{stores::of_stores, *};
    use crate::testing::vectors;

    #[derive(Debug)]
    struct Scripted(Value);

    impl FsLookup for Scripted {
        fn look(&self, mountpoint: &Path) -> Result<OsStats, FsLookupError> {
            let answer = &self.0[mountpoint.to_str().unwrap()];
            if answer["error"] == "no such device" {
                return Err(FsLookupError::Unknown);
            }
            let number = |field: &str| answer[field].as_u64();
            Ok(OsStats {
                device: mountpoint.display().to_string(),
                capacity: number("capacity").unwrap(),
                available: number("available").unwrap(),
                inodes: number("inodes"),
                inodes_free: number("inodes_free"),
            })
        }
    }

    fn entry(value: &Value) -> FsEntry {
        FsEntry {
            time: value["timestamp"].as_u64().unwrap_or_default(),
            mountpoint: value["fs_id"]["mountpoint"].as_str().map(PathBuf::from),
            used: value["used_bytes"].as_u64(),
            inodes_used: value["inodes_used"].as_u64(),
        }
    }

    fn info(value: &Value) -> Option<FsInfo> {
        let entries = |field: &str| value[field].as_array().into_iter().flatten().map(entry).collect::<Vec<FsEntry>>();
        (!value.is_null())
            .then(|| FsInfo { images: entries("image_filesystems"), containers: entries("container_filesystems") })
    }

    /// The vectors use the kubelet's summary field names in another case.
    fn has_fields(stats: &FsStats, expected: &Value) -> bool {
        let shown = serde_json::to_value(stats).unwrap();
        let camel = |name: &str| {
            let mut words = name.split('_');
            let first = words.next().unwrap_or_default().to_owned();
            words.fold(first, |done, word| done + &word[..1].to_uppercase() + &word[1..])
        };
        expected.as_object().unwrap().iter().all(|(name, value)| shown[camel(name).as_str()] == *value)
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
                    let store = OsStats { device: "images".into(), ..OsStats::default() };
                    let result = of_stores(&store, info(&input["image_fs_info"]).as_ref(), || {
                        asked.set(true);
                        Ok(OsStats { device: "containers".into(), ..OsStats::default() })
                    });
                    seen.insert("container_fs_queried".into(), asked.get().into());
                    result
                }
                "cri" => {
                    let lookup = Scripted(input["statfs"].clone());
                    let result = of_runtime(&info(&input["image_fs_info"]).unwrap(), &lookup);
                    if let Ok(stats) = &result {
                        let gc_error = DiskUsage::of(stats.images.capacity_bytes, stats.images.available_bytes).err();
                        seen.insert("then_gc_error".into(), gc_error.map(|error| error.to_string()).into());
                        seen.insert("container_fs_equals_image_fs".into(), (stats.images == stats.containers).into());
                        assert!(has_fields(&stats.images, &expected["image_fs"]), "{name}: {stats:?}");
                        seen.insert("image_fs".into(), expected["image_fs"].clone());
                    }
                    result
                }
                "layout" => {
                    let stats = |value: &Value| FsStats {
                        available_bytes: value["available_bytes"].as_u64(),
                        ..FsStats::default()
                    };
                    let text = |field: &str| input[field].as_str().unwrap().to_owned();
                    let images = stats(&input["image_fs"]);
                    let containers =
                        if input["container_fs"].is_null() { images.clone() } else { stats(&input["container_fs"]) };
                    let dedicated = has_dedicated_images(
                        &text("rootfs_device"),
                        &text("imagefs_device"),
                        &DiskStats { images, containers },
                    );
                    assert_eq!(expected["dedicated_image_fs"], dedicated, "{name}");
                    compared += 1;
                    continue;
                }
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
        assert_eq!(compared, 29, "fields compared");
    }
}
