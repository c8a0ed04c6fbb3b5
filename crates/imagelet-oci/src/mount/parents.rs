//! The metadata of directories for which a layer has no entry.
//!
//! A mount's upper layer contains these directories, each with the metadata of the uppermost layer that has an entry
//! for the directory. The layers are not changed, so they stay shared.

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

/// Mode of the root of an image without layers; runtimes use the same mode.
const ROOT_MODE: u32 = 0o755;

/// Creates `folder` with all directories for which a layer has no entry. `layers` start with the topmost layer.
pub(super) fn build(store: &Store, layers: &[Digest], folder: &Path) -> io::Result<()> {
    let mut below = Vec::new();
    let mut wanted = BTreeSet::from([Vec::new()]);
    for layer in layers {
        let implicit = store.implicit_directories(layer)?;
        let folders = implicit.iter().flat_map(|path| Path::new(OsStr::from_bytes(path)).ancestors());
        wanted.extend(folders.map(|folder| folder.as_os_str().as_bytes().to_vec()));
        below.push(LayerFolders::open(&store.layer_tree(layer), implicit)?);
    }
    fs::create_dir(folder)?;
    if layers.is_empty() {
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
    // A new child changes its directory's times, so children come before their parents.
    for (place, source) in made.iter().rev() {
        copy_folder_metadata(source, &open_folder(place)?)?;
    }
    Ok(())
}
