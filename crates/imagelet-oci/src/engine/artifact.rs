//! Names of an artifact that its manifest does not tell: those in archives. Each is that of one blob.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    io,
    sync::Arc,
};

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, Stage},
    image::{Digest, counted},
};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
};

use super::Engine;
use crate::{
    manifest::{BlobLayout, Manifest, printable, unacceptable},
    scarce::patiently,
    store::{StagedLayer, could_not},
    unpack::ARTIFACT_NAMES_MAX,
};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Engine {
    /// Refuses an artifact if two of its blobs have a name in common, or if it has too many names. All its blobs are
    /// staged or in the store.
    pub(super) async fn check_artifact(
        &self,
        manifest: &Manifest,
        staged: &[Arc<StagedLayer>],
    ) -> Result<(), RuntimeError> {
        if manifest.artifact_kind().is_none() {
            return Ok(());
        }
        let files = manifest.artifact_files()?;
        if !files.iter().any(|file| matches!(file.layout, BlobLayout::Archive { .. })) {
            return Ok(());
        }
        let blobs: BTreeMap<Digest, Digest> =
            files.into_iter().map(|file| (file.key, file.blob.digest.clone())).collect();
        let staged: HashMap<Digest, Arc<StagedLayer>> =
            staged.iter().map(|layer| (layer.record().diff_id.clone(), Arc::clone(layer))).collect();
        let names_max = self.config.limits.entries_max.min(ARTIFACT_NAMES_MAX);
        self.on_disk(move |store| {
            let (mut trees, mut names) = (Vec::new(), 0_u64);
            for key in blobs.keys() {
                let staged = staged.get(key);
                let record = staged.map(|layer| layer.record().clone()).or_else(|| store.layer(key));
                names = names.saturating_add(record.map_or(0, |record| record.entries));
                let place = store.layer_tree(key);
                // A pull that shares the layer may move it into the store at any time.
                let opened = staged.and_then(|layer| open(&layer.staged_tree()).ok());
                trees.push(opened.map_or_else(|| open(&place), Ok).map_err(could_not("open", &place))?);
            }
            if names > names_max {
                let why = format!("the artifact has {} in its blobs; the limit is {names_max}", counted(names, "name"));
                return Err(refused(why));
            }
            match common_name(&trees).map_err(could_not("read the layers of", store.root()))? {
                None => Ok(()),
                Some((path, pair)) => {
                    let [one, other] = pair.map(|tree| blobs.values().nth(tree).expect("each tree is that of a blob"));
                    let path = printable(&String::from_utf8_lossy(&path));
                    Err(refused(format!("the artifact has `{path}` in blob `{one}` and in blob `{other}`")))
                }
            }
        })
        .await
    }
}

fn refused(why: String) -> RuntimeError {
    unacceptable(why).with_fault(Fault::new(ErrorClass::Unacceptable, Stage::Unpack))
}

fn open(path: &std::path::Path) -> io::Result<OwnedFd> {
    Ok(patiently(|| rustix::fs::open(path, FOLDER, Mode::empty()))?)
}

/// A path that is in two trees and not a folder in both, and these trees. A folder of one tree alone is not read.
fn common_name(trees: &[OwnedFd]) -> io::Result<Option<(Vec<u8>, [usize; 2])>> {
    let mut shared: Vec<(Vec<u8>, Vec<usize>)> = vec![(Vec::new(), (0..trees.len()).collect())];
    while let Some((path, within)) = shared.pop() {
        // By name: whether it is a folder, and the trees that have it.
        let mut names: BTreeMap<Vec<u8>, (bool, Vec<usize>)> = BTreeMap::new();
        for tree in within {
            let here = if path.is_empty() { &b"."[..] } else { &path };
            let folder = patiently(|| rustix::fs::openat(&trees[tree], here, FOLDER, Mode::empty()))?;
            for entry in Dir::read_from(&folder)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                let kind = match entry.file_type() {
                    FileType::Unknown => {
                        let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
                        FileType::from_raw_mode(stat.st_mode)
                    }
                    kind => kind,
                };
                let is_folder = kind == FileType::Directory;
                match names.entry(name.to_vec()) {
                    Entry::Vacant(free) => drop(free.insert((is_folder, vec![tree]))),
                    Entry::Occupied(mut taken) => {
                        let (was_folder, of) = taken.get_mut();
                        if !is_folder || !*was_folder {
                            let pair = [of[0], tree];
                            return Ok(Some((below(&path, name), pair)));
                        }
                        of.push(tree);
                    }
                }
            }
        }
        let common = names.into_iter().filter(|(_, (_, of))| of.len() > 1);
        shared.extend(common.map(|(name, (_, of))| (below(&path, &name), of)));
    }
    Ok(None)
}

fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn only_a_folder_may_be_in_several_trees() {
        let check = |trees: &[&[&str]]| {
            let home = tempfile::tempdir().unwrap();
            let made = trees.iter().enumerate().map(|(number, paths)| {
                let root = home.path().join(number.to_string());
                fs::create_dir(&root).unwrap();
                for path in *paths {
                    let place = root.join(path.trim_end_matches(['/', '@']));
                    fs::create_dir_all(place.parent().unwrap()).unwrap();
                    match path.chars().last() {
                        Some('/') => fs::create_dir_all(&place).unwrap(),
                        Some('@') => symlink("x", &place).unwrap(),
                        _ => fs::write(&place, "").unwrap(),
                    }
                }
                open(&root).unwrap()
            });
            let found = common_name(&made.collect::<Vec<_>>()).unwrap();
            found.map(|(path, trees)| (String::from_utf8(path).unwrap(), trees))
        };
        let clash = |path: &str, trees| Some((path.to_owned(), trees));
        assert_eq!(check(&[]), None);
        assert_eq!(check(&[&["a", "d/b"]]), None);
        assert_eq!(check(&[&["a", "d/e/b"], &["b", "d/e/c"], &["d/b", "e/"], &[]]), None);
        assert_eq!(check(&[&["a"], &["b"], &["c", "b"]]), clash("b", [1, 2]));
        assert_eq!(check(&[&["d/e/b"], &["d/f"], &["d/e/b"]]), clash("d/e/b", [0, 2]));
        assert_eq!(check(&[&["d/"], &["d"]]), clash("d", [0, 1]));
        assert_eq!(check(&[&["d/a"], &["d@"]]), clash("d", [0, 1]));
        assert_eq!(check(&[&["l@"], &["l@"]]), clash("l", [0, 1]));
    }
}
