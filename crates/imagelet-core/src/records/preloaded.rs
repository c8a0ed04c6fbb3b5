//! The preloaded images: present before any pull, so every pod may use them (`docs/spec/pull.md §8.11`).
//!
//! ```text
//! ROOT/preloaded-images.json   {"sha256:…": ["docker.io/library/app"]}
//! ```
//!
//! The kubelet has no such file. If the file is missing, a preloaded image with a record requires credentials.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use super::{PruneMark, PullIntent, PullNames, PullRecords, PulledRecord, RecordsError, failed, folder::read};
use crate::{
    durable::{Disk, MachineDisk, create_folder, replace_file_on},
    image::{Image, ImageId, Reference},
    lock::locked,
};

/// Above this limit, further images are not remembered. A node has some hundred images.
const IMAGES_MAX: usize = 1024;
/// The maximum number of repositories of one image, which bounds the length of the file.
const NAMES_MAX: usize = 8;
const FILE: &str = "preloaded-images.json";

type RepositoriesById = BTreeMap<String, BTreeSet<String>>;

#[derive(Debug)]
pub(super) struct PreloadedImages {
    path: Option<PathBuf>,
    disk: Arc<dyn Disk>,
    /// Locked during a change and its write, so that an older state never replaces a newer state on disk.
    turn: Mutex<()>,
    /// Locked for moments, never during disk I/O.
    state: Mutex<PreloadedState>,
}

#[derive(Debug, Default)]
struct PreloadedState {
    images: RepositoriesById,
    is_unwritten: bool,
    /// Whether the kubelet's intents were unreadable at the last attempt, so that no image was remembered.
    is_blocked: bool,
}

impl PreloadedImages {
    pub(super) fn in_memory() -> Self {
        Self { path: None, disk: Arc::new(MachineDisk), turn: Mutex::default(), state: Mutex::default() }
    }

    /// Reads the file. An unreadable file grants no access, and the next change replaces it.
    pub(super) fn open(root: &Path, disk: Arc<dyn Disk>, is_read_only: bool) -> Self {
        let path = root.join(FILE);
        let images = read_images(&path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "could not read which images were preloaded");
            RepositoriesById::new()
        });
        let state = Mutex::new(PreloadedState { images, ..PreloadedState::default() });
        Self { path: Some(path).filter(|_| !is_read_only), disk, turn: Mutex::default(), state }
    }

    fn change(&self, change: impl FnOnce(&mut RepositoriesById)) -> io::Result<()> {
        let _turn = locked(&self.turn);
        let bytes = {
            let mut state = locked(&self.state);
            // A change either only adds or only removes images and names.
            let size = |images: &RepositoriesById| images.values().map(|names| names.len() + 1).sum::<usize>();
            let before = size(&state.images);
            change(&mut state.images);
            if size(&state.images) == before && !state.is_unwritten {
                return Ok(());
            }
            state.is_unwritten = self.path.is_some();
            serde_json::to_vec(&state.images)?
        };
        let Some(path) = &self.path else { return Ok(()) };
        create_folder(path.parent().unwrap_or(Path::new(".")))?;
        replace_file_on(&*self.disk, path, &path.with_extension("new"), "state", |file| file.write_all(&bytes))?;
        locked(&self.state).is_unwritten = false;
        Ok(())
    }
}

fn read_images(path: &Path) -> io::Result<RepositoriesById> {
    match File::open(path) {
        Ok(file) => Ok(serde_json::from_slice(&read(file)?)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RepositoriesById::new()),
        Err(error) => Err(error),
    }
}

/// Whether an image was present under the repository before any pull, and no later pull of the repository is recorded.
fn is_preloaded(repositories: &BTreeSet<String>, record: Option<&PulledRecord>, repository: &str) -> bool {
    let is_same = |name: &String| name.parse::<Reference>().is_ok_and(|name| name.repository() == repository);
    repositories.contains(repository) && !record.is_some_and(|record| record.mapping.keys().any(is_same))
}

/// Whether an interrupted pull may have fetched the image under this repository.
fn is_possible_source(begun: &PullIntent, id: &ImageId, repository: &str) -> bool {
    begun.image == id.as_str() || begun.reference.as_ref().is_none_or(|begun| begun.repository() == repository)
}

impl PullRecords {
    /// Remembers an image as preloaded if neither this manager nor the node's kubelet has a record or an intent for the
    /// image. `images` must be listed after the mark. Durable on return.
    pub fn remember_preloaded<'a>(
        &self,
        images: impl IntoIterator<Item = &'a Image>,
        mark: &PruneMark,
    ) -> Result<(), RecordsError> {
        if !self.guards_images() {
            return Ok(());
        }
        let kubelet = self.settings.as_ref().and_then(|settings| settings.kubelet.as_ref());
        // A pull writes its record before it removes its intent. So a pull that ends between these two reads is still seen
        // in one of them, because the intents are read first.
        let begun_by_kubelet = kubelet.map(super::KubeletRecords::intents).transpose();
        let was_blocked = std::mem::replace(&mut locked(&self.preloaded.state).is_blocked, begun_by_kubelet.is_err());
        let warn = |error: &io::Error| {
            if !was_blocked {
                tracing::warn!(%error, "could not read the intents of the kubelet; no further image stays preloaded");
            }
        };
        let Ok(begun_by_kubelet) = begun_by_kubelet.inspect_err(warn) else { return Ok(()) };
        let mut found = RepositoriesById::new();
        for image in images {
            let pull_names = PullNames::new(image, "");
            let is_begun = begun_by_kubelet.iter().flatten().any(|begun| pull_names.include(begun))
                || !matches!(self.begun_for("", image), Ok(false));
            let is_pulled = is_begun
                || self.is_unrecorded(&image.id)
                || self.state().touched.is_since(&image.id, mark)
                || !matches!(self.records.find(image.id.as_str()), Ok(None))
                || !kubelet.is_none_or(|kubelet| matches!(kubelet.include(&image.id), Ok(false)));
            let names = image.tags.iter().chain(&image.digests).filter_map(|name| name.parse::<Reference>().ok());
            let names: BTreeSet<String> = names.map(|name| name.repository().to_owned()).collect();
            if !is_pulled && !names.is_empty() && !image.id.as_str().is_empty() {
                found.insert(image.id.to_string(), names);
            }
        }
        let remembered = self.preloaded.change(|images| {
            for (id, names) in found {
                if images.len() < IMAGES_MAX || images.contains_key(&id) {
                    let known = images.entry(id).or_default();
                    for name in names {
                        if known.len() < NAMES_MAX {
                            known.insert(name);
                        }
                    }
                }
            }
        });
        remembered.map_err(|source| failed("write", FILE, source))
    }

    /// Whether every pod may use a present image under this name. Pulls under other names have no effect.
    pub(super) fn stays_preloaded(&self, image: &str, id: &ImageId, record: Option<&PulledRecord>) -> bool {
        let Ok(reference) = image.parse::<Reference>() else { return false };
        let repository = reference.repository();
        self.guards_images()
            && locked(&self.preloaded.state)
                .images
                .get(id.as_str())
                .is_some_and(|names| is_preloaded(names, record, repository))
            && !self.is_unrecorded(id)
            && !self.intents.any(|begun| is_possible_source(begun, id, repository))
            && self.intents.find(image).is_ok()
    }

    /// Forgets the repositories under which the pull `begun` may have fetched the image. `None`: forgets all of them.
    pub(super) fn forget_preloaded(&self, id: &ImageId, begun: Option<&PullIntent>) -> Result<(), RecordsError> {
        let forgotten = self.preloaded.change(|images| {
            let Some(names) = images.get_mut(id.as_str()) else { return };
            names.retain(|name| begun.is_some_and(|begun| !is_possible_source(begun, id, name)));
            images.retain(|_, names| !names.is_empty());
        });
        forgotten.map_err(|source| failed("write", FILE, source))
    }

    /// Forgets absent images: if a later pull fetches such an image, only clients with credentials may use it.
    pub(super) fn prune_preloaded(&self, present: &BTreeSet<ImageId>) -> Result<(), RecordsError> {
        let pruned = self.preloaded.change(|images| images.retain(|id, _| present.contains(&ImageId::new(id))));
        pruned.map_err(|source| failed("write", FILE, source))
    }
}

#[cfg(test)]
mod tests;
