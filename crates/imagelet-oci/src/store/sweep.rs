//! Sweeps remove the content that no name reaches. A sweep follows only the names; the collection applies the policy.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use imagelet_core::{error::RuntimeError, failpoint, image::Digest};

use super::{
    PartialKey, Store,
    blobs::Partial,
    could_not,
    files::durable::remove_tree,
    index::{Spare, load::digest_named},
    resumption::is_outdated,
};
use crate::overlay::OverlayFolder;

impl Store {
    /// With the index locked, moves the content that neither a name nor a running pull needs to `trash/`, then unlinks
    /// it without the lock. Continues after a failed removal and returns the first error; the next sweep retries.
    pub(crate) fn sweep(&self) -> Result<(), RuntimeError> {
        self.check_writable()?;
        // A pull may have taken the tag of an image. That image is removed only after the pull's image is durable.
        self.sync_background()?;
        let discarded = self.discard_unneeded();
        self.remove_partials(|partial| partial.is_expired(self.resume_for))?;
        self.trim_spares()?;
        let emptied = self.empty_trash();
        discarded.and(emptied)
    }

    /// At start, before any pull: moves the leftovers of interrupted pulls and removals to the trash.
    pub(super) fn discard_leftovers(&self) -> Result<(), RuntimeError> {
        for folder in self.unknown_folders("tmp", |_| false)? {
            if !self.find_spare(&folder) {
                self.move_to_trash(&folder)?;
            }
        }
        self.trim_spares()?;
        self.remove_partials(|partial| partial.is_leftover(self.resume_for, self))?;
        failpoint!("open.tmp");
        self.discard_unneeded()?;
        // A mount has a note. A folder without a note is from an interrupted mount or unmount, or has lost its note.
        let mounts = self.root.join("mounts");
        let noted = |name: &str| {
            let note = Path::new(name).extension().is_some_and(|end| end == "json");
            note || mounts.join(format!("{name}.json")).exists()
        };
        for folder in self.unknown_folders("mounts", noted)? {
            if is_abandoned(&folder) {
                self.move_to_trash(&folder)?;
            }
        }
        failpoint!("open.mounts");
        for unfinished in ["names.new", "names.unsettled.new"].map(|name| self.root.join(name)) {
            if let Err(error) = remove_tree(&unfinished) {
                tracing::warn!(path = %unfinished.display(), %error, "could not remove a file that a crash left");
            }
        }
        Ok(())
    }

    fn discard_unneeded(&self) -> Result<(), RuntimeError> {
        let mut index = self.index();
        for layer in index.unneeded_layers() {
            index.layers.remove(&layer);
            index.marked.remove(&layer);
        }
        for blob in index.unneeded_blobs() {
            index.blobs.remove(&blob);
        }
        let layers: HashSet<&str> = index.layers.keys().chain(index.marked.keys()).map(Digest::hex).collect();
        let mut unknown = self.unknown_folders("layers", |name| layers.contains(name))?;
        let blobs: HashSet<PathBuf> = index.blobs.keys().map(|digest| self.blob_path(digest)).collect();
        for folder in self.unknown_folders("blobs", |_| false)? {
            let files =
                fs::read_dir(&folder).map(|files| files.filter_map(Result::ok).map(|file| file.path()).collect());
            unknown.extend(files.unwrap_or_else(|_| vec![folder]).into_iter().filter(|path| !blobs.contains(path)));
        }
        // An image's id is a digest, whose hex digits are the name of its folder.
        let ids = index.images.keys().chain(index.damaged.keys());
        let images: HashSet<&str> =
            ids.filter_map(|id| id.as_str().split_once(':')).map(|(_, digits)| digits).collect();
        unknown.extend(self.unknown_folders("images", |name| images.contains(name))?);
        let moved: Vec<_> = unknown.iter().map(|path| self.move_to_trash(path)).collect();
        failpoint!("store.discarded");
        moved.into_iter().collect()
    }

    pub(crate) fn try_empty_trash(&self) {
        if let Err(error) = self.empty_trash() {
            tracing::warn!(error = error.chain(), "could not empty the trash; the next sweep tries again");
        }
    }

    pub(crate) fn empty_trash(&self) -> Result<(), RuntimeError> {
        let _alone = self.trash.lock().expect("no thread panics while it holds the lock");
        let mut errors = Vec::new();
        for path in self.unknown_folders("trash", |_| false)? {
            failpoint!("trash.unlink");
            errors.extend(remove_tree(&path).map_err(could_not("remove", &path)).err());
            failpoint!("trash.unlinked");
        }
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    pub(crate) fn unfinished_bytes(&self) -> u64 {
        self.partial_bytes() + self.staged_bytes()
    }

    /// Removes unused unfinished content, the oldest first, until `wanted` bytes are freed. Keeps the blobs with the
    /// keys `kept`, and content younger than `spared`. Returns the freed bytes.
    pub(crate) fn free_unfinished(
        &self,
        wanted: u64,
        kept: &[PartialKey],
        spared: Option<Duration>,
    ) -> Result<u64, RuntimeError> {
        self.check_writable()?;
        let now = SystemTime::now();
        let mut index = self.index();
        let spare = |spare: &Spare| {
            (spare.since, spare.record.disk_bytes, spare.folder.clone(), Some(spare.record.diff_id.clone()))
        };
        let mut unfinished: Vec<_> = index.unused_spares().map(spare).collect();
        let is_kept = |partial: &Partial| kept.iter().any(|key| key.file_name == partial.file_name);
        let partials = self.partials().into_iter().filter(|partial| !partial.is_used(&index) && !is_kept(partial));
        unfinished.extend(partials.map(|partial| (partial.modified, partial.size, partial.path, None)));
        unfinished.retain(|(since, ..)| spared.is_none_or(|age| is_outdated(*since, age, now)));
        unfinished.sort_by_key(|(since, ..)| *since);
        let (mut freed, mut failed) = (0, Ok(()));
        for (_, bytes, path, spare) in unfinished {
            if freed >= wanted {
                break;
            }
            // On a full disk, the rename into the trash may fail. A file is then unlinked directly.
            let is_file = spare.is_none();
            let unlinked =
                |error| if is_file { remove_tree(&path).map_err(could_not("remove", &path)) } else { Err(error) };
            match self.move_to_trash(&path).or_else(unlinked) {
                Ok(()) => {
                    spare.map(|layer| index.unfinished.spares.remove(&layer));
                    freed += bytes;
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        drop(index);
        self.empty_trash()?;
        if freed > 0 { Ok(freed) } else { failed.map(|()| 0) }
    }

    fn unknown_folders(&self, folder: &str, known: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, RuntimeError> {
        let path = self.root.join(folder);
        let entries = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        Ok(entries
            .map_err(could_not("read", &path))?
            .into_iter()
            // Folders with names unknown to this version are not changed.
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| is_ours(folder, name) && !known(name)))
            .map(|entry| entry.path())
            .collect())
    }

    pub(super) fn move_to_trash(&self, path: &Path) -> Result<(), RuntimeError> {
        failpoint!("trash.before");
        match fs::rename(path, self.fresh_path("trash")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(could_not("move to the trash", path)(error)),
            _ => {
                failpoint!("trash.moved");
                Ok(())
            }
        }
    }
}

/// Whether a mount's folder has no overlay. A folder without an upper layer has never had an overlay.
fn is_abandoned(folder: &Path) -> bool {
    let folder = OverlayFolder(folder.to_owned());
    let in_use = if folder.upper().exists() { folder.is_in_use() } else { Ok(false) };
    if let Err(error) = &in_use {
        tracing::warn!(path = %folder.0.display(), %error, "a mount's folder without a note stays");
    }
    matches!(in_use, Ok(false))
}

fn is_ours(folder: &str, name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match folder {
        "tmp" | "trash" => name.split_once('-').is_some_and(|(pid, number)| is_number(pid) && is_number(number)),
        // KEY, KEY.json (the note) or KEY.new (the next note). A key is an image's hex digits and 16 more digits.
        "mounts" => {
            let key = name.strip_suffix(".json").or_else(|| name.strip_suffix(".new")).unwrap_or(name);
            key.len() >= 64 && key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        }
        "layers" | "images" => digest_named(name).is_some(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::store::StoreOptions;

    #[test]
    fn the_oldest_go_first_and_no_more_than_is_wanted() {
        let ago = |minutes| SystemTime::now() - Duration::from_mins(minutes);
        for (wanted, left) in [(0, 3), (1, 2), (5, 2), (6, 1), (9, 0), (u64::MAX, 0)] {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(&folder.path().join("store"), StoreOptions::for_tests()).unwrap();
            let partials = [("young", 7, 1), ("old", 5, 9), ("middle", 3, 5)].map(|(name, bytes, minutes)| {
                let path = store.partial_path(&PartialKey::new(&Digest::of(name.as_bytes()), None));
                fs::write(&path, vec![0; bytes]).unwrap();
                fs::File::open(&path).unwrap().set_modified(ago(minutes)).unwrap();
                path
            });
            store.free_unfinished(wanted, &[], Some(Duration::from_mins(10))).unwrap();
            assert!(partials.iter().all(|path| path.exists()), "all are young");
            store.free_unfinished(wanted, &[], None).unwrap();
            let [young, old, middle] = partials.map(|path| path.exists());
            assert_eq!([young, middle, old], [left > 0, left > 1, left > 2], "{wanted}");
        }
    }
}
