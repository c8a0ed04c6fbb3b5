//! Compressed blobs: kept whole where that is configured, and found again.
//!
//! A blob streams to `ingest/` (see `partial_blobs`); the commit of its image moves it to `blobs/ALGORITHM/HEX`.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use imagelet_core::{image::Digest, runtime::RuntimeError};

use super::{
    Store,
    files::durable::remove_tree,
    index::Index,
    partial_blobs::{BlobWriter, PartialKey},
};
use crate::failpoint::Step;

impl Store {
    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(digest.algorithm().name()).join(digest.hex())
    }

    pub(crate) fn blobs(&self) -> Vec<(Digest, u64)> {
        self.index().blobs.iter().map(|(digest, size)| (digest.clone(), *size)).collect()
    }

    /// A blob that is kept with an image.
    pub(crate) fn open_blob(&self, digest: &Digest, size: u64) -> Option<KeptBytes> {
        let is_kept = self.index().blobs.contains_key(digest);
        let (file, length) = if is_kept { open_file(&self.blob_path(digest))? } else { return None };
        (length == size).then_some(KeptBytes { file, length, is_in_copy: false })
    }

    /// The blob of an artifact, which the layer of its file has unchanged; `path` was checked by the manifest.
    pub(crate) fn open_layer_file(&self, layer: &Digest, path: &str, size: u64) -> Option<KeptBytes> {
        self.layer(layer)?;
        let (file, length) = open_file(&self.layer_folder(layer).join("fs").join(path))?;
        (length == size).then_some(KeptBytes { file, length, is_in_copy: false })
    }

    /// The first bytes of a blob.
    pub(crate) fn open_partial(&self, key: &PartialKey, size: u64) -> Option<KeptBytes> {
        let (file, length) = open_file(&self.partial_path(key))?;
        (1..=size).contains(&length).then_some(KeptBytes { file, length, is_in_copy: true })
    }

    pub(crate) fn has_blob(&self, digest: &Digest) -> bool {
        self.index().blobs.contains_key(digest)
    }

    /// Removes a kept blob whose digest turned out to be wrong.
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
}

fn open_file(path: &Path) -> Option<(File, u64)> {
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    Some((file, metadata.is_file().then_some(metadata.len())?))
}

pub(crate) struct KeptBytes {
    pub(crate) file: File,
    pub(crate) length: u64,
    /// The blob is continued behind these bytes.
    pub(crate) is_in_copy: bool,
}

/// A whole blob that is not part of the store yet. Dropped uncommitted, it is a partial.
pub(crate) struct StagedBlob(BlobWriter);

impl StagedBlob {
    /// `None`: it was written for a resumption alone, and the unpacked layer replaces it.
    pub(crate) fn of(mut writer: BlobWriter) -> Option<Self> {
        writer.close();
        if writer.is_reserved() {
            return Some(Self(writer));
        }
        writer.discard();
        None
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn discard(mut self) {
        self.0.discard();
    }

    /// Moves it to its place after its bytes are durable, unless another commit has. The caller holds the index.
    pub(super) fn keep(&self, index: &mut Index) -> io::Result<()> {
        let (store, digest) = (self.0.store(), self.0.digest());
        if index.blobs.contains_key(digest) {
            return Ok(());
        }
        let home = store.blob_path(digest);
        fs::create_dir_all(home.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        fs::rename(self.path(), &home)?;
        index.blobs.insert(digest.clone(), self.0.length());
        Step::BlobKept.reach();
        Ok(())
    }

    pub(super) fn folders(&self) -> [PathBuf; 2] {
        let blobs = Path::new("blobs");
        [blobs.join(self.0.digest().algorithm().name()), blobs.to_owned()]
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
