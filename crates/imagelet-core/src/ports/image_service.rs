//! The port to an image store, and the usage of its file systems (`docs/spec/cri.md §5.7`).

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::SystemTime};

use async_trait::async_trait;

use super::{Freed, ImageDetails, LocalStore, Progress, PullRequest, RegistryHost};
use crate::error::RuntimeError;
use crate::image::{ByteSize, Image, ImageId, ImageSpec, Reference};

/// An image store: a runtime behind CRI, the embedded engine, or a fake.
///
/// The conformance suite of `testing` checks these guarantees: a pulled image is listed at once, and a removed image is
/// not listed. An image has the same id in every response. A failed or dropped pull leaves no image.
#[async_trait]
pub trait ImageService: Send + Sync + fmt::Debug {
    /// Lists images, each image once. With a filter, lists only the image that `status` finds for the filter.
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError>;

    /// Finds one image by reference, id, or unique id prefix. `None`: the image is absent, which is not an error.
    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError>;

    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        Ok(self.status(spec).await?.map(ImageDetails::bare))
    }

    /// Fetches an image, even if it is present. Returns when the image is durable. A drop of the future cancels the
    /// pull and leaves no partial image. `progress` may be called from any thread, and must not block.
    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError>;

    /// The other hosts, besides the registry, that a pull of an image may contact and that have their own credentials.
    /// Empty if a runtime pulls, because the runtime knows its hosts.
    async fn registry_hosts(&self, _image: &Reference) -> Vec<RegistryHost> {
        Vec::new()
    }

    /// Removes an image with all its names. A missing image is not an error.
    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError>;

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError>;

    /// The further operations of an embedded store. `None`: the store is a runtime behind a socket.
    fn local(&self) -> Option<&dyn LocalStore> {
        None
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFilesystems {
    pub images: Vec<FilesystemUsage>,
    /// The file systems of writable layers. Has the same entry as `images` if images are on the same file system.
    pub containers: Vec<FilesystemUsage>,
    /// Disk space that running pulls have reserved but not yet written.
    pub reserved: Freed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemUsage {
    pub measured_at: SystemTime,
    /// A directory on the file system, for statvfs.
    pub mountpoint: PathBuf,
    pub used: ByteSize,
    pub inodes_used: Option<u64>,
}

/// A measurement in one store: of a layer, of a snapshot, or of the whole store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreMeasure {
    pub store: String,
    pub bytes: ByteSize,
    pub inodes: u64,
    pub at: SystemTime,
}

impl FilesystemUsage {
    pub fn nothing(mountpoint: PathBuf, now: SystemTime) -> Self {
        Self { measured_at: now, mountpoint, used: ByteSize::ZERO, inodes_used: Some(0) }
    }

    /// One entry per store, with the time of its oldest measurement. `now` replaces a time that CRI cannot represent.
    /// The default store is first, even if it is empty, because callers read only the first entry.
    pub fn by_store(
        default: &str,
        roots: &BTreeMap<String, PathBuf>,
        measures: &[StoreMeasure],
        now: SystemTime,
    ) -> Vec<Self> {
        let others = roots.keys().map(String::as_str).filter(|store| *store != default);
        let sum = |store: &str| {
            let of_store: Vec<_> = measures.iter().filter(|measure| measure.store == store).collect();
            let at = |measure: &&StoreMeasure| if measure.at > SystemTime::UNIX_EPOCH { measure.at } else { now };
            Self {
                measured_at: of_store.iter().map(at).min().unwrap_or(now),
                mountpoint: roots.get(store).cloned().unwrap_or_default(),
                used: of_store.iter().map(|measure| measure.bytes).sum(),
                inodes_used: Some(of_store.iter().fold(0, |sum, measure| sum.saturating_add(measure.inodes))),
            }
        };
        std::iter::once(default).chain(others).map(sum).collect()
    }
}

/// All images of a store. Cheap to clone. Until a change, a store returns the same list, or the same images in a new
/// list, so that a comparison of equal lists is quick.
pub type Listing = Arc<[Arc<Image>]>;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use imagelet_vectors::vectors;

    use super::*;

    fn at(nanoseconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)
    }

    #[test]
    fn stores_are_summed_up_as_the_vectors_say() {
        let cases = vectors("cri-imagefs-info.json");
        assert_eq!(cases.len(), 1);
        for case in cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            let number = |value: &serde_json::Value| value.as_u64().unwrap();
            let roots = serde_json::from_value(input["roots"].clone()).unwrap();
            let measures = input["snapshots"].as_array().unwrap().iter().map(|snapshot| StoreMeasure {
                store: snapshot["snapshotter"].as_str().unwrap().to_owned(),
                bytes: ByteSize(number(&snapshot["size"])),
                inodes: number(&snapshot["inodes"]),
                at: at(number(&snapshot["timestamp"])),
            });
            let measures: Vec<StoreMeasure> = measures.collect();
            let now = at(1_000_000);
            let default = input["default_snapshotter"].as_str().unwrap();
            let entries = FilesystemUsage::by_store(default, &roots, &measures, now);
            assert_eq!(entries.len() as u64, number(&expected["entry_count"]));
            assert_eq!(entries[0], FilesystemUsage::nothing(PathBuf::new(), now), "the default store holds nothing");
            let wanted = &expected["entry_1"];
            let wanted = FilesystemUsage {
                measured_at: at(number(&wanted["timestamp"])),
                mountpoint: wanted["mountpoint"].as_str().unwrap().into(),
                used: ByteSize(number(&wanted["used_bytes"])),
                inodes_used: Some(number(&wanted["inodes_used"])),
            };
            assert_eq!(entries[1], wanted);
        }
    }

    #[test]
    fn the_default_store_comes_first_and_each_store_once() {
        let roots = BTreeMap::from(["a", "b", "c"].map(|store| (store.to_owned(), PathBuf::from(format!("/{store}")))));
        let measure = |store: &str, bytes, time| StoreMeasure {
            store: store.to_owned(),
            bytes: ByteSize(bytes),
            inodes: u64::MAX,
            at: at(time),
        };
        let measures = [measure("b", 7, 5), measure("b", u64::MAX, 9), measure("a", 1, 0), measure("unknown", 1, 1)];
        let entries = FilesystemUsage::by_store("b", &roots, &measures, at(10));
        let told: Vec<_> =
            entries.iter().map(|entry| (entry.mountpoint.to_str().unwrap(), entry.used.0, entry.measured_at)).collect();
        assert_eq!(told, [("/b", u64::MAX, at(5)), ("/a", 1, at(10)), ("/c", 0, at(10))]);
        assert_eq!(entries[0].inodes_used, Some(u64::MAX));
    }
}
