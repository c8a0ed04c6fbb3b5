//! The images of the store: layers, image records and names on disk, and an index of them in memory.
//!
//! ```text
//! ROOT/                      0700, of one user; one process changes it at a time, any number read it
//!   lock                     flocked by the process that changes the store; has its pid and command;
//!                            its mtime is the time when a pull last received bytes
//!   names.json               name → image id; an image exists if it has a name in this file
//!   names.unsettled.json     newer names, for this boot only (see `sync_background`)
//!   images/ID-HEX/           image.json (the record), manifest.json, config.json, index.json
//!   layers/DIFF-HEX/         fs/ (overlay form), layer.json, files.list; complete and durable;
//!                            a layer with a file `damaged` counts as absent
//!   blobs/ALGORITHM/HEX      compressed blobs of the images, if they are kept
//!   ingest/*.partial         blobs being written, partial blobs to resume, and folders of partial layers
//!   mounts/KEY.json, KEY/    the mounts; links to their layers, upper and work folder
//!   tmp/, trash/             may vanish at any time; emptied at start, except for spare layers (see `spare_layers`)
//! ```
//!
//! `names.json` is the only root. A commit makes all other content durable first and replaces that file last. So a
//! crash leaves the whole image or unreferenced content, which the next sweep removes. A removal deletes the name
//! first. Files unknown to this version are not changed.

mod background_sync;
mod blobs;
mod commit;
mod corruption;
#[cfg(test)]
mod durable_tests;
mod file_manifest;
mod files;
mod index;
mod record;
mod resumption;
mod spare_layers;
mod staging;
mod sweep;
mod unfinished;
mod verify;

use std::{
    collections::HashSet,
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    failpoint,
    image::{Digest, ImageId},
    lock::locked,
};

pub(crate) use self::{
    blobs::{BlobPurpose, BlobWriter, ContinuedPartials, KeptBytes},
    commit::NewImage,
    file_manifest::{ContentProof, FileManifestWriter, LIST, PROOF},
    files::{
        durable::{SyncView, remove_tree, replace_file},
        lock::{LockWait, progress_of_owner},
        walk::walk,
    },
    index::{
        StoredImage,
        load::{digest_named, read_json},
    },
    record::{ImageRecord, LayerEnd, LayerRecord, TREE, checksum::seal, write_implicit},
    resumption::Resumption,
    spare_layers::{SpareWanted, StagedLayer, has_folders},
    staging::{DocumentWriter, Staging},
    unfinished::{Checkpoint, JournalRecord, JournalWriter, PartialKey, PartialLayer, ResumedLayer, StreamFormat},
    verify::Watch,
};
pub use self::{files::lock::command_of_owner, staging::DocumentBytes};
use self::{
    files::{lock::Lock, root::Place},
    index::{Index, listing::Locked},
};

use crate::scarce;

const MOUNT_WRITABLE: &str = "mount it read-write, or name another place with --store DIR";

/// When a pull may return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// After every file of the image is durable.
    #[default]
    Commit,
    /// Before the image is durable. A crash of the process loses nothing. A power cut loses the whole image or nothing.
    Background,
}

/// A store on the disk. If open for changes, it belongs to this process until the drop. Its methods block on the disk.
#[derive(Default)]
pub(crate) struct Store {
    root: PathBuf,
    index: Mutex<Index>,
    sequence: AtomicU64,
    trash: Mutex<()>,
    /// The views that receive the write errors of all visible content that is not durable. Never empty.
    views: Mutex<Vec<Arc<SyncView>>>,
    pull_view: Mutex<Weak<SyncView>>,
    syncing: Mutex<()>,
    mounting: Mutex<()>,
    in_background: bool,
    resume_for: Duration,
    pub(crate) boot: Option<String>,
    /// `None`: the store is open only for reading.
    lock: Option<Lock>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The process only reads, and takes no lock. Meanwhile, other processes may read and change the store.
    Read {
        /// Whether a missing store counts as a store without images.
        or_empty: bool,
    },
    /// Only one process at a time may open the store for changes.
    Write {
        /// Whether to create a missing store.
        or_create: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreOptions {
    pub(crate) access: Access,
    pub(crate) durability: Durability,
    pub(crate) resume_for: Duration,
}

#[cfg(test)]
impl StoreOptions {
    pub(crate) fn for_tests() -> Self {
        let access = Access::Write { or_create: true };
        Self { access, durability: Durability::Commit, resume_for: Duration::from_hours(24) }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Store {
    pub(crate) fn open(root: &Path, options: StoreOptions) -> Result<Self, RuntimeError> {
        let StoreOptions { access, durability, resume_for } = options;
        let boot = boot_id();
        let store = |root: PathBuf, index: Index, lock| Self {
            index: Mutex::new(index),
            root,
            sequence: AtomicU64::new(first_number()),
            in_background: durability == Durability::Background && boot.is_some(),
            resume_for,
            boot: boot.clone(),
            lock,
            ..Self::default()
        };
        let makes = matches!(access, Access::Write { or_create: true });
        let place = match Place::find(root, makes)? {
            Some(place) if makes || place.is_store() => place,
            None if access == (Access::Read { or_empty: true }) => {
                return Ok(store(root.to_owned(), Index::default(), None));
            }
            _ => return Err(no_store(root)),
        };
        index::refuse_newer(&place.path)?;
        let lock = match access {
            Access::Read { .. } => None,
            Access::Write { .. } => match place.make_folders() {
                // If all folders exist, `make_folders` succeeds even on a read-only file system.
                Ok(()) if place.is_writable => Some(Lock::take(&place)?),
                Err(error) if place.is_writable => return Err(could_not("create the store", root)(error)),
                _ => None,
            },
        };
        failpoint!("open.locked");
        let view = SyncView::open(&place.path).map_err(could_not("open the store", &place.path))?;
        let index = Index::load(&place.path, lock.is_some(), boot.as_deref())?;
        failpoint!("open.loaded");
        let store = store(place.path, index, lock);
        store.views().push(Arc::new(view));
        if !store.is_read_only() {
            // A leftover that cannot be removed is harmless.
            if let Err(error) = store.discard_leftovers() {
                tracing::warn!(error = error.chain(), "could not take away all that was left behind");
            }
            if let Err(error) = store.write_first_names() {
                tracing::warn!(error = error.chain(), "a power cut may leave the records of an unfinished pull");
            }
        }
        Ok(store)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn disk_place(&self) -> &Path {
        self.root.ancestors().find(|place| place.is_dir()).unwrap_or(&self.root)
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.lock.is_none()
    }

    pub(crate) fn record_progress(&self) {
        if let Some(lock) = &self.lock {
            lock.record_progress();
        }
    }

    pub(crate) fn sync_view(&self) -> Result<Arc<SyncView>, RuntimeError> {
        SyncView::open(&self.root).map(Arc::new).map_err(could_not("open the store", &self.root))
    }

    /// The view for the files of all running pulls. Pulls share one view, so that many pulls need few descriptors.
    pub(crate) fn pull_view(&self) -> Result<Arc<SyncView>, RuntimeError> {
        let mut shared = self.pull_view.lock().expect("no thread panics while it holds the lock");
        if let Some(view) = shared.upgrade().filter(|view| !view.has_failed()) {
            return Ok(view);
        }
        let view = self.sync_view()?;
        *shared = Arc::downgrade(&view);
        Ok(view)
    }

    pub(crate) fn check_writable(&self) -> Result<(), RuntimeError> {
        if self.lock.is_some() {
            return Ok(());
        }
        let message = format!("the store `{}` is open for reading, or on a read-only file system", self.root.display());
        Err(RuntimeError::new(RuntimeErrorKind::Unavailable, message).with_hint(MOUNT_WRITABLE))
    }

    pub(crate) fn image(&self, id: &ImageId) -> Option<(ImageRecord, Vec<String>)> {
        let index = self.index();
        Some((index.images.get(id)?.clone(), index.names_of(id)))
    }

    pub(crate) fn resolve(&self, text: &str) -> Result<Option<ImageId>, RuntimeError> {
        self.index().resolve(text)
    }

    pub(crate) fn resolve_damaged(&self, text: &str) -> Option<ImageId> {
        self.index().resolve_damaged(text)
    }

    pub(crate) fn layer(&self, diff_id: &Digest) -> Option<LayerRecord> {
        self.index().layers.get(diff_id).cloned()
    }

    pub(crate) fn free(&self) -> io::Result<(u64, Option<u64>)> {
        let disk = rustix::fs::statvfs(&self.root)?;
        // A file system without an inode table, such as btrfs, reports 0 inodes.
        let inodes = (disk.f_files > 0).then_some(disk.f_favail);
        Ok((disk.f_bavail.saturating_mul(disk.f_frsize), inodes))
    }

    pub(crate) fn layer_tree(&self, diff_id: &Digest) -> PathBuf {
        self.layer_folder(diff_id).join(TREE)
    }

    /// The directories that have no entry in the layer's archive, as paths below the layer's root.
    pub(crate) fn implicit_directories(&self, diff_id: &Digest) -> io::Result<HashSet<Vec<u8>>> {
        record::read_implicit(&self.layer_folder(diff_id))
    }

    pub(crate) fn image_file(&self, id: &ImageId, name: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.image_folder(id).join(name))
    }

    /// Protects layers from the sweep until the lease is dropped, even layers that are not present yet.
    pub(crate) fn lease(self: &Arc<Self>, layers: &[Digest]) -> Lease {
        let mut index = self.index();
        for layer in layers {
            *index.unfinished.leases.entry(layer.clone()).or_default() += 1;
        }
        Lease { store: Arc::clone(self), layers: layers.to_vec() }
    }

    pub(crate) fn mounting(&self) -> MutexGuard<'_, ()> {
        locked(&self.mounting)
    }

    fn index(&self) -> Locked<'_> {
        Locked(self.index.lock().expect("no thread panics while it holds the index"))
    }

    fn layer_folder(&self, diff_id: &Digest) -> PathBuf {
        self.root.join("layers").join(diff_id.hex())
    }

    fn image_folder(&self, id: &ImageId) -> PathBuf {
        self.root.join("images").join(record::hex(id))
    }

    fn fresh_path(&self, folder: &str) -> PathBuf {
        let number = self.sequence.fetch_add(1, Ordering::Relaxed);
        self.root.join(folder).join(format!("{}-{number}", std::process::id()))
    }
}

fn no_store(root: &Path) -> RuntimeError {
    let root = root.display();
    RuntimeError::new(RuntimeErrorKind::NotFound, format!("`{root}` is no imagelet store"))
        .with_hint(format!("correct the path, or have one made there: imagelet --store {root} pull REF"))
}

fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

/// The first number for folder names: the time, because an earlier process may have had the same pid.
fn first_number() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or_default()
}

pub(crate) struct Lease {
    store: Arc<Store>,
    layers: Vec<Digest>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut index = self.store.index();
        for layer in &self.layers {
            if let Some(count) = index.unfinished.leases.get_mut(layer) {
                *count -= 1;
            }
        }
        index.unfinished.leases.retain(|_, count| *count > 0);
    }
}

pub(crate) fn storage_error(message: impl Into<String>, error: io::Error) -> RuntimeError {
    let (kind, hint) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (RuntimeErrorKind::DiskFull, "make room with `imagelet gc`, or name a larger place with --store DIR")
        }
        io::ErrorKind::ReadOnlyFilesystem => (RuntimeErrorKind::Unavailable, MOUNT_WRITABLE),
        io::ErrorKind::PermissionDenied => {
            (RuntimeErrorKind::Unavailable, "run as the store's owner, or name another place with --store DIR")
        }
        _ if scarce::is_caused_by_scarcity(&error) => (
            RuntimeErrorKind::Unavailable,
            "let the process open more files: `LimitNOFILE=` of its unit, `ulimit -Hn` of a shell",
        ),
        _ => return RuntimeError::other(message).caused_by(error),
    };
    RuntimeError::new(kind, message).caused_by(error).with_hint(hint)
}

/// For `map_err`: the error "could not `what`", with the path.
pub(crate) fn could_not<'a, E: Into<io::Error>>(what: &'a str, path: &'a Path) -> impl Fn(E) -> RuntimeError + 'a {
    move |error| storage_error(format!("could not {what} `{}`", path.display()), error.into())
}
