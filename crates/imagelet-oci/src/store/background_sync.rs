//! Background durability: what a pull has shown before the disk had it, and how it becomes durable after.
//!
//! A layer that a pull shows at once carries the id of this boot in its record: until the mark is gone, only this boot
//! may believe in it. The names go to `names.unsettled.json`, with the same mark and a higher generation than
//! `names.json`, and are not synced. To sync_background is to sync the file system, take the marks off, sync again, and replace
//! `names.json`. After kill -9 the next owner finds the marks of its own boot and goes on from there; after a power cut
//! the boot is another one, and what is marked is dropped as a whole.

use std::{
    fs,
    io::{self, Write as _},
    sync::{Arc, MutexGuard},
};

use imagelet_core::{image::Digest, runtime::RuntimeError};

use super::{
    Store,
    files::durable::{SyncView, create_anew, replace_file},
    index::{Index, NAMES_UNSETTLED},
    record::LayerRecord,
    spare_layers::LayerEnd,
    storage_error,
};
use crate::failpoint::Step;

/// After so many rounds that met new pulls each time, the next round holds them up until it is done.
const ROUNDS_UNHURRIED: usize = 3;

impl Store {
    /// The mark for a layer that is written now; `None` where a commit makes it durable before anybody sees it.
    pub(crate) fn unsettled_mark(&self, end: LayerEnd) -> Option<String> {
        if self.in_background || end == LayerEnd::Sink { self.boot.clone() } else { None }
    }

    /// Whether something is shown that a power cut would take.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.index().is_unsettled()
    }

    /// Makes everything durable that is shown. Cheap when it is so already.
    pub(crate) fn sync_background(&self) -> Result<(), RuntimeError> {
        if self.is_read_only() || !self.is_unsettled() {
            return Ok(());
        }
        let _alone = self.settling.lock().expect("no thread panics while it holds the lock");
        let failed =
            |error| storage_error(format!("could not make the store `{}` durable", self.root.display()), error);
        for round in 0.. {
            let held_up = (round >= ROUNDS_UNHURRIED).then(|| self.index());
            let layers =
                held_up.as_ref().map_or_else(|| self.index().unsettled_layers(), |index| index.unsettled_layers());
            let settled = self.take_marks_off(&layers);
            let mut index = held_up.unwrap_or_else(|| self.index());
            if let Err(error) = settled {
                self.drop_unsettled_content(&mut index);
                self.reopen_view();
                return Err(failed(error));
            }
            index.mark_durable(&layers);
            if index.unsettled_layers().is_empty() {
                // Its file is a fresh one each time, so this may be tried again.
                return self.write_durable_names(&mut index).map_err(failed);
            }
        }
        Ok(())
    }

    fn take_marks_off(&self, layers: &[(Digest, LayerRecord)]) -> io::Result<()> {
        self.sync_shown()?;
        Step::SettleSynced.reach();
        for (diff_id, record) in layers {
            let folder = self.layer_folder(diff_id);
            let beside = folder.join("layer.new");
            fs::write(&beside, LayerRecord { unsettled: None, ..record.clone() }.to_bytes())?;
            fs::rename(&beside, folder.join("layer.json"))?;
            Step::SettleMark.reach();
        }
        self.sync_shown()?;
        Step::SettleMarks.reach();
        Ok(())
    }

    /// Syncs through the views of all pulls that were shown since the last time, and drops those that have reported.
    fn sync_shown(&self) -> io::Result<()> {
        let views = self.views().clone();
        views.iter().try_for_each(|view| view.sync())?;
        // One stays, for what the next settling finds without a pull of its own.
        let told = &views[1..];
        self.views().retain(|view| !told.iter().any(|told| Arc::ptr_eq(view, told)));
        Ok(())
    }

    /// Remembers the view of a pull that is shown before it is durable.
    pub(crate) fn remember_view(&self, view: &Arc<SyncView>) {
        let mut views = self.views();
        if !views.iter().any(|known| Arc::ptr_eq(known, view)) {
            views.push(Arc::clone(view));
        }
    }

    /// A failure was reported, and what it hit is dropped: what is written from now on has a new view.
    fn reopen_view(&self) {
        match SyncView::open(&self.root) {
            Ok(view) => *self.views() = vec![Arc::new(view)],
            Err(error) => tracing::error!(%error, "could not look at the store's file system anew"),
        }
    }

    pub(crate) fn views(&self) -> MutexGuard<'_, Vec<Arc<SyncView>>> {
        self.views.lock().expect("no thread panics while it holds the lock")
    }

    fn write_durable_names(&self, index: &mut Index) -> io::Result<()> {
        replace_file(&self.root.join("names.json"), &index.names_file())?;
        index.names_unsettled = false;
        // Its generation is past, so it does not matter whether it comes back.
        match fs::remove_file(self.root.join(NAMES_UNSETTLED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes the names so that they survive the end of this process; durable they are once settled.
    pub(crate) fn write_names_unsettled(&self, index: &mut Index) -> io::Result<()> {
        let path = self.root.join(NAMES_UNSETTLED);
        let beside = path.with_extension("new");
        let bytes = index.names_unsettled_file(self.boot.as_deref().unwrap_or_default());
        let written = create_anew(&beside).and_then(|mut file| file.write_all(&bytes));
        let written = written.and_then(|()| fs::rename(&beside, &path));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written?;
        Step::CommitNamedUnsettled.reach();
        index.names_unsettled = true;
        Ok(())
    }

    /// Drops what the disk did not take, in memory and for the next start.
    fn drop_unsettled_content(&self, index: &mut Index) {
        let lost = index.drop_unsettled();
        for (name, id) in lost.names {
            tracing::error!(name, image = %id, "the disk refused to keep this image; it is dropped");
        }
        let _ = fs::remove_file(self.root.join(NAMES_UNSETTLED));
        for layer in lost.layers {
            let moved = fs::rename(self.layer_folder(&layer), self.fresh_path("trash"));
            if let Err(error) = moved {
                tracing::error!(%layer, %error, "could not move a layer to the trash that the disk refused to keep");
            }
        }
    }
}
