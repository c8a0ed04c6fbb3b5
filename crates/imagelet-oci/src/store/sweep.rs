//! Sweeps remove the content that no name reaches: collection is policy, a sweep only follows the names.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use imagelet_core::{failpoint, image::Digest, runtime::RuntimeError};

use super::{
    Store,
    blobs::PartialKey,
    could_not,
    files::durable::remove_tree,
    index::{Spare, load::digest_named},
    storage_error,
};
use crate::overlay::OverlayFolder;

enum Unfinished {
    Layer(Digest),
    Blob(PartialKey),
}

/// Something to remove, its bytes and its time.
type Removable = (Unfinished, u64, SystemTime);

impl Store {
    /// Removes layers and image folders that no name and no running pull needs.
    ///
    /// Each is renamed into `trash/` under the index lock, which is quick, and unlinked after it. A failed removal does
    /// not stop the others; the first error is returned, and the next sweep retries.
    pub(crate) fn sweep(&self) -> Result<(), RuntimeError> {
        self.check_writable()?;
        // The image that a tag meant before a pull may be removed only after the pull is durable.
        self.sync_background()?;
        let mut errors = Vec::new();
        {
            let mut index = self.index();
            for layer in index.unneeded_layers() {
                match self.move_to_trash(&self.layer_folder(&layer)) {
                    Ok(()) => index.forget_layer(&layer),
                    Err(error) => errors.push(error),
                }
            }
            failpoint!("sweep.layers");
            for blob in index.unneeded_blobs() {
                match self.move_to_trash(&self.blob_path(&blob)) {
                    Ok(()) => drop(index.blobs.remove(&blob)),
                    Err(error) => errors.push(error),
                }
            }
            let images = index.image_folders();
            for folder in self.unknown_folders("images", |name| images.contains(name))? {
                errors.extend(self.move_to_trash(&folder).err());
            }
            failpoint!("sweep.images");
        }
        self.remove_partials(|partial| partial.is_expired(self.resume_for))?;
        self.trim_spares()?;
        errors.extend(self.empty_trash().err());
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    /// At start, when nothing runs: renames what an interrupted pull or removal left into the trash.
    pub(super) fn discard_leftovers(&self) -> Result<(), RuntimeError> {
        for folder in self.unknown_folders("tmp", |_| false)? {
            if !self.find_spare(&folder) {
                self.move_to_trash(&folder)?;
            }
        }
        self.trim_spares()?;
        self.remove_partials(|partial| partial.is_leftover(self.resume_for))?;
        failpoint!("open.tmp");
        let mut index = self.index();
        for layer in index.unneeded_layers() {
            index.forget_layer(&layer);
        }
        let layers: HashSet<&str> = index.layers.keys().chain(index.marked.keys()).map(Digest::hex).collect();
        self.discard_unknown("layers", |name| layers.contains(name))?;
        failpoint!("open.layers");
        for blob in index.unneeded_blobs() {
            index.blobs.remove(&blob);
        }
        for folder in self.unknown_folders("blobs", |_| false)? {
            self.discard_unknown_blobs(&folder, &index)?;
        }
        let images = index.image_folders();
        self.discard_unknown("images", |name| images.contains(name))?;
        failpoint!("open.images");
        // A live mount has a note; a folder without one was being made or removed, or has lost its note.
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
        Ok(())
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

    fn discard_unknown(&self, folder: &str, known: impl Fn(&str) -> bool) -> Result<(), RuntimeError> {
        self.unknown_folders(folder, known)?.iter().try_for_each(|folder| self.move_to_trash(folder))
    }

    pub(crate) fn unfinished_bytes(&self) -> u64 {
        self.partial_bytes() + self.staged_bytes()
    }

    /// Removes what no running pull uses, the oldest first, until `wanted` bytes are free. Returns the bytes freed.
    pub(crate) fn free_unfinished(&self, wanted: u64) -> Result<u64, RuntimeError> {
        self.check_writable()?;
        let layer =
            |spare: &Spare| (Unfinished::Layer(spare.record.diff_id.clone()), spare.record.disk_bytes, spare.since);
        let mut removable: Vec<Removable> = self.index().unused_spares().map(layer).collect();
        let blobs = self.unused_partials().into_iter();
        removable.extend(blobs.map(|(blob, bytes, since)| (Unfinished::Blob(blob), bytes, since)));
        let mut freed = 0;
        for (what, bytes, _) in oldest(removable, wanted) {
            match what {
                Unfinished::Layer(layer) => self.remove_spare(&layer)?,
                Unfinished::Blob(blob) => self.discard_partial(&blob),
            }
            freed += bytes;
        }
        if freed > 0 {
            self.empty_trash()?;
        }
        Ok(freed)
    }

    fn unknown_folders(&self, folder: &str, known: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, RuntimeError> {
        let path = self.root.join(folder);
        let entries = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        Ok(entries
            .map_err(could_not("read", &path))?
            .into_iter()
            // Names unknown to this version stay untouched.
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| is_ours(folder, name) && !known(name)))
            .map(|entry| entry.path())
            .collect())
    }

    pub(super) fn move_to_trash(&self, path: &Path) -> Result<(), RuntimeError> {
        failpoint!("trash.before");
        match fs::rename(path, self.fresh_path("trash")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(storage_error(format!("could not move `{}` to the trash", path.display()), error))
            }
            _ => {
                failpoint!("trash.moved");
                Ok(())
            }
        }
    }
}

/// Whether no overlay uses a folder of `mounts/` without a note. Without an upper layer none ever did.
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
        // KEY, its note KEY.json, and the next version of that: a key is an image's digits and 16 more
        "mounts" => {
            let key = name.strip_suffix(".json").or_else(|| name.strip_suffix(".new")).unwrap_or(name);
            key.len() >= 64 && key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        }
        "layers" | "images" => digest_named(name).is_some(),
        _ => true,
    }
}

/// The oldest whose sizes add up to `wanted`, or all.
fn oldest(mut removable: Vec<Removable>, wanted: u64) -> Vec<Removable> {
    removable.sort_by_key(|(.., since)| *since);
    let mut freed = 0_u64;
    let is_needed = |(_, bytes, _): &Removable| {
        let is_needed = freed < wanted;
        freed = freed.saturating_add(*bytes);
        is_needed
    };
    removable.into_iter().take_while(is_needed).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_oldest_go_first_and_no_more_than_is_wanted() {
        let ago = |minutes| SystemTime::UNIX_EPOCH + Duration::from_hours(10) - Duration::from_mins(minutes);
        let layer = |name: &str, bytes, minutes| -> Removable {
            (Unfinished::Layer(Digest::of(name.as_bytes())), bytes, ago(minutes))
        };
        for (wanted, removed) in [(0, 0), (1, 1), (5, 1), (6, 2), (9, 3), (u64::MAX, 3)] {
            let all = vec![layer("young", 7, 1), layer("old", 5, 9), layer("middle", 3, 5)];
            let gone = oldest(all, wanted);
            assert_eq!(gone.len(), removed, "{wanted}");
            assert!(gone.iter().map(|(.., since)| *since).eq([ago(9), ago(5), ago(1)].into_iter().take(removed)));
        }
    }
}
