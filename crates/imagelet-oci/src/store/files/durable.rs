//! Replaces files and removes trees. A crash at any point is harmless.

use imagelet_core::{durable, failpoint};
use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    durable::replace_file(path, &path.with_extension("new"), "file", bytes)
}

/// A view of a file system. It receives each write error since its opening, once.
///
/// The kernel reports an error only to descriptors that were opened before the error. So a pull opens its view before
/// its first write. After a failed sync, all later syncs of the view fail, because the kernel reports an error once.
pub(crate) struct SyncView {
    root: File,
    failed: AtomicBool,
}

impl SyncView {
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        Ok(Self { root: File::open(root)?, failed: AtomicBool::new(false) })
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.has_failed() {
            return Err(io::Error::other("an earlier sync failed, and what it should have kept is lost"));
        }
        let synced = rustix::fs::syncfs(&self.root).map_err(io::Error::from);
        let synced = synced.and_then(|()| failpoint::synced(None));
        synced.inspect_err(|_| self.failed.store(true, Ordering::Release))
    }

    pub(crate) fn sync_all<'a>(views: impl IntoIterator<Item = &'a Arc<Self>>) -> io::Result<()> {
        let mut done: Vec<&Arc<Self>> = Vec::new();
        for view in views {
            if !done.iter().any(|other| Arc::ptr_eq(other, view)) {
                view.sync()?;
                done.push(view);
            }
        }
        Ok(())
    }
}

pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        other => other,
    }
}
