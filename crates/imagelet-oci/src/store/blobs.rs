//! Compressed blobs: kept whole where that is configured, and the first bytes of those that broke off.
//!
//! A blob streams to `ingest/ALGORITHM-HEX.partial`; the commit of its image moves it to `blobs/ALGORITHM/HEX`. A
//! partial blob of at least [`RESUME_MIN`] stays for the next pull of the digest, which hashes it again from its first
//! byte.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{image::Digest, runtime::RuntimeError};

use super::{Store, files::durable::remove_tree, index::Index, storage_error};
use crate::failpoint::Step;

/// A partial blob with fewer bytes is not kept.
pub(crate) const RESUME_MIN: u64 = 8 << 20;
const PARTIAL_AGE_MAX: Duration = Duration::from_hours(24);
const PARTIAL_SUFFIX: &str = ".partial";

impl Store {
    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(digest.algorithm().name()).join(digest.hex())
    }

    pub(crate) fn blobs(&self) -> Vec<(Digest, u64)> {
        self.index().blobs.iter().map(|(digest, size)| (digest.clone(), *size)).collect()
    }

    pub(crate) fn partial_bytes(&self) -> u64 {
        self.partials().iter().map(|partial| partial.size).sum()
    }

    pub(crate) fn open_blob(&self, digest: &Digest, size: u64) -> Option<KeptBytes> {
        let open = |path: &Path| {
            let file = File::open(path).ok()?;
            let metadata = file.metadata().ok()?;
            Some((file, metadata.is_file().then_some(metadata.len())?))
        };
        if self.index().blobs.contains_key(digest)
            && let Some((file, length)) = open(&self.blob_path(digest)).filter(|(_, length)| *length == size)
        {
            return Some(KeptBytes { file, length, is_kept: true });
        }
        let (file, length) = open(&self.partial_path(digest))?;
        ((1..=size).contains(&length)).then_some(KeptBytes { file, length, is_kept: false })
    }

    pub(crate) fn discard_partial(&self, digest: &Digest) {
        if !self.is_written(digest)
            && let Err(error) = remove_tree(&self.partial_path(digest))
        {
            tracing::warn!(%digest, %error, "could not remove a partial blob");
        }
    }

    /// Removes all bytes of a blob whose digest turned out to be wrong.
    pub(crate) fn discard_blob(&self, digest: &Digest) {
        let mut index = self.index();
        index.blobs.remove(digest);
        tracing::warn!(%digest, "a blob does not have its digest; it is removed");
        for path in [self.blob_path(digest), self.partial_path(digest)] {
            if let Err(error) = remove_tree(&path) {
                tracing::warn!(path = %path.display(), %error, "could not remove a wrong blob");
            }
        }
    }

    pub(crate) fn is_written(&self, digest: &Digest) -> bool {
        self.index().written.contains(digest)
    }

    /// Starts to write a blob behind its first `known` bytes, which the caller writes again.
    /// `None`: another writer has the blob, or those bytes are no longer there.
    pub(crate) fn write_blob(
        self: &Arc<Self>,
        digest: &Digest,
        known: u64,
    ) -> Result<Option<BlobWriter>, RuntimeError> {
        self.check_writable()?;
        if !self.index().written.insert(digest.clone()) {
            return Ok(None);
        }
        // From here on, dropping the writer releases the digest.
        let mut writer = BlobWriter {
            store: Arc::clone(self),
            digest: digest.clone(),
            path: self.partial_path(digest),
            file: None,
            skip: known,
            length: known,
            is_wanted: true,
        };
        let mut options = OpenOptions::new();
        let opened = options.append(true).create(true).mode(0o600).open(&writer.path).and_then(|file| {
            let length = file.metadata()?.len();
            file.set_len(known)?;
            Ok((file, length))
        });
        match opened {
            Ok((file, length)) => {
                Step::BlobBegun.reach();
                writer.is_wanted = length >= known;
                writer.file = Some(file);
                Ok(writer.is_wanted.then_some(writer))
            }
            Err(error) => {
                writer.is_wanted = false;
                Err(storage_error(format!("could not create `{}`", writer.path.display()), error))
            }
        }
    }

    pub(super) fn discard_unknown_blobs(&self, folder: &Path, index: &Index) -> Result<(), RuntimeError> {
        let known: HashSet<PathBuf> = index.blobs.keys().map(|digest| self.blob_path(digest)).collect();
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect(),
            Err(_) => vec![folder.to_owned()],
        };
        for path in entries.into_iter().filter(|path| !known.contains(path)) {
            self.move_to_trash(&path)?;
        }
        Ok(())
    }

    /// Removes the partial blobs of a kind that have no writer. Returns the bytes freed.
    pub(crate) fn remove_partials(&self, is_removed: impl Fn(&Partial) -> bool) -> Result<u64, RuntimeError> {
        self.check_writable()?;
        let index = self.index();
        let mut freed = 0;
        for partial in self.partials() {
            let is_written = partial.digest.as_ref().is_some_and(|digest| index.written.contains(digest));
            if !is_written && is_removed(&partial) {
                self.move_to_trash(&partial.path)?;
                freed += partial.size;
            }
        }
        Ok(freed)
    }

    fn partial_path(&self, digest: &Digest) -> PathBuf {
        let name = format!("{}-{}{PARTIAL_SUFFIX}", digest.algorithm().name(), digest.hex());
        self.root.join("ingest").join(name)
    }

    fn partials(&self) -> Vec<Partial> {
        let Ok(entries) = fs::read_dir(self.root.join("ingest")) else { return Vec::new() };
        let partial = |entry: fs::DirEntry| {
            let metadata = entry.metadata().ok()?;
            let name = entry.file_name();
            let digest = name.to_str().and_then(|name| {
                let (algorithm, hex) = name.strip_suffix(PARTIAL_SUFFIX)?.split_once('-')?;
                format!("{algorithm}:{hex}").parse().ok()
            });
            Some(Partial { path: entry.path(), digest, size: metadata.len(), modified: metadata.modified().ok()? })
        };
        entries.filter_map(Result::ok).filter_map(partial).collect()
    }
}

pub(crate) struct Partial {
    path: PathBuf,
    digest: Option<Digest>,
    size: u64,
    modified: SystemTime,
}

impl Partial {
    pub(super) fn is_expired(&self) -> bool {
        self.modified.elapsed().is_ok_and(|age| age > PARTIAL_AGE_MAX)
    }

    /// At start, when nothing is written: one too short to resume and an unknown file, too.
    pub(super) fn is_leftover(&self) -> bool {
        self.digest.is_none() || self.size < RESUME_MIN || self.is_expired()
    }
}

pub(crate) struct KeptBytes {
    pub(crate) file: File,
    pub(crate) length: u64,
    pub(crate) is_kept: bool,
}

/// A blob being written. Dropped unfinished, it stays if it is long enough to resume and not known to be wrong.
#[derive(Debug)]
pub(crate) struct BlobWriter {
    store: Arc<Store>,
    digest: Digest,
    path: PathBuf,
    file: Option<File>,
    /// Bytes that the caller writes again and the file already has.
    skip: u64,
    length: u64,
    is_wanted: bool,
}

impl BlobWriter {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let known = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
        self.skip -= known as u64;
        let new = &bytes[known..];
        if let Some(file) = self.file.as_mut().filter(|_| !new.is_empty()) {
            file.write_all(new).inspect_err(|_| self.is_wanted = false)?;
            self.length += new.len() as u64;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> StagedBlob {
        self.file = None;
        Step::BlobWritten.reach();
        StagedBlob(self)
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        let is_kept = self.is_wanted && self.length >= RESUME_MIN;
        if !is_kept && let Err(error) = remove_tree(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "could not remove a blob; the next start takes it");
        }
        self.store.index().written.remove(&self.digest);
    }
}

/// A whole blob that is not part of the store yet. Dropped uncommitted, it is a partial.
pub(crate) struct StagedBlob(BlobWriter);

impl StagedBlob {
    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    pub(super) fn discard(mut self) {
        self.0.is_wanted = false;
    }

    /// Moves it to its place after its bytes are durable, unless another commit has. The caller holds the index.
    pub(super) fn keep(&self, index: &mut Index) -> io::Result<()> {
        let BlobWriter { store, digest, path, length, .. } = &self.0;
        if index.blobs.contains_key(digest) {
            return Ok(());
        }
        let home = store.blob_path(digest);
        fs::create_dir_all(home.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        fs::rename(path, &home)?;
        index.blobs.insert(digest.clone(), *length);
        Step::BlobKept.reach();
        Ok(())
    }

    pub(super) fn folders(&self) -> [PathBuf; 2] {
        let blobs = Path::new("blobs");
        [blobs.join(self.0.digest.algorithm().name()), blobs.to_owned()]
    }
}

impl Index {
    /// Kept blobs that no image has, or whose size differs from an image's record.
    pub(super) fn unneeded_blobs(&self) -> Vec<Digest> {
        let damaged = self.damaged.values().filter_map(|image| image.record.as_ref());
        let layers = self.images.values().chain(damaged).flat_map(|image| &image.layers);
        let needed: BTreeMap<&Digest, u64> =
            layers.filter_map(|layer| Some((layer.blob.as_ref()?, layer.size))).collect();
        let unneeded = self.blobs.iter().filter(|(digest, size)| needed.get(digest) != Some(*size));
        unneeded.map(|(digest, _)| digest.clone()).collect()
    }
}
