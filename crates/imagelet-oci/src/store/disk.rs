//! Folders made, files replaced and trees removed so that a crash at any point is harmless.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};

use crate::failpoint::Step;

const FOLDERS: [&str; 7] = ["blobs", "images", "ingest", "layers", "mounts", "tmp", "trash"];

/// Makes the root and its folders, for the owner alone.
pub(super) fn create_folders(root: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(root)?;
    Step::OpenFolder.reach();
    for folder in FOLDERS {
        builder.create(root.join(folder))?;
        Step::OpenFolder.reach();
    }
    // Existing folders pass `create` even where nothing can be written.
    if rustix::fs::statvfs(root)?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(io::ErrorKind::ReadOnlyFilesystem.into());
    }
    Ok(())
}

/// Refuses a store whose folders are elsewhere: a rename could not move a layer there, nor a sync make it durable.
///
/// The root itself may be a link; it is followed once, at the start.
pub(super) fn refuse_odd_folders(root: &Path) -> Result<(), RuntimeError> {
    let Ok(device) = fs::metadata(root).map(|metadata| metadata.dev()) else { return Ok(()) };
    for path in FOLDERS.map(|folder| root.join(folder)) {
        let what = match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => "is a link",
            Ok(metadata) if !metadata.is_dir() => "is not a folder",
            Ok(metadata) if metadata.dev() != device => "is on another file system",
            // What is missing is made; what cannot be looked at is told when it is used.
            Ok(_) | Err(_) => continue,
        };
        let message = format!("`{}` {what}, and a store is one tree on one file system", path.display());
        return Err(RuntimeError::new(RuntimeErrorKind::Unavailable, message)
            .with_hint("move the whole store and name its new place with --store DIR, or make the root a link to it"));
    }
    Ok(())
}

/// Whoever may write to the store may put anything into a container.
pub(super) fn refuse_if_others_write(root: &Path) -> Result<(), RuntimeError> {
    let mode = fs::metadata(root)
        .map_err(|error| super::storage_error(format!("could not open the store `{}`", root.display()), error))?
        .mode();
    if mode & 0o022 != 0 {
        return Err(RuntimeError::new(
            RuntimeErrorKind::Unavailable,
            format!("the store `{}` can be written by others (mode {:o})", root.display(), mode & 0o7777),
        )
        .with_hint(format!("chmod go-w {}", root.display())));
    }
    Ok(())
}

/// Replaces a file as a whole: written beside, synced, renamed, folder synced.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let beside = path.with_extension("new");
    let written = File::create(&beside).and_then(|mut file| {
        Step::FileCreated.reach();
        file.write_all(bytes)?;
        Step::FileWritten.reach();
        file.sync_data()?;
        Step::FileSynced.reach();
        Ok(())
    });
    if let Err(error) = written.and_then(|()| fs::rename(&beside, path)) {
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    Step::FileRenamed.reach();
    sync_folder(folder)?;
    Step::FileDurable.reach();
    Ok(())
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A view on a file system that learns of each write error since it was opened, once.
///
/// The kernel tells an error to every descriptor that was open before it, and to no later one: who wants to know that
/// all writes of some work arrived opens the view before the first of them. What failed once stays failed, because the
/// kernel would say yes to whoever asks again (`reliability.md P8`).
#[derive(Debug)]
pub(crate) struct SyncView {
    root: File,
    failed: AtomicBool,
}

impl SyncView {
    /// Looks at the file system of `root` from now on.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        Ok(Self { root: File::open(root)?, failed: AtomicBool::new(false) })
    }

    /// Makes everything durable that was written to the file system.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier sync failed, and what it should have kept is lost"));
        }
        rustix::fs::syncfs(&self.root).map_err(|errno| {
            self.failed.store(true, Ordering::Release);
            errno.into()
        })
    }
}

/// Removes a tree; what is already gone is fine.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        other => other,
    }
}
