//! Opens folders without following links, and copies the metadata of folders for which a layer has no entry.
//!
//! A layer may have `etc/app/conf` but no entry for `etc/app`. The unpacker then creates a plain folder, and overlayfs
//! would show this folder's mode and owner. The correct metadata is in the next lower layer with an entry for it.

use std::{collections::HashSet, io, path::Path};

use rustix::{
    fd::{AsFd as _, OwnedFd},
    fs::{
        AtFlags, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags, chownat, fchmod, fgetxattr, flistxattr,
        fsetxattr, fstat, futimens, openat,
    },
    io::Errno,
};

pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const XATTR_SIZE_MAX: usize = 64 * 1024;
/// The attributes that overlayfs writes on a directory start with this prefix. They must not be copied.
const OVERLAY_PREFIX: &str = "trusted.overlay.";

/// An unpacked layer whose whiteouts have the form of overlayfs.
#[derive(Debug)]
pub struct LayerFolders {
    tree: OwnedFd,
    implicit: HashSet<Vec<u8>>,
}

impl LayerFolders {
    /// `root`: the root folder of a layer. `implicit`: the paths, below the root, of folders without an entry.
    pub fn open(root: &Path, implicit: HashSet<Vec<u8>>) -> io::Result<Self> {
        Ok(Self { tree: open_folder(root)?, implicit })
    }
}

/// The folder whose metadata applies at `path` in the merged view. `None`: no layer has it. `layers` are topmost first.
pub fn effective_folder(layers: &[LayerFolders], path: &[u8]) -> io::Result<Option<OwnedFd>> {
    let mut fallback = None;
    for layer in layers {
        let (folder, hides_lower) = find(&layer.tree, path)?;
        match folder {
            Some(folder) if !layer.implicit.contains(path) => return Ok(Some(folder)),
            Some(folder) => fallback = fallback.or(Some(folder)),
            None => {}
        }
        if hides_lower {
            break;
        }
    }
    Ok(fallback)
}

/// Finds a folder of one layer without following symlinks. Also returns whether the layer hides lower layers: by a
/// whiteout or a file on the path, or by an opaque directory above the folder. An opaque directory at `path` itself
/// hides no lower metadata.
fn find(tree: &OwnedFd, path: &[u8]) -> io::Result<(Option<OwnedFd>, bool)> {
    let mut here = openat(tree, ".", DIRECTORY, Mode::empty())?;
    let mut is_alone = false;
    for component in path.split(|byte| *byte == b'/').filter(|component| !component.is_empty()) {
        is_alone |= is_opaque(&here)?;
        here = match openat(&here, component, DIRECTORY, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok((None, is_alone)),
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok((None, true)),
            Err(error) => return Err(error.into()),
        };
    }
    Ok((Some(here), is_alone))
}

fn is_opaque(folder: &OwnedFd) -> io::Result<bool> {
    let mut value = [0_u8; 8];
    match fgetxattr(folder, "trusted.overlay.opaque", &mut value) {
        Ok(length) => Ok(value.get(..length) == Some(b"y".as_slice())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub fn copy_folder_metadata(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let stat: Stat = fstat(from)?;
    let (uid, gid) = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
    chownat(to.as_fd(), "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    fchmod(to, Mode::from_raw_mode(stat.st_mode))?;
    let mut names = vec![0_u8; XATTR_SIZE_MAX];
    let length = match flistxattr(from, &mut names) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut value = vec![0_u8; XATTR_SIZE_MAX];
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if !name.starts_with(OVERLAY_PREFIX.as_bytes()) {
            let size = fgetxattr(from, name, &mut value)?;
            fsetxattr(to, name, &value[..size], XattrFlags::empty())?;
        }
    }
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    #[expect(clippy::cast_possible_wrap, reason = "nanoseconds are below 10^9")]
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec as i64),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec as i64),
    };
    Ok(futimens(to, &times)?)
}

pub fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, DIRECTORY, Mode::empty())
}
