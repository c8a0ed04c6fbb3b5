//! Commits images: stages the content, makes it durable, moves it to its place, and writes the names last.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io, iter,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use imagelet_core::{
    durable::{remove_file, sync_folder},
    error::{RuntimeError, RuntimeErrorKind},
    failpoint,
    image::{Digest, ImageId},
};

use super::{
    BlobWriter, StagedLayer, Store, could_not,
    files::durable::SyncView,
    index::{Index, Spare},
    record::{ImageRecord, SPARE_RECORD, checksum},
    staging::{DocumentBytes, Staging, discard},
    storage_error,
};

pub(crate) struct NewImage {
    /// The record, with the names to assign to the image. A name of another image moves to this image.
    pub record: ImageRecord,
    pub files: Vec<(&'static str, DocumentBytes)>,
}

impl Store {
    /// Commits an image: moves the content to its place and writes the names. Both are durable, or valid only for this
    /// boot until [`Self::sync_background`]. After an error, the image is not visible.
    pub(crate) fn commit(
        &self,
        new: NewImage,
        layers: &[Arc<StagedLayer>],
        view: &Arc<SyncView>,
    ) -> Result<ImageId, RuntimeError> {
        let id = new.record.image_id();
        let failed = |what: &str| not_committed(&id, what);
        let staging = self.stage()?;
        let mut record = new.record;
        // A damaged image, which this pull restores, keeps its names.
        record.names.extend(self.index().names_of(&id));
        record.names.sort();
        record.names.dedup();
        for (name, bytes) in &new.files {
            bytes.write_to(&staging.path().join(name)).map_err(failed(name))?;
            failpoint!("commit.document");
        }
        let record = record.measured(staging.path()).map_err(failed("measure"))?;
        fs::write(staging.path().join("image.json"), checksum::seal(&record)).map_err(failed("image.json"))?;
        failpoint!("commit.recorded");
        let views = || iter::once(view).chain(layers.iter().map(|layer| &layer.unpacked.view));
        if self.in_background {
            views().for_each(|view| self.remember_view(view));
        } else {
            // The image may share layers that an earlier process has left without a sync.
            self.sync_background()?;
            // One sync makes the files of all layers durable, before any of the content is visible.
            SyncView::sync_all(views()).map_err(failed("sync"))?;
            failpoint!("commit.synced");
        }
        let mut index = self.index();
        let mut placed = Placed::default();
        let shown = self.show(&mut index, &mut placed, &record, layers, staging);
        match &shown {
            Ok(()) => {
                failpoint!("commit.named");
                index.images.entry(id.clone()).or_insert(record);
                index.damaged.remove(&id);
                index.restore_whole();
                index.remove_unreferenced();
            }
            Err(_) => self.take_back(&mut index, &placed, &id),
        }
        drop(index);
        if placed.trashed || shown.is_err() {
            self.try_empty_trash();
        }
        shown.map(|()| id)
    }

    fn show(
        &self,
        index: &mut Index,
        placed: &mut Placed,
        record: &ImageRecord,
        layers: &[Arc<StagedLayer>],
        staging: Staging,
    ) -> Result<(), RuntimeError> {
        let id = record.image_id();
        let failed = |what: &str| not_committed(&id, what);
        let sync_names_in = |folder: &Path| {
            if self.in_background { Ok(()) } else { sync_folder(&self.root.join(folder)) }
        };
        for blob in layers.iter().filter_map(|layer| layer.blob.as_ref()) {
            blob.keep(index).map_err(failed("blobs"))?;
        }
        let folders: BTreeSet<PathBuf> =
            layers.iter().filter_map(|layer| layer.blob.as_ref()).flat_map(BlobWriter::folders).collect();
        folders.iter().try_for_each(|folder| sync_names_in(folder)).map_err(failed("blobs"))?;
        for layer in layers {
            let Spare { folder, record, .. } = &layer.unpacked;
            let diff_id = &record.diff_id;
            // The index is locked, so no other commit can place the layer between check and move.
            if !layer.is_placed.load(Ordering::Relaxed) && !index.layers.contains_key(diff_id) {
                remove_file(&folder.join(SPARE_RECORD)).map_err(failed("layers"))?;
                placed.trashed |= self.place(folder, &self.layer_folder(diff_id)).map_err(failed("layers"))?;
                layer.is_placed.store(true, Ordering::Relaxed);
                placed.layers.push(diff_id.clone());
                index.layers.insert(diff_id.clone(), record.clone());
                index.marked.remove(diff_id);
            }
        }
        // A layer that was present may be missing now: a check found it damaged, or a failed sync dropped it.
        if let Some(lost) = index.missing_layer(record) {
            let error = io::Error::other(format!("layer `{lost}` was found damaged meanwhile; pull again"));
            return Err(failed("layers")(error));
        }
        sync_names_in(Path::new("layers")).map_err(failed("layers"))?;
        failpoint!("commit.layers");
        if !index.images.contains_key(&id) {
            placed.trashed |= self.place(staging.path(), &self.image_folder(&id)).map_err(failed("images"))?;
            staging.keep();
            placed.image = true;
            sync_names_in(Path::new("images")).map_err(failed("images"))?;
            failpoint!("commit.images");
        }
        let before = index.names.clone();
        index.names.extend(record.names.iter().map(|name| (name.clone(), id.clone())));
        self.write_names(index, before).map_err(failed("names.json"))
    }

    fn place(&self, folder: &Path, home: &Path) -> io::Result<bool> {
        let trashed = home.exists();
        if trashed {
            fs::rename(home, self.fresh_path("trash"))?;
            failpoint!("commit.stranger");
        }
        fs::rename(folder, home)?;
        failpoint!("commit.renamed");
        Ok(trashed)
    }

    /// Moves the layers and the image folder of a failed commit, which may not be durable, to the trash.
    fn take_back(&self, index: &mut Index, placed: &Placed, id: &ImageId) {
        for layer in &placed.layers {
            index.layers.remove(layer);
        }
        let layers = placed.layers.iter().map(|layer| self.layer_folder(layer));
        for folder in layers.chain(placed.image.then(|| self.image_folder(id))) {
            if let Err(error) = fs::rename(&folder, self.fresh_path("trash")) {
                tracing::warn!(path = %folder.display(), %error, "could not undo a failed commit; a sweep does");
            }
        }
    }

    /// After an error, restores the previous names in the index and in the file.
    fn write_names(&self, index: &mut Index, before: BTreeMap<String, ImageId>) -> io::Result<()> {
        if self.in_background {
            return self.write_names_unsettled(index).inspect_err(|_| index.names = before);
        }
        self.replace_names(index).inspect_err(|_| {
            index.names = before;
            if let Err(error) = self.replace_names(index) {
                tracing::error!(%error, "the names on disk are not the valid ones; the next change writes them");
            }
        })
    }

    pub(crate) fn add_names(&self, id: &ImageId, names: &[String]) -> Result<bool, RuntimeError> {
        self.change_names(|index| {
            if !index.images.contains_key(id) {
                return false;
            }
            index.names.extend(names.iter().map(|name| (name.clone(), id.clone())));
            true
        })
    }

    pub(crate) fn remove_image(&self, id: &ImageId) -> Result<bool, RuntimeError> {
        self.change_names(|index| {
            index.names.retain(|_, named| named != id);
            index.images.contains_key(id) || index.damaged.contains_key(id)
        })
    }

    /// Removes one tag. With an image's last tag, also removes its digest names. Returns whether the tag existed.
    pub(crate) fn remove_name(&self, name: &str) -> Result<bool, RuntimeError> {
        self.change_names(|index| {
            let Some(id) = index.names.remove(name) else { return false };
            let is_tag = |name: &String| !name.contains('@');
            if !index.names.iter().any(|(name, named)| named == &id && is_tag(name)) {
                index.names.retain(|_, named| named != &id);
            }
            true
        })
    }

    fn change_names(&self, change: impl FnOnce(&mut Index) -> bool) -> Result<bool, RuntimeError> {
        let mut index = self.index();
        // `names.json` is durable, so it must not name unsynced content.
        while index.is_unsettled() {
            drop(index);
            self.sync_background()?;
            index = self.index();
        }
        let before = index.names.clone();
        let answer = change(&mut index);
        if index.names == before {
            return Ok(answer);
        }
        self.check_writable().inspect_err(|_| index.names.clone_from(&before))?;
        let after = index.names.clone();
        if let Err(error) = self.write_names(&mut index, before.clone()) {
            let error = could_not("write", &self.root.join("names.json"))(error);
            let only_removed = after.iter().all(|(name, id)| before.get(name) == Some(id));
            if error.kind() != RuntimeErrorKind::DiskFull || !only_removed {
                return Err(error);
            }
            index.names = after;
            self.remove_without_room(&mut index, error).inspect_err(|_| index.names = before)?;
        }
        failpoint!("names.changed");
        index.remove_unreferenced();
        Ok(answer)
    }

    /// Removes the images without a name when the disk is too full for a new names file. First moves their records
    /// away, durably: an image without a record does not exist, even if the old file names it. The freed space may be
    /// enough for the new names file. If not, the next change of names writes it.
    fn remove_without_room(&self, index: &mut Index, full: RuntimeError) -> Result<(), RuntimeError> {
        let named: BTreeSet<&ImageId> = index.names.values().collect();
        let mut trash = Vec::new();
        for id in index.images.keys().filter(|id| !named.contains(id)) {
            let path = self.fresh_path("trash");
            fs::rename(self.image_folder(id), &path)
                .map_err(|error| storage_error(format!("could not remove the record of image `{id}`"), error))?;
            trash.push(path);
        }
        if trash.is_empty() {
            return Err(full);
        }
        sync_folder(&self.root.join("images"))
            .map_err(|error| storage_error("could not make the removal of an image durable", error))?;
        for path in &trash {
            discard(path);
        }
        if let Err(error) = self.replace_names(index) {
            tracing::warn!(%error, "no space for the store's names yet; the images are removed all the same");
        }
        Ok(())
    }
}

fn not_committed(id: &ImageId, what: &str) -> impl FnOnce(io::Error) -> RuntimeError + use<> {
    let message = format!("could not commit image `{id}`: {what}");
    move |error| storage_error(message, error)
}

#[derive(Default)]
struct Placed {
    layers: Vec<Digest>,
    image: bool,
    trashed: bool,
}
