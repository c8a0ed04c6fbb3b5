//! Compares the names in an artifact's archives, which the manifest does not list. Each name must belong to one blob.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher as _, RandomState},
    io,
    sync::Arc,
};

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, Stage},
    image::{Digest, counted},
};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FileType},
};

use super::Engine;
use crate::{
    layer_folders::open_folder,
    manifest::{BlobLayout, Manifest, printable, unacceptable},
    scarce::patiently,
    store::{StagedLayer, could_not, walk},
    unpack::ARTIFACT_NAMES_MAX,
};

impl Engine {
    /// Rejects an artifact with too many names, or with a name in two blobs. All blobs are staged or in the store.
    pub(super) async fn check_artifact(
        &self,
        manifest: &Manifest,
        staged: &[Arc<StagedLayer>],
    ) -> Result<(), RuntimeError> {
        if manifest.artifact_kind().is_none() {
            return Ok(());
        }
        let files = manifest.artifact_files()?;
        let has_archives = files.iter().any(|file| matches!(file.layout, BlobLayout::Archive { .. }));
        let blobs: BTreeMap<Digest, Digest> =
            files.into_iter().map(|file| (file.key, file.blob.digest.clone())).collect();
        if !has_archives || blobs.len() < 2 {
            return Ok(());
        }
        let staged: HashMap<Digest, Arc<StagedLayer>> =
            staged.iter().map(|layer| (layer.unpacked.record.diff_id.clone(), Arc::clone(layer))).collect();
        let names_max = self.config.limits.entries_max.min(ARTIFACT_NAMES_MAX);
        let alone = Arc::clone(&self.comparing_names).lock_owned().await;
        self.on_disk(move |store| {
            let _alone = alone;
            let blobs: Vec<_> = blobs.iter().collect();
            let open = |tree: usize| {
                let (key, _) = blobs[tree];
                // A pull that shares the layer may move the staged tree into the store at any time.
                let opened = staged.get(key).and_then(|layer| open(&layer.staged_tree()).ok());
                opened.map_or_else(|| open(&store.layer_tree(key)), Ok)
            };
            let fault = fault_of_names(blobs.len(), names_max, open);
            Err(match fault.map_err(could_not("read the layers of", store.root()))? {
                None => return Ok(()),
                Some(NameFault::TooMany) => {
                    refused(format!("the artifact has more than {}", counted(names_max, "name")))
                }
                Some(NameFault::Common { path, trees }) => {
                    let [one, other] = trees.map(|tree| blobs[tree].1);
                    let path = printable(&String::from_utf8_lossy(&path));
                    refused(format!("the artifact has `{path}` in blob `{one}` and in blob `{other}`"))
                }
            })
        })
        .await
    }
}

fn refused(why: String) -> RuntimeError {
    unacceptable(why).with_fault(Fault::new(ErrorClass::Unacceptable, Stage::Unpack))
}

fn open(path: &std::path::Path) -> io::Result<OwnedFd> {
    Ok(patiently(|| open_folder(path))?)
}

#[derive(Debug, PartialEq, Eq)]
enum NameFault {
    TooMany,
    /// Two trees have the path, at least one of them as a file or a link.
    Common {
        path: Vec<u8>,
        trees: [usize; 2],
    },
}

/// Compares the names of trees. Memory has only a hash of each name; names with equal hashes are read again.
fn fault_of_names(
    trees: usize,
    names_max: u64,
    open: impl Fn(usize) -> io::Result<OwnedFd>,
) -> io::Result<Option<NameFault>> {
    // The key is random, so that no artifact can contain names with equal hashes.
    let key = RandomState::new();
    let hash = |path: &[u8]| key.hash_one(path) >> 1;
    // The lowest bit of each hash is 1 if the name is a folder's.
    let mut names: Vec<u64> = Vec::new();
    for tree in 0..trees {
        each_name(open(tree)?, |path, is_folder| names.push(hash(path) << 1 | u64::from(is_folder)))?;
        if names.len() as u64 > names_max {
            return Ok(Some(NameFault::TooMany));
        }
    }
    names.sort_unstable();
    let is_common = |pair: &&[u64]| pair[0] >> 1 == pair[1] >> 1 && pair[0] & 1 == 0;
    for pair in names.windows(2).filter(is_common) {
        let (mut seen, mut common) = (HashMap::new(), None);
        for tree in 0..trees {
            each_name(open(tree)?, |path, is_folder| {
                if hash(path) == pair[0] >> 1 {
                    let (first, are_folders) = *seen.entry(path.to_vec()).or_insert((tree, is_folder));
                    if first != tree && !(is_folder && are_folders) {
                        common.get_or_insert_with(|| NameFault::Common { path: path.to_vec(), trees: [first, tree] });
                    }
                }
            })?;
        }
        if common.is_some() {
            return Ok(common);
        }
    }
    Ok(None)
}

fn each_name(tree: OwnedFd, mut see: impl FnMut(&[u8], bool)) -> io::Result<()> {
    walk(tree, |path, found| {
        let (folder, name) = found?;
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        see(path, is_folder);
        Ok(is_folder)
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn only_a_folder_may_be_in_several_trees() {
        let checked = |trees: &[&[&str]], names_max| {
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
                root
            });
            let made: Vec<_> = made.collect();
            fault_of_names(made.len(), names_max, |tree| open(&made[tree])).unwrap()
        };
        let check = |trees: &[&[&str]]| checked(trees, 100);
        let clash = |path: &str, trees| Some(NameFault::Common { path: path.into(), trees });
        assert_eq!(check(&[]), None);
        assert_eq!(check(&[&["a", "d/b"]]), None);
        assert_eq!(check(&[&["a", "d/e/b"], &["b", "d/e/c"], &["d/b", "e/"], &[]]), None);
        assert_eq!(check(&[&["a"], &["b"], &["c", "b"]]), clash("b", [1, 2]));
        assert_eq!(check(&[&["d/e/b"], &["d/f"], &["d/e/b"]]), clash("d/e/b", [0, 2]));
        assert_eq!(check(&[&["d/"], &["d"]]), clash("d", [0, 1]));
        assert_eq!(check(&[&["d/a"], &["d@"]]), clash("d", [0, 1]));
        assert_eq!(check(&[&["l@"], &["l@"]]), clash("l", [0, 1]));
        assert_eq!(check(&[&["d/"], &["d/"], &["d"]]), clash("d", [0, 2]));
        for (names_max, fault) in [(5, None), (4, Some(NameFault::TooMany))] {
            assert_eq!(checked(&[&["d/a"], &["d/b", "c"]], names_max), fault, "folders count, too");
        }
    }
}
