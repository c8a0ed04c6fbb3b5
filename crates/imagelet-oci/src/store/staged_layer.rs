//! Whole layers that a pull has staged: one becomes part of the store, leaves it for a sink, or stays as a spare.
//!
//! A layer for a sink leaves `tmp/` only to its sink. Nothing here is synced; an import syncs all that it used before its
//! image gets a name.
//!
//! A cancelled sink may still be moving a tree. Before a layer becomes a spare, its folder is renamed, so that such a
//! move fails or is over. A sink also sets the metadata of implicit folders from a lower layer: once a sink had a layer
//! with such folders, it cannot be a spare. (A root without an entry is set each time.)

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use imagelet_core::{
    failpoint,
    runtime::{PulledLayer, RuntimeError},
};

use super::{
    StagedBlob, Staging, Store, could_not,
    files::durable::SyncView,
    index::Spare,
    record::{LayerRecord, SpareRecord, checksum, read_implicit},
    resumption::Resumption,
    spare_layers::LayerEnd,
    staging::discard,
    storage_error,
};
use crate::{layer_sink::StagedTree, manifest::Descriptor};

/// A whole layer that is not part of the store yet. Dropped uncommitted, it is removed, or stays as a spare.
pub(crate) struct StagedLayer {
    store: Arc<Store>,
    pub(super) unpacked: Spare,
    /// `Some`: it stays as a spare while that is allowed.
    resumption: Option<Resumption>,
    pub(super) blob: Option<StagedBlob>,
    /// The folder is in the store.
    pub(super) is_placed: AtomicBool,
    /// A sink may be moving the tree.
    is_in_sink: bool,
}

impl StagedLayer {
    pub(crate) fn new(
        store: &Arc<Store>,
        staging: Staging,
        blob: &Descriptor,
        record: LayerRecord,
        view: Arc<SyncView>,
    ) -> Result<Self, RuntimeError> {
        let failed = not_recorded(&record);
        let record = if record.end == LayerEnd::Sink { Ok(record) } else { record.measured(staging.path()) };
        let record = record
            .and_then(|record| fs::write(staging.path().join("layer.json"), checksum::seal(&record)).map(|()| record))
            .map_err(failed)?;
        failpoint!("layer.recorded");
        let entry = PulledLayer {
            blob: Some(blob.digest.clone()),
            size: blob.size,
            diff_id: record.diff_id.clone(),
            media_type: blob.media_type.clone(),
        };
        let origin = SpareRecord { boot: String::new(), repository: String::new(), entry };
        let unpacked = Spare { folder: staging.keep(), record, view, since: SystemTime::now(), origin };
        Ok(Self::of_spare(store, unpacked, None))
    }

    pub(super) fn of_spare(store: &Arc<Store>, unpacked: Spare, resumption: Option<Resumption>) -> Self {
        let (store, is_placed) = (Arc::clone(store), AtomicBool::new(false));
        Self { store, unpacked, resumption, blob: None, is_placed, is_in_sink: false }
    }

    pub(crate) fn entry(&self) -> &PulledLayer {
        &self.unpacked.origin.entry
    }

    pub(crate) fn view(&self) -> &Arc<SyncView> {
        &self.unpacked.view
    }

    pub(crate) fn with_blob(mut self, blob: Option<StagedBlob>) -> Self {
        self.blob = blob;
        self
    }

    /// From here on it stays as a spare layer for pulls of `repository`, or of all, where it is dropped uncommitted.
    pub(crate) fn resumable(mut self, repository: &str, resumption: &Resumption) -> Result<Self, RuntimeError> {
        // Without a boot id, a record proves nothing after a power cut.
        let Some(boot) = self.store.boot.as_deref().filter(|_| resumption.is_allowed()) else { return Ok(self) };
        let Spare { folder, record, origin, .. } = &mut self.unpacked;
        (origin.boot, origin.repository) = (boot.to_owned(), repository.to_owned());
        origin.write(folder).map_err(not_recorded(record))?;
        self.resumption = Some(resumption.clone());
        Ok(self)
    }

    /// The folders that a lower layer may have the metadata of, parents first.
    pub(crate) fn implicit(&mut self) -> Result<Vec<Vec<u8>>, RuntimeError> {
        let implicit = read_implicit(&self.unpacked.folder).map_err(|error| {
            self.resumption = None;
            let diff_id = &self.unpacked.record.diff_id;
            storage_error(format!("could not read the implied directories of layer `{diff_id}`"), error)
        })?;
        let mut implicit: Vec<_> = implicit.into_iter().collect();
        implicit.sort_unstable();
        Ok(implicit)
    }

    /// The tree for a sink, with its implicit folders.
    pub(crate) fn tree(&mut self, implicit: Vec<Vec<u8>>) -> Result<StagedTree, RuntimeError> {
        self.is_in_sink = true;
        let folder = &self.unpacked.folder;
        if has_folders(&implicit) {
            self.resumption = None;
            let record = folder.join("layer.json");
            fs::remove_file(&record).map_err(could_not("remove", &record))?;
        }
        let blob = self.blob.as_ref().map(|blob| blob.path().to_owned());
        Ok(StagedTree { folder: folder.join("fs"), implicit, blob })
    }

    /// The sink has it.
    pub(crate) fn taken(mut self) {
        self.resumption = None;
        if let Some(blob) = self.blob.take() {
            blob.discard();
        }
    }
}

/// Whether folders beside the root are among the implicit ones.
pub(crate) fn has_folders(implicit: &[Vec<u8>]) -> bool {
    implicit.iter().any(|path| !path.is_empty())
}

impl Drop for StagedLayer {
    fn drop(&mut self) {
        if self.is_placed.load(Ordering::Relaxed) {
            return;
        }
        let Spare { folder, view, .. } = &mut self.unpacked;
        if self.is_in_sink {
            let old = std::mem::replace(folder, self.store.fresh_path("tmp"));
            if let Err(error) = fs::rename(&old, &*folder) {
                tracing::warn!(path = %old.display(), %error, "could not rename a staging folder; a sweep or the next start removes it");
            }
        }
        // A layer with a kept blob resumes by that. After a failed sync the bytes may be lost, and a later view would not
        // learn of it.
        let is_allowed = self.resumption.as_ref().is_some_and(Resumption::is_allowed);
        let has_tree = || !self.is_in_sink || folder.join("fs").is_dir();
        if is_allowed && self.blob.is_none() && !view.has_failed() && has_tree() {
            self.store.add_spare(self.unpacked.clone());
        } else {
            discard(folder);
        }
    }
}

fn not_recorded(layer: &LayerRecord) -> impl FnOnce(io::Error) -> RuntimeError + use<> {
    let message = format!("could not write the record of layer `{}`", layer.diff_id);
    move |error| storage_error(message, error)
}
