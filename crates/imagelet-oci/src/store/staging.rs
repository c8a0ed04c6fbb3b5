//! Staging folders below `tmp/`: removed when dropped.

use std::{
    fs,
    path::{Path, PathBuf},
};

use imagelet_core::runtime::RuntimeError;

use super::{Store, could_not, files::durable::remove_tree};
use crate::failpoint::Step;

/// A folder under `tmp/` that is removed on drop.
pub(crate) struct Staging(PathBuf);

impl Staging {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// From here on the caller removes the folder.
    pub(super) fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            discard(&self.0);
        }
    }
}

impl Store {
    pub(crate) fn stage(&self) -> Result<Staging, RuntimeError> {
        self.check_writable()?;
        let folder = self.fresh_path("tmp");
        fs::create_dir(&folder).map_err(could_not("create", &folder))?;
        Step::StageMade.reach();
        Ok(Staging(folder))
    }
}

pub(super) fn discard(path: &Path) {
    let Err(error) = remove_tree(path) else { return };
    // Each sweep retries what is in the trash.
    let trash = path.parent().and_then(Path::parent).zip(path.file_name());
    let moved = trash.is_some_and(|(root, name)| fs::rename(path, root.join("trash").join(name)).is_ok());
    tracing::warn!(path = %path.display(), moved, %error, "could not remove a staging folder; a sweep or the next start does");
}
