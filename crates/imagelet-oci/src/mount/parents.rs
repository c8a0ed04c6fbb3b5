//! The metadata of directories that a layer has without an entry of their own.
//!
//! A mount's upper layer starts with directories, each with the metadata of the uppermost layer that has an entry for
//! it. The layers themselves stay unchanged and shared.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::Path,
};

use imagelet_core::image::Digest;

use crate::layer_folders::{LayerFolders, copy_folder_metadata, effective_folder, open_folder};
use crate::store::Store;

/// The root of an image without layers, as runtimes make it.
const ROOT_MODE: u32 = 0o755;

/// Creates the directories in `folder`, which exists, for `layers` from the top down.
pub(super) fn build(store: &Store, layers: &[Digest], folder: &Path) -> io::Result<()> {
    let mut below = Vec::new();
    // The root is always the upper layer's own.
    let mut wanted = BTreeSet::from([Vec::new()]);
    for layer in layers {
        let implicit = store.implicit_directories(layer)?;
        for path in &implicit {
            wanted.extend(with_ancestors(path));
        }
        below.push(LayerFolders::open(&store.layer_tree(layer), implicit)?);
    }
    fs::create_dir(folder)?;
    if layers.is_empty() {
        // No layer provides metadata for the root.
        fs::set_permissions(folder, fs::Permissions::from_mode(ROOT_MODE))?;
    }
    let mut made = Vec::new();
    for path in wanted {
        if let Some(source) = effective_folder(&below, &path)? {
            let place = folder.join(OsStr::from_bytes(&path));
            if !path.is_empty() {
                fs::create_dir(&place)?;
            }
            made.push((place, source));
        }
    }
    // Creating a child changes a directory's times, so the innermost come first.
    for (place, source) in made.iter().rev() {
        copy_folder_metadata(source, &open_folder(place)?)?;
    }
    Ok(())
}

fn with_ancestors(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    ends.chain([path.len()]).map(|end| path[..end].to_vec())
}
