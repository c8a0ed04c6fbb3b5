//! One kind of file: on disk, and some of it in memory in front (`docs/spec/pull.md §8.7`).

pub(super) mod disk;
mod locks;
mod memory;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub(super) use self::disk::Folder;
pub(crate) use self::disk::create_folder;
use self::{locks::ShardedLocks, memory::Memory};
use super::{
    file::{DecodeError, RecordFile, file_name},
    gauges::Filling,
};

/// The files of one folder. A change reaches the disk first; disk and memory change under the key's lock.
#[derive(Debug)]
pub(super) struct CachedDir<T> {
    /// `None`: memory only.
    folder: Option<Folder>,
    locks: ShardedLocks,
    /// Locked for moments, never during disk I/O.
    memory: Mutex<Memory<Arc<T>>>,
}

/// A file exists, or may exist, and cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Content(#[from] DecodeError),
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error("more than memory holds was kept, and there is no disk to look at")]
    Forgotten,
}

#[derive(Debug)]
pub(super) struct Listed<T> {
    pub(super) whole: Vec<Arc<T>>,
    /// One for each unreadable file, and one for an unreadable folder.
    pub(super) failures: Vec<Unreadable>,
}

impl<T: RecordFile> CachedDir<T> {
    /// Reads a folder and rewrites files of an older version.
    pub(super) fn open(folder: Folder, capacity: usize, stripes: i64) -> Self {
        let dir =
            Self { folder: Some(folder), locks: ShardedLocks::new(stripes), memory: Mutex::new(Memory::new(capacity)) };
        for failure in dir.list().failures {
            tracing::warn!(error = %failure, "a pull record is not understood; its image asks for credentials");
        }
        dir
    }

    pub(super) fn in_memory(capacity: usize) -> Self {
        let mut memory = Memory::new(capacity);
        memory.fill(std::iter::empty(), true);
        Self { folder: None, locks: ShardedLocks::new(1), memory: Mutex::new(memory) }
    }

    pub(super) fn is_durable(&self) -> bool {
        self.folder.as_ref().is_some_and(Folder::waits)
    }

    pub(super) fn lock(&self, key: &str) -> MutexGuard<'_, ()> {
        self.locks.one(key)
    }

    pub(super) fn lock_all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.locks.all()
    }

    /// Whether any item matches; reads the disk where memory is incomplete.
    pub(super) fn any(&self, mut wanted: impl FnMut(&T) -> bool) -> bool {
        {
            let memory = self.memory();
            // By value: a full scan says nothing about which items will be used again.
            if memory.is_complete() {
                return memory.values().any(|kept| wanted(kept));
            }
        }
        self.list().whole.iter().any(|kept| wanted(kept))
    }

    pub(super) fn find(&self, key: &str) -> Result<Option<Arc<T>>, Unreadable> {
        {
            let mut memory = self.memory();
            let found = memory.get(key).cloned();
            if found.is_some() || memory.is_complete() {
                return Ok(found);
            }
        }
        let Some(folder) = &self.folder else { return Err(Unreadable::Forgotten) };
        let Some(content) = folder.read(&file_name(key))? else { return Ok(None) };
        let found = T::decode(&content)?.content;
        // A file with another key's content says nothing about this key.
        if found.key() != key {
            return Ok(None);
        }
        let found = Arc::new(found);
        self.memory().insert(key, Arc::clone(&found));
        Ok(Some(found))
    }

    pub(super) fn write(&self, item: T) -> io::Result<()> {
        let item = Arc::new(item);
        if let Some(folder) = &self.folder {
            folder.write(&file_name(item.key()), &item.encode())?;
        }
        self.memory().insert(item.key(), Arc::clone(&item));
        Ok(())
    }

    pub(super) fn remove(&self, key: &str) -> io::Result<()> {
        if let Some(folder) = &self.folder {
            folder.remove(&file_name(key))?;
        }
        self.memory().remove(key);
        Ok(())
    }

    /// Makes the removals until now durable.
    pub(super) fn sync_removals(&self) -> io::Result<()> {
        self.folder.as_ref().map_or(Ok(()), Folder::sync_removals)
    }

    /// Reads all files and fills an incomplete memory. Called without a lock.
    pub(super) fn list(&self) -> Listed<T> {
        let _turn = self.lock_all();
        self.list_locked()
    }

    pub(super) fn list_locked(&self) -> Listed<T> {
        let Some(folder) = &self.folder else {
            let memory = self.memory();
            let failures = if memory.is_complete() { Vec::new() } else { vec![Unreadable::Forgotten] };
            return Listed { whole: memory.values().cloned().collect(), failures };
        };
        let mut listed = Listed { whole: Vec::new(), failures: Vec::new() };
        // A file under another key's name is never looked up, so its content is not used.
        let mut taken: Vec<(Box<str>, Arc<T>)> = Vec::new();
        match folder.read_all() {
            Err(error) => listed.failures.push(error.into()),
            Ok(files) => {
                for (name, content) in files {
                    match content.map_err(Unreadable::from).and_then(|content| Ok(T::decode(&content)?)) {
                        Ok(decoded) => {
                            let item = Arc::new(decoded.content);
                            if decoded.outdated
                                && let Err(error) = folder.write(&name, &item.encode())
                            {
                                tracing::warn!(
                                    file = name, %error,
                                    "a pull record of an older version could not be rewritten"
                                );
                            }
                            if file_name(item.key()) == name {
                                taken.push((Box::from(item.key()), Arc::clone(&item)));
                            }
                            listed.whole.push(item);
                        }
                        Err(error) => listed.failures.push(error),
                    }
                }
            }
        }
        self.memory().fill(taken.into_iter(), listed.failures.is_empty());
        listed
    }

    pub(super) fn count(&self) -> usize {
        self.folder.as_ref().map_or_else(|| self.memory().values().len(), Folder::count)
    }

    pub(super) fn filling(&self) -> Filling {
        let on_disk = self.folder.as_ref().map_or(0, Folder::count);
        Filling { on_disk, memory_percent: self.memory().usage_percent() }
    }

    fn memory(&self) -> MutexGuard<'_, Memory<Arc<T>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
