//! A store of one's own below imagelet's manager: `custom_image_service IMAGE…`.
//!
//! An image is some bytes in memory here. Queue, shared pulls, back-off, policies and pull records are the manager's.

#![allow(clippy::print_stdout, reason = "the output of an example")]

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use async_trait::async_trait;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Digest, Image, ImageId, ImageNames, ImageSpec, ImageUser, Reference, look_up, split_names},
    manager::{EnsureRequest, ImageManager, ManagerParts, PullPolicy},
    ports::{
        FilesystemUsage, ImageFilesystems, ImageService, Listing, NoContainers, Progress, PullRequest, RuntimeManager,
        unwatched,
    },
    records::PullRecords,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let images: Vec<String> = std::env::args().skip(1).collect();
    let store = MemoryStore::new([("registry.example/app:v1", "one"), ("registry.example/app:v2", "two")]);
    for line in run(store, &images).await {
        println!("{line}");
    }
    Ok(())
}

/// Returns a line for each image: how it came to be present, or why it is not.
pub(crate) async fn run(store: MemoryStore, images: &[String]) -> Vec<String> {
    let runtime = RuntimeManager::new(Arc::new(store), Arc::new(NoContainers));
    let manager = ImageManager::new(ManagerParts::new(runtime, Arc::new(PullRecords::in_memory())));
    let mut lines = Vec::new();
    for image in images {
        let ensured = manager.ensure(&EnsureRequest::new(image, PullPolicy::IfNotPresent), unwatched()).await;
        lines.push(match ensured {
            Ok(ensured) => format!("{image}: {:?}", ensured.origin),
            Err(error) => format!("{image}: {}: {}", error.reason(), error.message()),
        });
    }
    lines
}

/// Keeps images in memory, and pulls from a catalogue of names with a tag.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    catalogue: BTreeMap<String, Vec<u8>>,
    stored: Mutex<Stored>,
}

/// The stored images: their names with tag or digest, and their sizes.
#[derive(Debug, Default)]
struct Stored(BTreeMap<ImageId, (BTreeSet<String>, ByteSize)>);

impl MemoryStore {
    pub(crate) fn new<'a>(catalogue: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let catalogue = catalogue.into_iter().map(|(name, content)| (name.to_owned(), content.into()));
        Self { catalogue: catalogue.collect(), stored: Mutex::default() }
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content that a reference names, by its tag or by the digest of the content.
    fn content(&self, reference: &Reference) -> Option<&[u8]> {
        let names = |name: &str, content: &[u8]| match reference.digest() {
            Some(digest) => {
                name.rsplit_once(':').is_some_and(|(path, _)| path == reference.repository())
                    && Digest::of(content) == *digest
            }
            None => name == reference.to_string(),
        };
        self.catalogue.iter().find(|(name, content)| names(name, content)).map(|(_, content)| content.as_slice())
    }
}

impl Stored {
    fn image(&self, id: &ImageId) -> Option<Image> {
        let (names, size) = self.0.get(id)?;
        let (tags, digests) = split_names(names.iter().map(String::as_str));
        let (user, spec, pinned) = (ImageUser::default(), ImageSpec::default(), false);
        Some(Image { id: id.clone(), tags, digests, size: *size, user, spec, pinned, artifact: None })
    }

    fn find(&self, spec: &ImageSpec) -> Result<Option<ImageId>, RuntimeError> {
        look_up(&spec.image, self)
            .map_err(|error| RuntimeError::new(RuntimeErrorKind::InvalidArgument, error.to_string()))
    }
}

impl ImageNames for Stored {
    fn has(&self, id: &ImageId) -> bool {
        self.0.contains_key(id)
    }

    fn named(&self, name: &str) -> Option<ImageId> {
        self.0.iter().find(|(_, (names, _))| names.contains(name)).map(|(id, _)| id.clone())
    }

    fn beginning(&self, prefix: &str) -> [Option<ImageId>; 2] {
        let mut ids = self.0.keys().filter(|id| id.as_str().starts_with(prefix)).cloned();
        [ids.next(), ids.next()]
    }
}

#[async_trait]
impl ImageService for MemoryStore {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let stored = self.stored();
        // A filter without an image keeps all.
        Ok(match filter.filter(|spec| !spec.image.is_empty()) {
            Some(spec) => stored.find(spec)?.and_then(|id| stored.image(&id)).into_iter().map(Arc::new).collect(),
            None => stored.0.keys().filter_map(|id| stored.image(id)).map(Arc::new).collect(),
        })
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let stored = self.stored();
        Ok(stored.find(spec)?.and_then(|id| stored.image(&id)))
    }

    async fn pull(&self, request: &PullRequest, _: Progress) -> Result<ImageId, RuntimeError> {
        let name = &request.image.image;
        let reference: Reference = name.parse().map_err(|error| {
            RuntimeError::new(RuntimeErrorKind::InvalidArgument, format!("`{name}` is no reference")).caused_by(error)
        })?;
        let content = self.content(&reference).ok_or_else(|| {
            RuntimeError::new(RuntimeErrorKind::NotFound, format!("the catalogue has no image `{reference}`"))
        })?;
        let digest = Digest::of(content);
        let id = ImageId::new(digest.as_str());
        let (by_tag, by_digest) = reference.names_of(&digest);
        let mut stored = self.stored();
        // A tag names one image only.
        for (names, _) in stored.0.values_mut() {
            names.retain(|name| Some(name) != by_tag.as_ref());
        }
        let (names, size) = stored.0.entry(id.clone()).or_default();
        names.extend(by_tag.into_iter().chain([by_digest]));
        *size = ByteSize(content.len() as u64);
        Ok(id)
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let mut stored = self.stored();
        if let Some(id) = stored.find(spec)? {
            stored.0.remove(&id);
        }
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        let used = ByteSize(self.stored().0.values().map(|(_, size)| size.0).sum());
        let (measured_at, mountpoint) = (SystemTime::now(), PathBuf::from("/"));
        let usage = FilesystemUsage { measured_at, mountpoint, used, inodes_used: Some(0) };
        Ok(ImageFilesystems { images: vec![usage.clone()], containers: vec![usage], ..ImageFilesystems::default() })
    }
}
