//! Background durability: content that is visible before it is durable, and the sync that makes it durable.
//!
//! The record of a layer that is not durable has the boot id; only that boot may use the layer. The unsynced file
//! `names.unsettled.json` has the new names, the boot id and a higher generation than `names.json`. `sync_background`
//! syncs the file system, removes the boot ids, syncs again and replaces `names.json`. After kill -9, the next owner of
//! the store uses this content. After a power cut, the next owner drops it.

use std::{
    fs, io,
    sync::{Arc, MutexGuard},
};

use imagelet_core::{durable::replace_file_unsynced, error::RuntimeError, failpoint, image::ImageId};

use super::{
    Store, could_not,
    files::durable::{SyncView, remove_tree, replace_file},
    index::{Index, NAMES_UNSETTLED},
    record::{LayerEnd, LayerRecord, checksum},
};

/// Sync rounds during which pulls may commit new content. A later round locks the index, so that it is the last.
const ROUNDS_UNHURRIED: usize = 3;

impl Store {
    /// The boot id for a new layer that may be used before it is durable; `None` for any other layer.
    pub(crate) fn unsettled_mark(&self, end: LayerEnd) -> Option<String> {
        if self.in_background || end == LayerEnd::Sink { self.boot.clone() } else { None }
    }

    pub(crate) fn is_unsettled(&self) -> bool {
        self.index().is_unsettled()
    }

    pub(crate) fn sync_background(&self) -> Result<(), RuntimeError> {
        if self.is_read_only() || !self.is_unsettled() {
            return Ok(());
        }
        let _alone = self.syncing.lock().expect("no thread panics while it holds the lock");
        let failed = could_not("make durable the store", &self.root);
        for round in 0.. {
            let locked = (round >= ROUNDS_UNHURRIED).then(|| self.index());
            let layers =
                locked.as_ref().map_or_else(|| self.index().unsettled_layers(), |index| index.unsettled_layers());
            let synced = self.sync_and_unmark(&layers);
            let mut index = locked.unwrap_or_else(|| self.index());
            if let Err(error) = synced {
                self.drop_unsettled_content(&mut index);
                // A full disk may be the cause, so the trash is emptied. That takes long and needs no lock.
                drop(index);
                self.try_empty_trash();
                return Err(failed(error));
            }
            for layer in &layers {
                if let Some(layer) = index.layers.get_mut(&layer.diff_id) {
                    layer.unsettled = None;
                }
            }
            if index.unsettled_layers().is_empty() {
                // After a failure, a retry is safe, because each attempt writes a new file.
                return self.write_durable_names(&mut index).map_err(failed);
            }
        }
        Ok(())
    }

    fn sync_and_unmark(&self, layers: &[LayerRecord]) -> io::Result<()> {
        self.sync_shown()?;
        failpoint!("settle.synced");
        for record in layers {
            let folder = self.layer_folder(&record.diff_id);
            let beside = folder.join("layer.new");
            fs::write(&beside, checksum::seal(&LayerRecord { unsettled: None, ..record.clone() }))?;
            fs::rename(&beside, folder.join("layer.json"))?;
            failpoint!("settle.mark");
        }
        self.sync_shown()?;
        failpoint!("settle.marks");
        Ok(())
    }

    /// Syncs all views, then drops the views of pulls. The first view is the store's own and stays.
    fn sync_shown(&self) -> io::Result<()> {
        let views = self.views().clone();
        views.iter().try_for_each(|view| view.sync())?;
        let reported = &views[1..];
        self.views().retain(|view| !reported.iter().any(|other| Arc::ptr_eq(view, other)));
        Ok(())
    }

    pub(crate) fn remember_view(&self, view: &Arc<SyncView>) {
        let mut views = self.views();
        if !views.iter().any(|known| Arc::ptr_eq(known, view)) {
            views.push(Arc::clone(view));
        }
    }

    pub(crate) fn views(&self) -> MutexGuard<'_, Vec<Arc<SyncView>>> {
        self.views.lock().expect("no thread panics while it holds the lock")
    }

    /// Writes the first `names.json`. A start without it reads the names from image records, even if layers are lost.
    pub(super) fn write_first_names(&self) -> Result<(), RuntimeError> {
        let path = self.root.join("names.json");
        if !self.in_background || path.exists() {
            return Ok(());
        }
        let written = self.replace_names(&mut self.index());
        written.map_err(could_not("write", &path))
    }

    pub(super) fn replace_names(&self, index: &mut Index) -> io::Result<()> {
        replace_file(&self.root.join("names.json"), &index.names_file(None))
    }

    fn write_durable_names(&self, index: &mut Index) -> io::Result<()> {
        self.replace_names(index)?;
        index.names_unsettled = false;
        // A power cut may undo this removal. A start then ignores the file: `names.json` has a higher generation.
        remove_tree(&self.root.join(NAMES_UNSETTLED))
    }

    /// The names survive a crash of this process, but not a power cut.
    pub(crate) fn write_names_unsettled(&self, index: &mut Index) -> io::Result<()> {
        let path = self.root.join(NAMES_UNSETTLED);
        replace_file_unsynced(&path, &path.with_extension("new"), &index.names_file(self.boot.as_deref()))?;
        failpoint!("commit.named-unsettled");
        index.names_unsettled = true;
        Ok(())
    }

    fn drop_unsettled_content(&self, index: &mut Index) {
        let images: Vec<ImageId> = index.images.keys().cloned().collect();
        let layers = index.drop_unsettled();
        let _ = fs::remove_file(self.root.join(NAMES_UNSETTLED));
        let images = images.iter().filter(|id| !index.images.contains_key(*id)).map(|id| self.image_folder(id));
        for folder in layers.iter().map(|layer| self.layer_folder(&layer.diff_id)).chain(images) {
            if let Err(error) = self.move_to_trash(&folder) {
                tracing::error!(
                    error = error.chain(),
                    "content that the disk refused to keep stays until the next sweep"
                );
            }
        }
        // A failed view stays failed, so the next sync needs a new view.
        match SyncView::open(&self.root) {
            Ok(view) => *self.views() = vec![Arc::new(view)],
            Err(error) => tracing::error!(%error, "could not open the store's file system again"),
        }
    }
}
