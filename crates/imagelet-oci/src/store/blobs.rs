//! Blobs on the disk: kept blobs, partial blobs (zstd, small layers), and the files of artifacts until they are whole.
//!
//! A blob is appended to `ingest/ALGORITHM-HEX.partial`, unsynced; after kill -9 the page cache has the bytes. A pull
//! that resumes a blob hashes the whole blob, and so detects bytes that a power cut removed or changed. A partial blob
//! of at least [`RESUME_MIN`] bytes is kept. A commit moves the kept blobs of its image to `blobs/ALGORITHM/HEX`.
//!
//! A blob that is written only for a resumption uses only unreserved space. It is removed when a pull needs the space.
//! The blob of an artifact's file is the file itself, which the pull moves into the layer. So this blob stays while an
//! admitted pull counts on it. It is synced before a pull resumes it, because the hash cannot detect bytes that only
//! the page cache has.

use std::{
    collections::{BTreeMap, hash_map::Entry},
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    ops::RangeInclusive,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use crate::page_cache;
use imagelet_core::{
    error::RuntimeError,
    failpoint,
    image::{ByteSize, Digest},
};

use super::{
    Store, could_not,
    files::durable::remove_tree,
    index::Index,
    resumption::{Resumption, is_outdated},
    unfinished::{PARTIAL_SUFFIX, PartialKey, ResumableBytes, partial_layer_modified, partial_layer_size},
};

pub(crate) const RESUME_MIN: u64 = 8 << 20;
/// Written bytes between two measurements of the free space.
const MEASURE_PERIOD: u64 = 16 << 20;

#[derive(Clone)]
pub(crate) enum BlobPurpose {
    /// For a kept blob or an artifact's file: a failed write fails the pull. This number of bytes must stay free.
    Keep(u64),
    /// For a blob that only a resumption needs. The function returns whether that many unreserved bytes are free.
    Resume(Arc<dyn Fn(u64) -> bool + Send + Sync>),
}

impl Store {
    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(digest.algorithm().name()).join(digest.hex())
    }

    pub(crate) fn blobs(&self) -> Vec<Digest> {
        self.index().blobs.keys().cloned().collect()
    }

    pub(crate) fn open_blob(&self, digest: &Digest, size: u64) -> Option<KeptBytes> {
        self.has_blob(digest).then(|| KeptBytes::open(&self.blob_path(digest), size..=size))?
    }

    /// Opens an artifact's file, which is also the blob. The caller has checked `path` against the manifest.
    pub(crate) fn open_layer_file(&self, layer: &Digest, path: &str, size: u64) -> Option<KeptBytes> {
        self.layer(layer)?;
        KeptBytes::open(&self.layer_tree(layer).join(path), size..=size)
    }

    pub(crate) fn open_partial(&self, key: &PartialKey, size: u64) -> Option<KeptBytes> {
        Some(KeptBytes { is_in_copy: true, ..KeptBytes::open(&self.partial_path(key), 1..=size)? })
    }

    pub(crate) fn has_blob(&self, digest: &Digest) -> bool {
        self.index().blobs.contains_key(digest)
    }

    pub(crate) fn discard_blob(&self, digest: &Digest) {
        if self.index().blobs.remove(digest).is_none() {
            return;
        }
        tracing::warn!(%digest, "a blob does not have its digest; it is removed");
        let path = self.blob_path(digest);
        if let Err(error) = remove_tree(&path) {
            tracing::warn!(path = %path.display(), %error, "could not remove a wrong blob");
        }
    }

    pub(crate) fn partial_bytes(&self) -> u64 {
        self.partials().iter().map(|partial| partial.size).sum()
    }

    /// Keeps the content if it has a writer, or if a pull other than `pull` counts on it.
    pub(crate) fn discard_partial(&self, key: &PartialKey, pull: u64) {
        let path = self.partial_path(key);
        let is_layer = path.is_dir();
        let removed = {
            // The lock keeps other pulls from writing until the file is removed.
            let index = self.index();
            let unfinished = &index.unfinished;
            let is_others = unfinished.continued.get(&key.file_name).is_some_and(|other| *other != pull);
            if is_others || unfinished.written.contains_key(&key.file_name) {
                return;
            }
            if is_layer { self.move_to_trash(&path) } else { remove_tree(&path).map_err(could_not("remove", &path)) }
        };
        if let Err(error) = removed {
            tracing::warn!(digest = %key.digest, error = error.chain(), "could not remove unfinished content of a pull");
        }
        if is_layer {
            self.try_empty_trash();
        }
    }

    pub(crate) fn is_written(&self, key: &PartialKey) -> bool {
        self.index().unfinished.written.contains_key(&key.file_name)
    }

    /// Writes a second copy of a blob that has another writer. No pull resumes this copy.
    pub(crate) fn write_blob_again(
        self: &Arc<Self>,
        key: &PartialKey,
        purpose: BlobPurpose,
    ) -> Result<Option<BlobWriter>, RuntimeError> {
        let number = self.sequence.fetch_add(1, Ordering::Relaxed);
        let key = PartialKey { file_name: format!("{}-{number}", key.file_name), ..key.clone() };
        self.write_blob(&key, 0, (purpose, &Resumption::new(false)))
    }

    /// Opens a blob to append after its first `known` bytes; removes later bytes. Syncs the known bytes if space is
    /// reserved for the blob. Returns `None` if another writer has the blob, or if known bytes are lost.
    pub(crate) fn write_blob(
        self: &Arc<Self>,
        key: &PartialKey,
        known: u64,
        (purpose, resumption): (BlobPurpose, &Resumption),
    ) -> Result<Option<BlobWriter>, RuntimeError> {
        self.check_writable()?;
        let revoked = Arc::new(AtomicBool::new(false));
        {
            let mut index = self.index();
            if index.unfinished.written.contains_key(&key.file_name) {
                return Ok(None);
            }
            let revocable = matches!(purpose, BlobPurpose::Resume(_)).then(|| Arc::clone(&revoked));
            index.unfinished.written.insert(key.file_name.clone(), revocable);
        }
        // The drop of this writer removes the entry in `written`, also after an error.
        let mut writer = BlobWriter {
            store: Arc::clone(self),
            key: key.clone(),
            path: self.partial_path(key),
            file: None,
            length: known,
            measured: None,
            written_back: known,
            purpose,
            revoked,
            resumption: resumption.clone(),
            is_wanted: false,
            length_min: RESUME_MIN,
        };
        if writer.path.is_dir() {
            // The folder is a partial layer from an earlier pull, when `store.keepBlobs` was off.
            remove_tree(&writer.path).map_err(could_not("remove", &writer.path))?;
        }
        let mut options = OpenOptions::new();
        let opened = options.append(true).create(true).mode(0o600).open(&writer.path).and_then(|file| {
            let length = file.metadata()?.len();
            file.set_len(known)?;
            Ok((file, length))
        });
        let (file, length) = opened.map_err(could_not("create", &writer.path))?;
        failpoint!("blob.begun");
        // After a failed write-back, the page cache still has the bytes. Only this sync reports the failure.
        let synced = if known > 0 && writer.is_reserved() {
            file.sync_data().and_then(|()| failpoint::synced(Some(&writer.path)))
        } else {
            Ok(())
        };
        if let Err(error) = &synced {
            tracing::warn!(blob = %key.digest, %error, "the disk has lost the first bytes of a blob; they are fetched again");
        }
        writer.file = Some(file);
        writer.is_wanted = length >= known && synced.is_ok();
        Ok(writer.is_wanted.then_some(writer))
    }

    pub(crate) fn remove_partials(&self, is_removed: impl Fn(&Partial) -> bool) -> Result<u64, RuntimeError> {
        self.check_writable()?;
        let index = self.index();
        let mut freed = 0;
        for partial in self.partials() {
            if !partial.is_used(&index) && is_removed(&partial) {
                self.move_to_trash(&partial.path)?;
                freed += partial.size;
            }
        }
        Ok(freed)
    }

    pub(crate) fn revoke_partials(&self) -> Result<u64, RuntimeError> {
        self.check_writable()?;
        let index = self.index();
        let mut freed = 0;
        for partial in self.partials() {
            let Some(Some(revoked)) = index.unfinished.written.get(&partial.file_name) else { continue };
            revoked.store(true, Ordering::Relaxed);
            let emptied = emptied(&partial.path).map_err(could_not("remove", &partial.path))?;
            freed += if emptied { partial.size } else { 0 };
        }
        Ok(freed)
    }

    pub(super) fn partial_path(&self, key: &PartialKey) -> PathBuf {
        self.root.join("ingest").join(&key.file_name)
    }

    pub(super) fn partials(&self) -> Vec<Partial> {
        let Ok(entries) = fs::read_dir(self.root.join("ingest")) else { return Vec::new() };
        let partial = |entry: fs::DirEntry| {
            let (metadata, path) = (entry.metadata().ok()?, entry.path());
            let file_name = entry.file_name().to_str()?.to_owned();
            let size = if metadata.is_dir() { partial_layer_size(&path) } else { metadata.len() };
            let modified = if metadata.is_dir() { partial_layer_modified(&path) } else { metadata.modified().ok()? };
            Some(Partial { path, file_name, size, is_layer: metadata.is_dir(), modified })
        };
        entries.filter_map(Result::ok).filter_map(partial).collect()
    }
}

/// Truncates a file, which frees its space even while a writer has it open, and removes it. Returns whether it existed.
fn emptied(path: &Path) -> io::Result<bool> {
    match OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        emptied => emptied.and_then(|()| remove_tree(path)).map(|()| true),
    }
}

pub(crate) struct Partial {
    pub(super) path: PathBuf,
    pub(super) file_name: String,
    pub(super) size: u64,
    is_layer: bool,
    pub(super) modified: SystemTime,
}

impl Partial {
    pub(super) fn is_used(&self, index: &Index) -> bool {
        let unfinished = &index.unfinished;
        unfinished.written.contains_key(&self.file_name) || unfinished.continued.contains_key(&self.file_name)
    }

    pub(super) fn is_expired(&self, age_max: Duration) -> bool {
        is_outdated(self.modified, age_max, SystemTime::now())
    }

    /// Whether a start removes the content: it is expired, too short, of an earlier boot, or has an unknown name.
    pub(super) fn is_leftover(&self, age_max: Duration, store: &Store) -> bool {
        !self.file_name.ends_with(PARTIAL_SUFFIX)
            || self.size < RESUME_MIN
            || self.is_expired(age_max)
            || (self.is_layer && !store.is_of_this_boot(&self.path))
    }
}

/// The partial blobs and layers that an admitted pull counts on. Until the drop, no other pull counts on them.
pub(crate) struct ContinuedPartials {
    store: Arc<Store>,
    pull: u64,
}

impl ContinuedPartials {
    pub(crate) fn new(store: &Arc<Store>, pull: u64) -> Self {
        Self { store: Arc::clone(store), pull }
    }

    /// Adds a partial blob or layer. Returns the bytes that the pull need not fetch; zero if another pull counts on it
    /// already. A partial blob of an archive also gives zero, because an archive is unpacked from its first byte.
    pub(crate) fn add(&self, key: &PartialKey, size: u64, is_file: bool) -> ResumableBytes {
        if !is_file && !self.store.partial_path(key).is_dir() {
            return ResumableBytes::default();
        }
        match self.store.index().unfinished.continued.entry(key.file_name.clone()) {
            Entry::Occupied(_) => return ResumableBytes::default(),
            Entry::Vacant(free) => drop(free.insert(self.pull)),
        }
        self.store.resumable_bytes(key, size)
    }
}

impl Drop for ContinuedPartials {
    fn drop(&mut self) {
        self.store.index().unfinished.continued.retain(|_, pull| *pull != self.pull);
    }
}

/// Appends to a blob. The drop keeps the partial blob if it is wanted, long enough, and its resumption is allowed.
pub(crate) struct BlobWriter {
    store: Arc<Store>,
    key: PartialKey,
    pub(super) path: PathBuf,
    file: Option<File>,
    length: u64,
    measured: Option<u64>,
    written_back: u64,
    purpose: BlobPurpose,
    revoked: Arc<AtomicBool>,
    pub(crate) resumption: Resumption,
    /// Whether [`Self::write`] still writes to the disk.
    pub(crate) is_wanted: bool,
    length_min: u64,
}

impl BlobWriter {
    /// A failed write is an error if the blob has reserved space; otherwise it removes the blob's file.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (has_space, is_reserved) = (self.check_space(), self.is_reserved());
        let Some(file) = &mut self.file else { return Ok(()) };
        match has_space.and_then(|()| file.write_all(bytes)) {
            Ok(()) => self.length += bytes.len() as u64,
            Err(error) if is_reserved => return Err(error),
            Err(_) => {
                tracing::debug!(blob = %self.key.digest, "its first bytes no longer stay for a resumption");
                (self.file, self.is_wanted) = (None, false);
                self.remove_file();
                return Ok(());
            }
        }
        if is_reserved {
            // An early write-back makes the sync at the end of the pull short.
            self.written_back = page_cache::write_back(file, self.written_back, self.length);
        }
        Ok(())
    }

    fn check_space(&mut self) -> io::Result<()> {
        if self.revoked.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.measured.is_some_and(|measured| self.length - measured < MEASURE_PERIOD) {
            return Ok(());
        }
        self.measured = Some(self.length);
        match &self.purpose {
            BlobPurpose::Resume(has_space) if has_space(MEASURE_PERIOD) => Ok(()),
            BlobPurpose::Resume(_) => Err(io::ErrorKind::StorageFull.into()),
            BlobPurpose::Keep(floor) => match self.store.free()? {
                (free, _) if free < *floor => {
                    let short = format!("{} free, of which {} must stay free", ByteSize(free), ByteSize(*floor));
                    Err(io::Error::new(io::ErrorKind::StorageFull, short))
                }
                _ => Ok(()),
            },
        }
    }

    fn remove_file(&self) {
        if let Err(error) = remove_tree(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "could not remove a blob; the next start takes it");
        }
    }

    /// From now on, the drop keeps even a short blob, because the pull resumes its interrupted download later.
    pub(crate) fn keep_any_length(&mut self) {
        self.length_min = 1;
    }

    pub(crate) fn is_reserved(&self) -> bool {
        matches!(self.purpose, BlobPurpose::Keep(_))
    }

    /// Closes the complete file, so that a file system such as XFS frees the file's preallocated blocks.
    pub(crate) fn close(&mut self) -> &Path {
        self.file = None;
        &self.path
    }

    /// The closed writer of a whole blob. Returns `None` for a blob that only a resumption needs, because the unpacked
    /// layer replaces the blob.
    pub(crate) fn whole(mut self) -> Option<Self> {
        self.close();
        failpoint!("blob.written");
        self.is_wanted = self.is_reserved();
        self.is_wanted.then_some(self)
    }

    pub(super) fn discard(mut self) {
        self.is_wanted = false;
    }

    /// Moves a durable blob to its place in `blobs/`, unless another commit has moved the same blob.
    pub(super) fn keep(&self, index: &mut Index) -> io::Result<()> {
        let digest = &self.key.digest;
        if index.blobs.contains_key(digest) {
            return Ok(());
        }
        let home = self.store.blob_path(digest);
        fs::create_dir_all(home.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        fs::rename(&self.path, &home)?;
        index.blobs.insert(digest.clone(), self.length);
        failpoint!("blob.kept");
        Ok(())
    }

    pub(super) fn folders(&self) -> [PathBuf; 2] {
        let blobs = Path::new("blobs");
        [blobs.join(self.key.digest.algorithm().name()), blobs.to_owned()]
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        let is_kept = self.is_wanted && self.length >= self.length_min && self.resumption.is_allowed();
        if !is_kept {
            self.remove_file();
        }
        self.store.index().unfinished.written.remove(&self.key.file_name);
    }
}

pub(crate) struct KeptBytes {
    pub(crate) file: File,
    pub(crate) length: u64,
    pub(crate) is_in_copy: bool,
}

impl KeptBytes {
    pub(crate) fn open(path: &Path, lengths: RangeInclusive<u64>) -> Option<Self> {
        let file = File::open(path).ok()?;
        let length = file.metadata().ok().filter(fs::Metadata::is_file)?.len();
        lengths.contains(&length).then_some(Self { file, length, is_in_copy: false })
    }
}

impl Index {
    pub(super) fn unneeded_blobs(&self) -> Vec<Digest> {
        let damaged = self.damaged.values().filter_map(|image| image.record.as_ref());
        let layers = self.images.values().chain(damaged).flat_map(|image| &image.pulled.layers);
        let needed: BTreeMap<&Digest, u64> =
            layers.filter_map(|layer| Some((layer.blob.as_ref()?, layer.size))).collect();
        let unneeded = self.blobs.iter().filter(|(digest, size)| needed.get(digest) != Some(*size));
        unneeded.map(|(digest, _)| digest.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
