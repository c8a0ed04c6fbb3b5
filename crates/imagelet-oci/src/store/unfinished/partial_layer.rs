//! The folder of a layer that is being unpacked: `ingest/KEY.partial/` with the journal and the files in `fs/`.
//!
//! A pull that continues the layer moves `fs/` to `kept/` and makes a new `fs/`, in which it links the files of `kept/`
//! as it reads the journal. So both a crash and a refusal leave a folder that the next pull can continue, or remove. Only
//! the boot that wrote the folder uses it: nothing in it is synced. The whole layer leaves the folder for `tmp/`.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use imagelet_core::{durable::replace_file_unsynced, error::RuntimeError, failpoint};
use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
};
use serde::{Deserialize, Serialize};

use super::journal::{Checkpoint, Extent, JournalWriter, Packing, Replay};
use crate::store::{
    LayerEnd, PartialKey, Resumption, Staging, Store, could_not, files::durable::remove_tree, index::load::read_json,
    record::checksum,
};

const JOURNAL: &str = "journal";
const ORIGIN: &str = "origin.json";
const TREE: &str = "fs";
const KEPT: &str = "kept";

/// Which pulls may continue the layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Origin {
    boot: String,
    end: LayerEnd,
    /// The number of pulls that have continued the layer.
    run: u32,
}

/// A layer that is unpacked so that it stays for the next pull.
pub(crate) struct PartialStaging {
    pub(crate) staging: Staging,
    pub(crate) journal: JournalWriter,
    pub(crate) resumed: Option<ResumedLayer>,
}

/// What an earlier pull has left of a layer.
pub(crate) struct ResumedLayer {
    pub(crate) replay: Replay,
    pub(crate) kept: Arc<OwnedFd>,
    pub(crate) checkpoint: Checkpoint,
}

impl ResumedLayer {
    /// The first byte of the blob that is fetched: a byte may have bits on both sides of the checkpoint.
    pub(crate) fn offset(&self) -> u64 {
        match self.checkpoint.packing {
            Packing::Gzip => self.checkpoint.packed.saturating_sub(1),
            Packing::Plain => self.checkpoint.packed,
        }
    }
}

/// Marks a folder as being written. A drop of the staging folder leaves it for the next pull, if that is allowed.
#[derive(Debug)]
pub(in crate::store) struct PartialGuard {
    store: Arc<Store>,
    key: PartialKey,
    resumption: Resumption,
}

impl PartialGuard {
    /// Whether the folder stays after a drop.
    pub(in crate::store) fn stays(&self, folder: &Path) -> bool {
        self.resumption.is_allowed() && fs::metadata(folder.join(JOURNAL)).is_ok_and(|journal| journal.len() > 0)
    }

    /// Moves the whole layer out of the folder of unfinished content.
    pub(in crate::store) fn finish(&self, folder: &Path) -> io::Result<PathBuf> {
        // Without its journal the folder is no partial layer.
        for part in [JOURNAL, ORIGIN, KEPT] {
            remove_tree(&folder.join(part))?;
        }
        let whole = self.store.fresh_path("tmp");
        fs::rename(folder, &whole)?;
        failpoint!("layer.whole");
        Ok(whole)
    }
}

impl Drop for PartialGuard {
    fn drop(&mut self) {
        self.store.index().unfinished.written.remove(&self.key.file_name);
    }
}

/// What a pull need not fetch of a layer, and the bytes of the layer's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResumableBytes {
    pub(crate) packed: u64,
    pub(crate) written: u64,
}

impl Store {
    /// Starts or continues a layer whose folder stays for the next pull. `None`: another pull writes it, or the store has
    /// the first bytes of its blob.
    pub(crate) fn stage_partial(
        self: &Arc<Self>,
        key: &PartialKey,
        end: LayerEnd,
        resumption: &Resumption,
    ) -> Result<Option<PartialStaging>, RuntimeError> {
        self.check_writable()?;
        let (Some(boot), folder) = (self.boot.clone(), self.partial_path(key)) else { return Ok(None) };
        if folder.is_file() {
            return Ok(None);
        }
        {
            let mut index = self.index();
            if index.unfinished.written.contains_key(&key.file_name) {
                return Ok(None);
            }
            index.unfinished.written.insert(key.file_name.clone(), None);
        }
        let guard = PartialGuard { store: Arc::clone(self), key: key.clone(), resumption: resumption.clone() };
        let origin = Origin { boot, end, run: 0 };
        let begun = match resumed(&folder, &origin) {
            Ok(Some((journal, resumed))) => Ok((journal, Some(resumed))),
            found => {
                if let Err(error) = found {
                    tracing::warn!(path = %folder.display(), %error, "a partial layer cannot be continued; it is fetched again");
                }
                remove_tree(&folder).and_then(|()| begun(&folder, &origin)).map(|journal| (journal, None))
            }
        };
        let (journal, resumed) = begun.map_err(could_not("create", &folder))?;
        failpoint!("partial.begun");
        Ok(Some(PartialStaging { staging: Staging::partial(folder, guard), journal, resumed }))
    }

    /// The bytes of a partial blob or layer that a pull need not fetch again. It has none while it has a writer.
    pub(crate) fn resumable(&self, key: &PartialKey, size: u64) -> ResumableBytes {
        let path = self.partial_path(key);
        if self.is_written(key) {
            return ResumableBytes::default();
        }
        if path.is_dir() {
            let last = extent(&path).unwrap_or_default().last.map(|(checkpoint, _)| checkpoint);
            let last = last.filter(|last| last.packed <= size);
            return last.map_or_else(ResumableBytes::default, |last| ResumableBytes {
                packed: last.packed,
                written: last.plain,
            });
        }
        let length = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let packed = if length > size { 0 } else { length };
        ResumableBytes { packed, written: packed }
    }

    /// Whether a partial layer is of this boot.
    pub(in crate::store) fn is_of_this_boot(&self, folder: &Path) -> bool {
        read_json::<Origin>(&folder.join(ORIGIN)).is_ok_and(|origin| self.boot.as_ref() == Some(&origin.boot))
    }
}

/// The bytes of a partial layer's files, roughly.
pub(in crate::store) fn written_bytes(folder: &Path) -> u64 {
    extent(folder).map_or(0, |extent| extent.plain)
}

/// When a pull last added to a partial layer. One without a journal is old.
pub(in crate::store) fn written_at(folder: &Path) -> SystemTime {
    let journal = fs::metadata(folder.join(JOURNAL));
    journal.and_then(|journal| journal.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn extent(folder: &Path) -> io::Result<Extent> {
    Extent::of(&File::open(folder.join(JOURNAL))?)
}

fn begun(folder: &Path, origin: &Origin) -> io::Result<JournalWriter> {
    fs::create_dir(folder)?;
    write_origin(folder, origin)?;
    JournalWriter::create(&folder.join(JOURNAL), origin.run)
}

fn write_origin(folder: &Path, origin: &Origin) -> io::Result<()> {
    let path = folder.join(ORIGIN);
    replace_file_unsynced(&path, &path.with_extension("new"), &checksum::seal(origin))
}

/// `None`: there is nothing that a pull to this end can continue.
fn resumed(folder: &Path, wanted: &Origin) -> io::Result<Option<(JournalWriter, ResumedLayer)>> {
    let Ok(origin) = read_json::<Origin>(&folder.join(ORIGIN)) else { return Ok(None) };
    let extent = extent(folder)?;
    let Some(last) = extent.last.filter(|_| (&origin.boot, origin.end) == (&wanted.boot, wanted.end)) else {
        return Ok(None);
    };
    let (tree, kept, journal) = (folder.join(TREE), folder.join(KEPT), folder.join(JOURNAL));
    if kept.is_dir() {
        // The new tree has all files of the kept one if the run that made it has added to the journal.
        let outdated = if extent.run == origin.run && tree.is_dir() { &kept } else { &tree };
        remove_tree(outdated)?;
    }
    let run = origin.run + 1;
    let known = [JOURNAL, ORIGIN, TREE, KEPT];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !known.iter().any(|known| entry.file_name() == *known) {
            remove_tree(&entry.path())?;
        }
    }
    // Before the rename: from here on, a tree without an addition of this run is incomplete.
    write_origin(folder, &Origin { run, ..origin })?;
    if !kept.is_dir() {
        fs::rename(&tree, &kept)?;
    }
    failpoint!("partial.kept");
    let writer = JournalWriter::resume(&journal, run, last)?;
    let kept = rustix::fs::open(&kept, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let replay = Replay::new(File::open(&journal)?);
    Ok(Some((writer, ResumedLayer { replay, kept: Arc::new(kept), checkpoint: last.0 })))
}
