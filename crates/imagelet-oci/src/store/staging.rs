//! Staging folders below `tmp/`: removed when dropped, unless their layer stays as a spare.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use imagelet_core::runtime::RuntimeError;

use super::{Store, files::durable::remove_tree, index::Spare, resumption::Resumption, storage_error};
use crate::failpoint::Step;

/// A folder under `tmp/` that is removed on drop; with a spare, it becomes that one where the pull may resume.
pub(crate) struct Staging {
    folder: PathBuf,
    spare: Option<(Arc<Store>, Spare, Resumption)>,
}

impl Staging {
    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    pub(super) fn of_spare(store: Arc<Store>, spare: Spare, resumption: Resumption) -> Self {
        Self { folder: spare.folder.clone(), spare: Some((store, spare, resumption)) }
    }

    pub(super) fn keep(self) -> PathBuf {
        self.into_parts().0
    }

    pub(super) fn into_parts(mut self) -> (PathBuf, Option<(Spare, Resumption)>) {
        let spare = self.spare.take().map(|(_, spare, resumption)| (spare, resumption));
        (std::mem::take(&mut self.folder), spare)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.folder.as_os_str().is_empty() {
            return;
        }
        match self.spare.take() {
            // After a failed sync the bytes may be lost, and a later view would not learn of it.
            Some((store, spare, resumption)) if resumption.is_allowed() && !spare.view.has_failed() => {
                store.add_spare(spare);
            }
            _ => discard(&self.folder),
        }
    }
}

impl Store {
    pub(crate) fn stage(&self) -> Result<Staging, RuntimeError> {
        self.check_writable()?;
        let folder = self.fresh_path("tmp");
        fs::create_dir(&folder)
            .map_err(|error| storage_error(format!("could not create `{}`", folder.display()), error))?;
        Step::StageMade.reach();
        Ok(Staging { folder, spare: None })
    }
}

pub(super) fn discard(path: &Path) {
    let Err(error) = remove_tree(path) else { return };
    // Each sweep retries what is in the trash.
    let trash = path.parent().and_then(Path::parent).zip(path.file_name());
    let moved = trash.is_some_and(|(root, name)| fs::rename(path, root.join("trash").join(name)).is_ok());
    tracing::warn!(path = %path.display(), moved, %error, "could not remove a staging folder; a sweep or the next start does");
}
