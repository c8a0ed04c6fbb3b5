//! Layers for a sink, and spares: whole layers that no sink has taken, kept for the next import.
//!
//! A layer for a sink leaves `tmp/` only to its sink. Its `layer.json` is written last, after the diff-id is verified,
//! and names the boot: a folder with that file is whole for that boot, even after a crash of the process. After a power
//! cut the boot differs, and the folder is removed like all others in `tmp/`. Nothing here is synced; an import syncs
//! all that it used before its image gets a name.
//!
//! A cancelled sink may still be moving a tree. Before a layer becomes a spare, its folder is renamed, so that such a
//! move fails or is over. A sink also sets the metadata of implicit folders from a lower layer: once a sink had a layer
//! with such folders, it cannot be a spare. (A root without an entry is set each time.)

use std::{
    cmp::Reverse,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    image::Digest,
    runtime::{RuntimeError, StagedTree},
};

use super::{
    LayerSizes, StagedBlob, StagedLayer, Store, SyncView,
    commit::discard,
    index::{Spare, load::read_json},
    record::{LayerRecord, read_implicit},
    storage_error,
};

/// A pull is retried within minutes, if at all.
const SPARE_AGE_MAX: Duration = Duration::from_hours(1);
/// Total size of the spares kept, newest first: the disk is shared with the runtime.
const SPARE_BYTES_MAX: u64 = 8 << 30;
/// Number of sink-taken layers that the expansion estimate uses.
const SUNK_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerEnd {
    /// Stays in the store, with a list of its files.
    Store,
    /// Leaves the store for a sink, which needs the tree exactly as the archive has it.
    Sink,
}

/// A layer for a sink. Dropped before the sink takes it, it becomes a spare where possible.
pub(crate) struct SinkLayer {
    store: Arc<Store>,
    spare: Spare,
    implicit: Vec<Vec<u8>>,
    blob: Option<StagedBlob>,
    /// The tree is as it was unpacked.
    is_untouched: bool,
}

impl SinkLayer {
    pub(crate) fn new(store: &Arc<Store>, layer: StagedLayer) -> Result<Self, RuntimeError> {
        let (folder, record, view, blob) = layer.into_parts();
        Self::of(store, Spare { folder, record, view, since: SystemTime::now() }, blob)
    }

    fn of(store: &Arc<Store>, spare: Spare, blob: Option<StagedBlob>) -> Result<Self, RuntimeError> {
        let store = Arc::clone(store);
        let mut layer = Self { store, spare, implicit: Vec::new(), blob, is_untouched: false };
        let Spare { folder, record, .. } = &layer.spare;
        let implicit = read_implicit(folder).map_err(|error| {
            storage_error(format!("could not read the implied directories of layer `{}`", record.diff_id), error)
        })?;
        layer.implicit = implicit.into_iter().collect();
        layer.implicit.sort_unstable();
        layer.is_untouched = true;
        Ok(layer)
    }

    pub(crate) fn has_implicit(&self) -> bool {
        self.implicit.iter().any(|path| !path.is_empty())
    }

    pub(crate) fn view(&self) -> &Arc<SyncView> {
        &self.spare.view
    }

    pub(crate) fn tree(&mut self) -> Result<StagedTree, RuntimeError> {
        if self.has_implicit() {
            self.is_untouched = false;
            let record = self.spare.folder.join("layer.json");
            fs::remove_file(&record)
                .map_err(|error| storage_error(format!("could not remove `{}`", record.display()), error))?;
        }
        Ok(StagedTree {
            folder: self.spare.folder.join("fs"),
            implicit: self.implicit.clone(),
            blob: self.blob.as_ref().map(|blob| blob.path().to_owned()),
        })
    }

    pub(crate) fn taken(mut self, media_type: &str, packed: u64) {
        self.is_untouched = false;
        if let Some(blob) = self.blob.take() {
            blob.discard();
        }
        let sizes = LayerSizes {
            media_type: media_type.to_owned(),
            packed,
            on_disk: self.spare.record.disk_bytes,
            entries: self.spare.record.entries,
        };
        let mut index = self.store.index();
        index.sunk.push_back(sizes);
        if index.sunk.len() > SUNK_MAX {
            index.sunk.pop_front();
        }
    }
}

impl Drop for SinkLayer {
    fn drop(&mut self) {
        // A cancelled sink may still be about to move the tree from the old name.
        let folder = self.store.fresh_path("tmp");
        if let Err(error) = fs::rename(&self.spare.folder, &folder) {
            let path = self.spare.folder.display();
            tracing::warn!(%path, %error, "could not rename a staging folder; a sweep or the next start removes it");
            return;
        }
        // Without a boot id, a record proves nothing after a power cut. A kept blob resumes by itself.
        let is_spare = self.is_untouched && self.store.boot.is_some() && self.blob.is_none();
        if !is_spare || !folder.join("fs").is_dir() {
            return discard(&folder);
        }
        let spare = Spare { folder, ..self.spare.clone() };
        let before = self.store.index().spares.insert(spare.record.diff_id.clone(), spare);
        if let Some(before) = before {
            discard(&before.folder);
        }
    }
}

impl Store {
    pub(crate) fn take_spare(self: &Arc<Self>, diff_id: &Digest) -> Option<SinkLayer> {
        let spare = self.index().spares.remove(diff_id)?;
        let layer = SinkLayer::of(self, spare, None);
        layer.inspect_err(|error| tracing::warn!(error = error.chain(), "a layer is fetched again")).ok()
    }

    /// Moves spares beyond the age and size limits to the trash. Returns their bytes.
    pub(crate) fn trim_spares(&self) -> Result<u64, RuntimeError> {
        self.discard_spares(SPARE_BYTES_MAX)
    }

    pub(crate) fn discard_spares(&self, bytes_max: u64) -> Result<u64, RuntimeError> {
        let mut index = self.index();
        let spares =
            index.spares.iter().map(|(diff_id, spare)| (diff_id.clone(), spare.record.disk_bytes, spare.since));
        let mut freed = 0;
        for diff_id in surplus(spares.collect(), bytes_max, SystemTime::now()) {
            let Some(spare) = index.spares.remove(&diff_id) else { continue };
            self.move_to_trash(&spare.folder)?;
            freed += spare.record.disk_bytes;
        }
        Ok(freed)
    }

    /// At start: whether a folder in `tmp/` is a whole layer for a sink, which then becomes a spare.
    pub(crate) fn find_spare(&self, folder: &Path) -> bool {
        let Some(spare) = self.read_spare(folder) else { return false };
        let mut index = self.index();
        let is_new = !index.spares.contains_key(&spare.record.diff_id);
        if is_new {
            index.spares.insert(spare.record.diff_id.clone(), spare);
        }
        is_new
    }

    fn read_spare(&self, folder: &Path) -> Option<Spare> {
        let path = folder.join("layer.json");
        let record: LayerRecord = read_json(&path).ok()?;
        let is_whole = record.for_sink
            && record.unsettled.is_some()
            && record.unsettled == self.boot
            && folder.join("fs").is_dir()
            && record
                .sums
                .iter()
                .all(|(file, sum)| fs::read(folder.join(file)).is_ok_and(|bytes| Digest::of(&bytes) == *sum));
        let since = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok()?;
        let view = self.views().first().cloned()?;
        is_whole.then(|| Spare { folder: folder.to_owned(), record, view, since })
    }
}

/// The spares to remove: expired ones, and the oldest above the limit. A clock set back expires none.
fn surplus(mut spares: Vec<(Digest, u64, SystemTime)>, bytes_max: u64, now: SystemTime) -> Vec<Digest> {
    spares.sort_by_key(|(.., since)| Reverse(*since));
    let mut kept = 0_u64;
    let is_kept = |(_, bytes, since): &(Digest, u64, SystemTime)| {
        kept = kept.saturating_add(*bytes);
        let is_old = now.duration_since(*since).is_ok_and(|age| age > SPARE_AGE_MAX);
        kept <= bytes_max && !is_old
    };
    let (_, removed): (Vec<_>, Vec<_>) = spares.into_iter().partition(is_kept);
    removed.into_iter().map(|(diff_id, ..)| diff_id).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        manifest::Descriptor,
        store::{Access, Durability, record::checksum},
    };

    fn open(root: &Path) -> Arc<Store> {
        Arc::new(Store::open(root, Access::Write { or_create: true }, Durability::Commit).unwrap())
    }

    fn unpacked(store: &Arc<Store>, name: &str, implicit: &[Vec<u8>]) -> SinkLayer {
        let staging = store.stage().unwrap();
        fs::create_dir(staging.path().join("fs")).unwrap();
        fs::write(staging.path().join("fs/file"), name).unwrap();
        let sum = crate::store::write_implicit(staging.path(), implicit).unwrap();
        let diff_id = Digest::of(name.as_bytes());
        let record = serde_json::json!({
            "diff_id": diff_id, "entries": 1, "disk_bytes": 4096, "for_sink": true,
            "unsettled": store.unsettled_mark(LayerEnd::Sink), "sums": { "implicit.json": sum },
        });
        let blob = Descriptor { media_type: String::new(), digest: diff_id.clone(), size: 1, platform: None };
        let view = store.sync_view().unwrap();
        let layer = StagedLayer::new(staging, &blob, serde_json::from_value(record).unwrap(), view);
        SinkLayer::new(store, layer.unwrap()).unwrap()
    }

    type Spoil = fn(&Path);

    fn staged(root: &Path) -> Vec<PathBuf> {
        fs::read_dir(root.join("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn has(store: &Arc<Store>, name: &str) -> bool {
        store.take_spare(&Digest::of(name.as_bytes())).is_some()
    }

    #[test]
    fn a_whole_layer_is_a_spare_until_the_machine_starts_again_or_a_byte_of_it_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("staging");
        let store = open(&root);
        drop(unpacked(&store, "a", &[b"dir".to_vec()]));
        assert!(has(&store, "a") && has(&store, "a"), "dropped, it is one again");
        drop(store);
        let store = open(&root);
        assert!(has(&store, "a"), "the next process finds it");
        drop(store);
        let path = staged(&root).pop().unwrap();
        let spoils: [Spoil; 4] = [
            |path| fs::write(path.join("implicit.json"), "[]").unwrap(),
            |path| fs::rename(path.join("fs"), path.join("moved")).unwrap(),
            |path| fs::remove_file(path.join("layer.json")).unwrap(),
            |path| {
                let read: LayerRecord = read_json(&path.join("layer.json")).unwrap();
                let earlier = LayerRecord { unsettled: Some("an earlier boot".into()), ..read };
                fs::write(path.join("layer.json"), checksum::seal(&earlier)).unwrap();
            },
        ];
        for (number, spoil) in spoils.into_iter().enumerate() {
            let copied = std::process::Command::new("cp").arg("-a").arg(&path).arg(folder.path().join("copy")).status();
            assert!(copied.unwrap().success());
            spoil(&path);
            let store = open(&root);
            assert!(!has(&store, "a") && staged(&root).is_empty(), "case {number}");
            drop(store);
            fs::rename(folder.path().join("copy"), &path).unwrap();
        }
        assert!(has(&open(&root), "a"), "nothing else was wrong");
    }

    #[test]
    fn a_layer_that_a_sink_may_have_changed_or_moved_is_no_spare() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("staging");
        let store = open(&root);
        let mut flat = unpacked(&store, "flat", &[Vec::new()]);
        let before = flat.tree().unwrap().folder;
        drop(flat);
        assert!(!before.exists(), "a move that comes late finds nothing");
        assert!(has(&store, "flat"));
        let mut moved = store.take_spare(&Digest::of(b"flat")).unwrap();
        fs::rename(moved.tree().unwrap().folder, folder.path().join("sink")).unwrap();
        drop(moved);
        assert!(!has(&store, "flat"));
        let mut changed = unpacked(&store, "deep", &[b"dir".to_vec()]);
        changed.tree().unwrap();
        // As if the process ended here.
        std::mem::forget(changed);
        let store = open_beside(store, &root);
        assert!(!has(&store, "deep") && staged(&root).is_empty());
    }

    /// The next process; the previous store was never closed.
    fn open_beside(store: Arc<Store>, root: &Path) -> Arc<Store> {
        let copy = root.with_extension("copy");
        let copied = std::process::Command::new("cp").arg("-a").arg(root).arg(&copy).status();
        assert!(copied.unwrap().success());
        std::mem::forget(store);
        fs::remove_dir_all(root).unwrap();
        fs::rename(copy, root).unwrap();
        open(root)
    }

    #[test]
    fn spares_are_removed_when_they_are_old_or_many_the_oldest_first() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(100);
        let ago = |minutes| now - Duration::from_mins(minutes);
        let spare = |name: &str, bytes, since| (Digest::of(name.as_bytes()), bytes, since);
        for (spares, bytes_max, removed) in [
            (vec![], 10, vec![]),
            (vec![spare("a", 5, ago(1)), spare("b", 5, ago(2))], 10, vec![]),
            (vec![spare("a", 5, ago(1)), spare("b", 5, ago(2))], 9, vec!["b"]),
            (vec![spare("a", 5, ago(2)), spare("b", 5, ago(1))], 9, vec!["a"]),
            (vec![spare("a", 5, ago(61)), spare("b", 5, ago(60))], 10, vec!["a"]),
            (vec![spare("a", 5, now + Duration::from_hours(1))], 10, vec![]),
            (vec![spare("a", 0, ago(1)), spare("b", 1, ago(1))], 0, vec!["b"]),
        ] {
            let removed: Vec<Digest> = removed.into_iter().map(|name: &str| Digest::of(name.as_bytes())).collect();
            assert_eq!(surplus(spares, bytes_max, now), removed);
        }
    }
}
