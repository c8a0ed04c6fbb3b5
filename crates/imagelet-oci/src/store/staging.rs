//! The staging folders of pulls below `tmp/`, those of partial layers in `ingest/`, and the large documents of pulls.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use imagelet_core::{error::RuntimeError, failpoint};

use super::{Store, could_not, files::durable::remove_tree, resumption::Resumption};

/// Maximum bytes of a document in memory. A larger document is in a file, because a pull may last for hours.
const DOCUMENT_IN_MEMORY_MAX: usize = 64 << 10;

/// The names in a partial layer's folder, beside the tree. A folder without a journal is not a partial layer.
pub(super) const JOURNAL: &str = "journal";
pub(super) const CONDITIONS: &str = "resume.json";
pub(super) const PREVIOUS: &str = "previous";

#[derive(Debug)]
pub(super) struct PartialLayerGuard {
    pub(super) store: Arc<Store>,
    pub(super) file_name: String,
    pub(super) resumption: Resumption,
}

impl Drop for PartialLayerGuard {
    fn drop(&mut self) {
        self.store.index().unfinished.written.remove(&self.file_name);
    }
}

/// A folder below `tmp/` that the drop removes, or the folder of a partial layer, which may stay for the next pull.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(super) path: PathBuf,
    pub(super) partial: Option<PartialLayerGuard>,
}

impl Staging {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn into_complete(mut self) -> io::Result<Self> {
        if let Some(partial) = &self.partial {
            for part in [JOURNAL, CONDITIONS, PREVIOUS] {
                remove_tree(&self.path.join(part))?;
            }
            let whole = partial.store.fresh_path("tmp");
            fs::rename(&self.path, &whole)?;
            failpoint!("layer.whole");
            (self.path, self.partial) = (whole, None);
        }
        Ok(self)
    }

    /// Returns the folder's path. The caller, not the drop, then removes the folder.
    pub(super) fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.path)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let is_kept = self.path.as_os_str().is_empty();
        let has_journal = || fs::metadata(self.path.join(JOURNAL)).is_ok_and(|journal| journal.len() > 0);
        let stays = |partial: &PartialLayerGuard| partial.resumption.is_allowed() && has_journal();
        if !is_kept && !self.partial.as_ref().is_some_and(stays) {
            discard(&self.path);
        }
    }
}

impl Store {
    pub(crate) fn stage(&self) -> Result<Staging, RuntimeError> {
        self.check_writable()?;
        let folder = self.fresh_path("tmp");
        fs::create_dir(&folder).map_err(could_not("create", &folder))?;
        failpoint!("stage.made");
        Ok(Staging { path: folder, partial: None })
    }
}

/// The bytes of a document: in memory, or in a file that the drop of the last clone removes.
#[derive(Clone, Debug)]
pub enum DocumentBytes {
    Memory(Bytes),
    Staged(Arc<StagedDocument>),
}

#[derive(Debug)]
pub struct StagedDocument {
    path: PathBuf,
    size: usize,
    _staging: Staging,
}

impl AsRef<Path> for StagedDocument {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl StagedDocument {
    fn new(store: &Store) -> Result<Self, RuntimeError> {
        let staging = store.stage()?;
        Ok(Self { path: staging.path().join("document"), size: 0, _staging: staging })
    }

    /// Opens the file for each write, so that a slow reception keeps no descriptor.
    fn append(&mut self, bytes: &[u8]) -> Result<(), RuntimeError> {
        let file = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        file.and_then(|mut file| file.write_all(bytes)).map_err(could_not("write", &self.path))?;
        self.size += bytes.len();
        Ok(())
    }
}

impl DocumentBytes {
    /// Blocks on the disk. A store that is open only for reading keeps all documents in memory.
    pub(crate) fn of(bytes: Bytes, store: &Store) -> Result<Self, RuntimeError> {
        if bytes.len() <= DOCUMENT_IN_MEMORY_MAX || store.is_read_only() {
            return Ok(Self::Memory(bytes));
        }
        let mut staged = StagedDocument::new(store)?;
        staged.append(&bytes)?;
        Ok(Self::Staged(Arc::new(staged)))
    }

    #[expect(clippy::len_without_is_empty, reason = "no document is empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::Staged(staged) => staged.size,
        }
    }

    pub(crate) fn in_memory(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::Staged(_) => 0,
        }
    }

    /// Blocks on the disk.
    pub(crate) fn read(&self) -> Result<Bytes, RuntimeError> {
        match self {
            Self::Memory(bytes) => Ok(bytes.clone()),
            Self::Staged(staged) => fs::read(&staged.path).map(Bytes::from).map_err(could_not("read", &staged.path)),
        }
    }

    pub(super) fn write_to(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => fs::write(path, bytes),
            Self::Staged(staged) => io::copy(&mut File::open(&staged.path)?, &mut File::create(path)?).map(drop),
        }
    }
}

#[derive(Debug)]
pub(crate) struct DocumentWriter {
    store: Option<Arc<Store>>,
    memory: BytesMut,
    staged: Option<StagedDocument>,
}

impl DocumentWriter {
    pub(crate) fn new(store: Option<Arc<Store>>) -> Self {
        Self { store, memory: BytesMut::new(), staged: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len() + self.staged.as_ref().map_or(0, |staged| staged.size)
    }

    pub(crate) async fn push(&mut self, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.memory.extend_from_slice(bytes);
        if self.memory.len() > DOCUMENT_IN_MEMORY_MAX { self.write().await } else { Ok(()) }
    }

    pub(crate) async fn finish(mut self) -> Result<DocumentBytes, RuntimeError> {
        if self.staged.is_some() {
            self.write().await?;
        }
        Ok(match self.staged {
            Some(staged) => DocumentBytes::Staged(Arc::new(staged)),
            None => DocumentBytes::Memory(self.memory.freeze()),
        })
    }

    async fn write(&mut self) -> Result<(), RuntimeError> {
        let Some(store) = self.store.clone() else { return Ok(()) };
        let (bytes, staged) = (std::mem::take(&mut self.memory), self.staged.take());
        let written = tokio::task::spawn_blocking(move || {
            let mut staged = staged.map_or_else(|| StagedDocument::new(&store), Ok)?;
            staged.append(&bytes).map(|()| staged)
        });
        let written = written.await;
        self.staged = Some(written??);
        Ok(())
    }
}

pub(super) fn discard(path: &Path) {
    let Err(error) = remove_tree(path) else { return };
    // The folder moves to the trash, which each sweep tries to empty.
    let trash = path.parent().and_then(Path::parent).zip(path.file_name());
    let moved = trash.is_some_and(|(root, name)| fs::rename(path, root.join("trash").join(name)).is_ok());
    tracing::warn!(path = %path.display(), moved, %error, "could not remove a staging folder; a sweep or the next start does");
}
