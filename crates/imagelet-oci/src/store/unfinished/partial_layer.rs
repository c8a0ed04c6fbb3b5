//! The folder of a layer that is being unpacked, and that a later attempt can continue:
//!
//! ```text
//! ingest/KEY.partial/
//!   journal       how to make the archive's first bytes from the files (see `journal`)
//!   resume.json   boot, destination and attempt: which attempt may continue the folder
//!   fs/           the files of this attempt
//!   previous/     the files of the attempt before; this attempt links them into fs/
//! ```
//!
//! Nothing in the folder is synced, so only the boot that wrote it uses it. After a crash, the next attempt continues
//! or removes the folder. The folder of a rejected layer is removed; the folder of a complete layer moves to `tmp/`.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use imagelet_core::{durable::replace_file_unsynced, error::RuntimeError, failpoint, image::Digest};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};

use super::journal::{Checkpoint, JournalReader, JournalSummary, JournalWriter, StreamFormat};
use crate::layer_folders::open_folder;
use crate::store::{
    LayerEnd, Resumption, Store, SyncView, TREE, could_not,
    files::durable::remove_tree,
    index::load::read_json,
    record::checksum,
    staging::{CONDITIONS, JOURNAL, PREVIOUS, PartialLayerGuard, Staging},
};

pub(in crate::store) const PARTIAL_SUFFIX: &str = ".partial";

/// Identifies a partial blob or layer: its digest, and its repository if other repositories must not use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartialKey {
    pub(crate) digest: Digest,
    /// For a file of an artifact, contains the digest of the repository's name. Repositories share an image's layers.
    pub(in crate::store) file_name: String,
}

impl PartialKey {
    pub(crate) fn new(digest: &Digest, repository: Option<&str>) -> Self {
        let repository = repository.map(|repository| format!("-{}", Digest::of(repository.as_bytes()).hex()));
        let (algorithm, hex, repository) = (digest.algorithm().name(), digest.hex(), repository.unwrap_or_default());
        Self { digest: digest.clone(), file_name: format!("{algorithm}-{hex}{repository}{PARTIAL_SUFFIX}") }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ResumeConditions {
    boot: String,
    end: LayerEnd,
    attempt: u32,
}

/// A layer that is being unpacked. Its folder stays for the next pull if this pull fails.
pub(crate) struct PartialLayer {
    pub(crate) staging: Staging,
    pub(crate) journal: JournalWriter,
    pub(crate) resumed: Option<ResumedLayer>,
}

pub(crate) struct ResumedLayer {
    pub(crate) journal: JournalReader,
    pub(crate) previous: Arc<OwnedFd>,
    pub(crate) checkpoint: Checkpoint,
}

impl ResumedLayer {
    /// The offset of the first byte to fetch. In a gzip stream, one byte may have bits on both sides of the checkpoint.
    pub(crate) fn offset(&self) -> u64 {
        match self.checkpoint.format {
            StreamFormat::Gzip => self.checkpoint.packed.saturating_sub(1),
            StreamFormat::Plain => self.checkpoint.packed,
        }
    }
}

/// The bytes of a layer's blob that a pull need not fetch, and the bytes of the layer's files on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResumableBytes {
    pub(crate) packed: u64,
    pub(crate) written: u64,
}

impl Store {
    /// Starts a layer whose folder stays for the next pull. If `reads` is true, continues an earlier pull's layer.
    /// Returns `None` if another pull writes the layer, or a partial blob exists. `view` is older than the first write.
    pub(crate) fn stage_partial(
        self: &Arc<Self>,
        (key, size): (&PartialKey, u64),
        (end, view): (LayerEnd, &Arc<SyncView>),
        (resumption, reads): (&Resumption, bool),
    ) -> Result<Option<PartialLayer>, RuntimeError> {
        self.check_writable()?;
        let (Some(boot), folder, file_name) = (self.boot.clone(), self.partial_path(key), key.file_name.clone()) else {
            return Ok(None);
        };
        if folder.is_file() {
            return Ok(None);
        }
        let earlier = {
            let mut index = self.index();
            if index.unfinished.written.contains_key(&file_name) {
                return Ok(None);
            }
            index.unfinished.written.insert(file_name.clone(), None);
            index.unfinished.partial_views.retain(|name, _| self.root().join("ingest").join(name).is_dir());
            index.unfinished.partial_views.insert(file_name.clone(), Arc::clone(view))
        };
        let guard = PartialLayerGuard { store: Arc::clone(self), file_name, resumption: resumption.clone() };
        let conditions = ResumeConditions { boot, end, attempt: 0 };
        // After a restart, the store's own view, opened at its start, covers the folder.
        let earlier = earlier.or_else(|| self.views().first().cloned());
        let found = if reads { resume(&folder, &conditions, size) } else { Ok(None) };
        let found = found.and_then(|found| match (&found, earlier) {
            // After a failed write-back, the page cache still has the bytes. Only this view reports the failure.
            (Some(_), Some(earlier)) => earlier.sync().map(|()| found),
            _ => Ok(None),
        });
        let begun = match found {
            Ok(Some((journal, resumed))) => Ok((journal, Some(resumed))),
            found => {
                if let Err(error) = found {
                    tracing::warn!(path = %folder.display(), %error, "could not continue a partial layer; it is fetched again");
                }
                remove_tree(&folder).and_then(|()| begin(&folder, &conditions)).map(|journal| (journal, None))
            }
        };
        let (journal, resumed) = begun.map_err(could_not("create", &folder))?;
        failpoint!("partial.begun");
        Ok(Some(PartialLayer { staging: Staging { path: folder, partial: Some(guard) }, journal, resumed }))
    }

    /// Zero while another pull writes the content.
    pub(crate) fn resumable_bytes(&self, key: &PartialKey, size: u64) -> ResumableBytes {
        let path = self.partial_path(key);
        if self.is_written(key) {
            return ResumableBytes::default();
        }
        if path.is_dir() {
            let last = summary(&path).unwrap_or_default().last.map(|(checkpoint, _)| checkpoint);
            let last = last.filter(|last| last.packed < size);
            return last.map_or_else(ResumableBytes::default, |last| ResumableBytes {
                packed: last.packed,
                written: last.plain,
            });
        }
        let length = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let packed = if length > size { 0 } else { length };
        ResumableBytes { packed, written: packed }
    }

    pub(in crate::store) fn is_of_this_boot(&self, folder: &Path) -> bool {
        read_json::<ResumeConditions>(&folder.join(CONDITIONS))
            .is_ok_and(|conditions| self.boot.as_ref() == Some(&conditions.boot))
    }
}

pub(in crate::store) fn partial_layer_size(folder: &Path) -> u64 {
    summary(folder).map_or(0, |summary| summary.plain)
}

/// A layer without a journal counts as old.
pub(in crate::store) fn partial_layer_modified(folder: &Path) -> SystemTime {
    let journal = fs::metadata(folder.join(JOURNAL));
    journal.and_then(|journal| journal.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn summary(folder: &Path) -> io::Result<JournalSummary> {
    JournalSummary::of(&File::open(folder.join(JOURNAL))?)
}

fn begin(folder: &Path, conditions: &ResumeConditions) -> io::Result<JournalWriter> {
    fs::create_dir(folder)?;
    write_conditions(folder, conditions)?;
    JournalWriter::open(&folder.join(JOURNAL), conditions.attempt, None)
}

fn write_conditions(folder: &Path, conditions: &ResumeConditions) -> io::Result<()> {
    let path = folder.join(CONDITIONS);
    replace_file_unsynced(&path, &path.with_extension("new"), &checksum::seal(conditions))
}

/// Prepares the folder for the next attempt. Returns `None` if the folder does not fit `wanted` or the blob's `size`.
fn resume(folder: &Path, wanted: &ResumeConditions, size: u64) -> io::Result<Option<(JournalWriter, ResumedLayer)>> {
    let Ok(found) = read_json::<ResumeConditions>(&folder.join(CONDITIONS)) else { return Ok(None) };
    let summary = summary(folder)?;
    let is_wanted = (&found.boot, found.end) == (&wanted.boot, wanted.end);
    let Some(last) = summary.last.filter(|(last, _)| is_wanted && last.packed < size) else { return Ok(None) };
    let (tree, previous, journal) = (folder.join(TREE), folder.join(PREVIOUS), folder.join(JOURNAL));
    if previous.is_dir() {
        // An attempt adds to the journal only after it has linked all files of the previous attempt.
        let is_complete = summary.attempt == found.attempt && tree.is_dir();
        remove_tree(if is_complete { &previous } else { &tree })?;
    }
    let known = [JOURNAL, CONDITIONS, TREE, PREVIOUS];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !known.iter().any(|known| entry.file_name() == *known) {
            remove_tree(&entry.path())?;
        }
    }
    let attempt = found.attempt + 1;
    // This comes before the rename, after which the tree is incomplete until this attempt adds to the journal.
    write_conditions(folder, &ResumeConditions { attempt, ..found })?;
    if !previous.is_dir() {
        fs::rename(&tree, &previous)?;
    }
    failpoint!("partial.previous");
    let writer = JournalWriter::open(&journal, attempt, Some(last))?;
    let previous = Arc::new(open_folder(&previous)?);
    let journal = JournalReader(File::open(&journal)?);
    Ok(Some((writer, ResumedLayer { journal, previous, checkpoint: last.0 })))
}
