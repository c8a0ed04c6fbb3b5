//! Whole staged layers. They move into the store or to a sink, or stay as spares for the next pull.
//!
//! A spare stays in `tmp/`. Its `layer.json` is written when the diff-id is verified. `spare.json`, with the boot id,
//! is written last. A folder with both files is whole for that boot, even after a crash of the process. After a power
//! cut the boot id differs, and a start removes the folder. This module does not sync; the commit or the import does.
//!
//! A cancelled sink may still be moving the tree. So the folder is renamed before the layer becomes a spare: the sink's
//! move then fails, or has ended. A sink also changes the metadata of implicit folders. So after a sink, a layer with
//! implicit folders cannot become a spare. The root is an exception, because its metadata is set each time.

use std::{
    cmp::Reverse,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use imagelet_core::{durable::remove_file, error::RuntimeError, failpoint, image::Digest, ports::PulledLayer};

use super::{
    BlobWriter, Staging, Store, could_not,
    files::durable::SyncView,
    index::{Index, Spare, load::read_json},
    record::{LayerEnd, LayerRecord, SPARE_RECORD, SpareRecord, TREE, checksum, read_implicit},
    resumption::{Resumption, is_outdated},
    staging::discard,
    storage_error,
};
use crate::{manifest::Descriptor, unpack::DiskUsage};

/// Limits for the spare layers of sinks, because they use the runtime's disk and the runtime does not count them. A
/// spare younger than `SINK_AGE_MIN` is kept whatever its size, because a kubelet's retry comes within that time.
const SINK_AGE_MAX: Duration = Duration::from_hours(1);
const SINK_BYTES_MAX: u64 = 8 << 30;
const SINK_AGE_MIN: Duration = Duration::from_mins(15);

/// A whole layer before its commit. The drop of an uncommitted layer removes the layer or keeps it as a spare.
pub(crate) struct StagedLayer {
    store: Arc<Store>,
    pub(crate) unpacked: Spare,
    /// If it is set and allowed, the drop keeps the layer as a spare.
    resumption: Option<Resumption>,
    pub(super) blob: Option<BlobWriter>,
    pub(super) is_placed: AtomicBool,
    /// Whether a sink may be moving the tree.
    is_in_sink: bool,
    is_linked: AtomicBool,
}

impl StagedLayer {
    pub(crate) fn new(
        store: &Arc<Store>,
        staging: Staging,
        blob: &Descriptor,
        (record, tree): (LayerRecord, Option<DiskUsage>),
        view: Arc<SyncView>,
    ) -> Result<Self, RuntimeError> {
        let staging = staging.into_complete().map_err(not_recorded(&record))?;
        let failed = not_recorded(&record);
        let record = if record.end == LayerEnd::Sink { Ok(record) } else { record.measured(staging.path(), tree) };
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
        let (store, is_placed, is_linked) = (Arc::clone(store), AtomicBool::new(false), AtomicBool::new(false));
        Self { store, unpacked, resumption, blob: None, is_placed, is_in_sink: false, is_linked }
    }

    pub(crate) fn staged_tree(&self) -> PathBuf {
        self.unpacked.folder.join(TREE)
    }

    pub(crate) fn with_blob(mut self, blob: Option<BlobWriter>) -> Self {
        self.blob = blob;
        self
    }

    /// From now on, a drop without a commit keeps the layer as a spare that `repository` has sent.
    pub(crate) fn resumable(mut self, repository: &str, resumption: &Resumption) -> Result<Self, RuntimeError> {
        // A spare needs the boot id, from which a later process detects a power cut.
        let Some(boot) = self.store.boot.as_deref().filter(|_| resumption.is_allowed()) else { return Ok(self) };
        let Spare { folder, record, origin, .. } = &mut self.unpacked;
        (origin.boot, origin.repository) = (boot.to_owned(), repository.to_owned());
        fs::write(folder.join(SPARE_RECORD), checksum::seal(origin)).map_err(not_recorded(record))?;
        failpoint!("layer.resumable");
        self.resumption = Some(resumption.clone());
        Ok(self)
    }

    /// The folders that have no entry in the archive, parents first. A sink takes their metadata from a lower layer.
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

    /// The paths of the tree and of the kept blob, for a sink. The sink sets the metadata of the `implicit` folders.
    pub(crate) fn tree(&mut self, implicit: &[Vec<u8>]) -> Result<(PathBuf, Option<PathBuf>), RuntimeError> {
        self.is_in_sink = true;
        let folder = &self.unpacked.folder;
        if has_folders(implicit) {
            self.resumption = None;
            let record = folder.join("layer.json");
            fs::remove_file(&record).map_err(could_not("remove", &record))?;
        }
        Ok((folder.join(TREE), self.blob.as_ref().map(|blob| blob.path.clone())))
    }

    /// Whether the caller may link the layer's files. Only the first may: a file in two trees outlives the removal of
    /// one.
    pub(crate) fn may_link(&self) -> bool {
        !self.is_linked.swap(true, Ordering::Relaxed)
    }

    /// Removes `spare.json`: the sink has all files, so the layer must not become a spare after a crash.
    pub(crate) fn forget_after_crash(&self) -> Result<(), RuntimeError> {
        let record = self.unpacked.folder.join(SPARE_RECORD);
        remove_file(&record).map_err(could_not("remove", &record))
    }

    pub(crate) fn taken(mut self) {
        self.resumption = None;
        if let Some(blob) = self.blob.take() {
            blob.discard();
        }
    }
}

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
        // With a kept blob, a pull resumes from the blob. A failed sync may have lost bytes of the tree.
        let is_allowed = self.resumption.as_ref().is_some_and(Resumption::is_allowed);
        let has_tree = || !self.is_in_sink || folder.join(TREE).is_dir();
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct SpareWanted<'a> {
    pub(crate) diff_id: &'a Digest,
    pub(crate) repository: Option<&'a str>,
    pub(crate) end: LayerEnd,
}

impl SpareWanted<'_> {
    fn accepts(&self, spare: &Spare) -> bool {
        spare.record.end == self.end && self.repository.is_none_or(|repository| repository == spare.origin.repository)
    }
}

impl Store {
    pub(crate) fn has_spare(&self, wanted: &SpareWanted<'_>) -> bool {
        self.index().unfinished.spares.get(wanted.diff_id).is_some_and(|spare| wanted.accepts(spare))
    }

    pub(crate) fn take_spare(
        self: &Arc<Self>,
        wanted: &SpareWanted<'_>,
        resumption: &Resumption,
    ) -> Option<StagedLayer> {
        let mut index = self.index();
        index.unfinished.spares.get(wanted.diff_id).filter(|spare| wanted.accepts(spare))?;
        let spare = index.unfinished.spares.remove(wanted.diff_id)?;
        Some(StagedLayer::of_spare(self, spare, Some(resumption.clone())))
    }

    pub(super) fn add_spare(&self, spare: Spare) {
        let surplus = {
            let mut index = self.index();
            if index.layers.contains_key(&spare.record.diff_id) {
                Some(spare)
            } else {
                index.unfinished.spares.insert(spare.record.diff_id.clone(), spare)
            }
        };
        if let Some(surplus) = surplus {
            discard(&surplus.folder);
        }
    }

    /// Moves the spares beyond the limits of age and size to the trash. Returns whether there were any.
    pub(crate) fn trim_spares(&self) -> Result<bool, RuntimeError> {
        let own = self.discard_spares(LayerEnd::Store, self.resume_for, u64::MAX)?;
        Ok(self.discard_spares(LayerEnd::Sink, self.resume_for.min(SINK_AGE_MAX), SINK_BYTES_MAX)? || own)
    }

    fn discard_spares(&self, end: LayerEnd, age_max: Duration, bytes_max: u64) -> Result<bool, RuntimeError> {
        self.check_writable()?;
        let mut index = self.index();
        let spares = index.unused_spares().filter(|spare| spare.record.end == end);
        let spares = spares.map(|spare| (spare.record.diff_id.clone(), spare.record.disk_bytes, spare.since)).collect();
        let surplus = surplus(spares, age_max, bytes_max, SystemTime::now());
        for diff_id in &surplus {
            if let Some(spare) = index.unfinished.spares.remove(diff_id) {
                self.move_to_trash(&spare.folder)?;
            }
        }
        Ok(!surplus.is_empty())
    }

    pub(crate) fn staged_bytes(&self) -> u64 {
        let Ok(folders) = fs::read_dir(self.root.join("tmp")) else { return 0 };
        let records =
            folders.filter_map(|folder| read_json::<LayerRecord>(&folder.ok()?.path().join("layer.json")).ok());
        records.map(|record| record.disk_bytes).sum()
    }

    /// Makes a folder in `tmp/` a spare if its layer is whole and of this boot.
    pub(crate) fn find_spare(&self, folder: &Path) -> bool {
        let Some(spare) = self.read_spare(folder) else { return false };
        let mut index = self.index();
        let is_new = !index.unfinished.spares.contains_key(&spare.record.diff_id)
            && !index.layers.contains_key(&spare.record.diff_id);
        if is_new {
            index.unfinished.spares.insert(spare.record.diff_id.clone(), spare);
        }
        is_new
    }

    fn read_spare(&self, folder: &Path) -> Option<Spare> {
        let path = folder.join("layer.json");
        let record: LayerRecord = read_json(&path).ok()?;
        let origin: SpareRecord = read_json(&folder.join(SPARE_RECORD)).ok()?;
        let is_whole = self.boot.as_ref() == Some(&origin.boot)
            && record.unsettled == self.unsettled_mark(record.end)
            && record.diff_id == origin.entry.diff_id
            && folder.join(TREE).is_dir()
            && record
                .sums
                .iter()
                .all(|(file, sum)| fs::read(folder.join(file)).is_ok_and(|bytes| Digest::of(&bytes) == *sum));
        let since = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok()?;
        let view = self.views().first().cloned()?;
        is_whole.then(|| Spare { folder: folder.to_owned(), record, view, since, origin })
    }
}

impl Index {
    pub(super) fn unused_spares(&self) -> impl Iterator<Item = &Spare> {
        self.unfinished.spares.values().filter(|spare| !self.unfinished.leases.contains_key(&spare.record.diff_id))
    }
}

fn surplus(
    mut spares: Vec<(Digest, u64, SystemTime)>,
    age_max: Duration,
    bytes_max: u64,
    now: SystemTime,
) -> Vec<Digest> {
    spares.sort_by_key(|(.., since)| Reverse(*since));
    let mut kept = 0_u64;
    let is_kept = |(_, bytes, since): &(Digest, u64, SystemTime)| {
        kept = kept.saturating_add(*bytes);
        let fits = kept <= bytes_max || !is_outdated(*since, SINK_AGE_MIN, now);
        fits && !is_outdated(*since, age_max, now)
    };
    let (_, removed): (Vec<_>, Vec<_>) = spares.into_iter().partition(is_kept);
    removed.into_iter().map(|(diff_id, ..)| diff_id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    fn open(root: &Path) -> Arc<Store> {
        Arc::new(Store::open(root, StoreOptions::for_tests()).unwrap())
    }

    fn unpacked(store: &Arc<Store>, name: &str, implicit: &[Vec<u8>]) -> StagedLayer {
        let staging = store.stage().unwrap();
        fs::create_dir(staging.path().join("fs")).unwrap();
        fs::write(staging.path().join("fs/file"), name).unwrap();
        let sum = crate::store::write_implicit(staging.path(), implicit).unwrap();
        let diff_id = Digest::of(name.as_bytes());
        let record = serde_json::json!({
            "diff_id": diff_id, "entries": 1, "disk_bytes": 4096, "for_sink": true,
            "unsettled": store.unsettled_mark(LayerEnd::Sink), "sums": { "implicit.json": sum },
        });
        let blob = Descriptor::new("", diff_id.clone(), 1);
        let view = store.sync_view().unwrap();
        let layer = StagedLayer::new(store, staging, &blob, (serde_json::from_value(record).unwrap(), None), view);
        layer.unwrap().resumable("registry.example/app", &Resumption::new(true)).unwrap()
    }

    fn tree(layer: &mut StagedLayer) -> PathBuf {
        let implicit = layer.implicit().unwrap();
        layer.tree(&implicit).unwrap().0
    }

    type Spoil = fn(&Path);

    fn staged(root: &Path) -> Vec<PathBuf> {
        fs::read_dir(root.join("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn has(store: &Arc<Store>, name: &str) -> bool {
        taken(store, name).is_some()
    }

    fn taken(store: &Arc<Store>, name: &str) -> Option<StagedLayer> {
        let wanted = SpareWanted { diff_id: &Digest::of(name.as_bytes()), repository: None, end: LayerEnd::Sink };
        store.take_spare(&wanted, &Resumption::new(true))
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
        let before = tree(&mut flat);
        drop(flat);
        assert!(!before.exists(), "a move that comes late finds nothing");
        assert!(has(&store, "flat"));
        let mut moved = taken(&store, "flat").unwrap();
        fs::rename(tree(&mut moved), folder.path().join("sink")).unwrap();
        drop(moved);
        assert!(!has(&store, "flat"));
        let mut changed = unpacked(&store, "deep", &[b"dir".to_vec()]);
        tree(&mut changed);
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
            (vec![spare("a", 5, ago(16)), spare("b", 5, ago(17))], 9, vec!["b"]),
            (vec![spare("a", 5, ago(17)), spare("b", 5, ago(16))], 9, vec!["a"]),
            (vec![spare("a", 5, ago(14)), spare("b", 5, ago(15))], 4, vec![]),
            (vec![spare("a", 5, ago(61)), spare("b", 5, ago(60))], 10, vec!["a"]),
            (vec![spare("a", 5, now + Duration::from_hours(1))], 10, vec![]),
            (vec![spare("a", 5, now + Duration::from_hours(365 * 24))], 10, vec!["a"]),
            (vec![spare("a", 0, ago(16)), spare("b", 1, ago(16))], 0, vec!["b"]),
        ] {
            let removed: Vec<Digest> = removed.into_iter().map(|name: &str| Digest::of(name.as_bytes())).collect();
            assert_eq!(surplus(spares, Duration::from_hours(1), bytes_max, now), removed);
        }
    }
}
