//! Layers for a sink: whole ones that leave the store as soon as the sink takes them.
//!
//! A layer for a sink leaves `tmp/` only to its sink. Nothing here is synced; an import syncs all that it used before its
//! image gets a name.
//!
//! A cancelled sink may still be moving a tree. Before a layer becomes a spare, its folder is renamed, so that such a
//! move fails or is over. A sink also sets the metadata of implicit folders from a lower layer: once a sink had a layer
//! with such folders, it cannot be a spare. (A root without an entry is set each time.)

use crate::layer_sink::StagedTree;
use std::{fs, sync::Arc};

use imagelet_core::runtime::RuntimeError;

use super::{StagedLayer, Store, SyncView, could_not, record::read_implicit, storage_error};

/// A layer for a sink. Dropped before the sink takes it, it becomes a spare where possible, in a folder of another name.
pub(crate) struct SinkLayer {
    store: Arc<Store>,
    layer: StagedLayer,
    implicit: Vec<Vec<u8>>,
    /// The tree is as it was unpacked.
    is_untouched: bool,
}

impl SinkLayer {
    pub(crate) fn new(store: &Arc<Store>, mut layer: StagedLayer) -> Result<Self, RuntimeError> {
        let implicit = read_implicit(&layer.unpacked.folder).map_err(|error| {
            layer.resumable = None;
            let diff_id = &layer.unpacked.record.diff_id;
            storage_error(format!("could not read the implied directories of layer `{diff_id}`"), error)
        })?;
        let mut implicit: Vec<_> = implicit.into_iter().collect();
        implicit.sort_unstable();
        Ok(Self { store: Arc::clone(store), layer, implicit, is_untouched: true })
    }

    pub(crate) fn has_implicit(&self) -> bool {
        self.implicit.iter().any(|path| !path.is_empty())
    }

    pub(crate) fn view(&self) -> &Arc<SyncView> {
        &self.layer.unpacked.view
    }

    pub(crate) fn tree(&mut self) -> Result<StagedTree, RuntimeError> {
        if self.has_implicit() {
            self.is_untouched = false;
            let record = self.layer.unpacked.folder.join("layer.json");
            fs::remove_file(&record).map_err(could_not("remove", &record))?;
        }
        Ok(StagedTree {
            folder: self.layer.unpacked.folder.join("fs"),
            implicit: self.implicit.clone(),
            blob: self.layer.blob.as_ref().map(|blob| blob.path().to_owned()),
        })
    }

    pub(crate) fn taken(mut self) {
        self.is_untouched = false;
        if let Some(blob) = self.layer.blob.take() {
            blob.discard();
        }
    }
}

impl Drop for SinkLayer {
    fn drop(&mut self) {
        // A cancelled sink may still be about to move the tree from the old name.
        let folder = self.store.fresh_path("tmp");
        let old = std::mem::replace(&mut self.layer.unpacked.folder, folder);
        let folder = &self.layer.unpacked.folder;
        if let Err(error) = fs::rename(&old, folder) {
            let path = old.display();
            tracing::warn!(%path, %error, "could not rename a staging folder; a sweep or the next start removes it");
        }
        // A kept blob resumes by itself.
        if !self.is_untouched || self.layer.blob.is_some() || !folder.join("fs").is_dir() {
            self.layer.resumable = None;
        }
    }
}
