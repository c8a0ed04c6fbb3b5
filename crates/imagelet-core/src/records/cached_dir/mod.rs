//! One kind of file: on disk, and some of it in memory in front (`docs/spec/pull.md §8.7`).

pub(super) mod disk;
#[cfg(test)]
pub(crate) mod faults;
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

/// The files of one folder. What is written or removed is so on disk first; both hold the key's lock.
#[derive(Debug)]
pub(super) struct CachedDir<T> {
    /// `None`: memory is all there is.
    folder: Option<Folder>,
    locks: ShardedLocks,
    /// Held for moments, never over a disk.
    memory: Mutex<Memory<Arc<T>>>,
}

/// A file is there, or may be, and says nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Content(#[from] DecodeError),
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error("more than memory holds was kept, and there is no disk to look at")]
    Forgotten,
}

/// What a folder holds.
#[derive(Debug)]
pub(super) struct Listed<T> {
    pub(super) whole: Vec<Arc<T>>,
    /// One for each file that could not be read, and for a folder that could not.
    pub(super) failures: Vec<Unreadable>,
}

impl<T: RecordFile> CachedDir<T> {
    /// Reads a folder, and rewrites what an older version wrote.
    pub(super) fn open(folder: Folder, capacity: usize, stripes: i64) -> Self {
        let dir =
            Self { folder: Some(folder), locks: ShardedLocks::new(stripes), memory: Mutex::new(Memory::new(capacity)) };
        for failure in dir.list().failures {
            tracing::warn!(error = %failure, "a pull record is not understood; its image asks for credentials");
        }
        dir
    }

    /// One that ends with the process.
    pub(super) fn in_memory(capacity: usize) -> Self {
        let mut memory = Memory::new(capacity);
        memory.fill(std::iter::empty(), true);
        Self { folder: None, locks: ShardedLocks::new(1), memory: Mutex::new(memory) }
    }

    /// Whether changes wait for a disk.
    pub(super) fn is_durable(&self) -> bool {
        self.folder.as_ref().is_some_and(Folder::waits)
    }

    /// Waits until no other call changes what is kept under a key.
    pub(super) fn lock(&self, key: &str) -> MutexGuard<'_, ()> {
        self.locks.one(key)
    }

    /// Waits until no other call changes anything.
    pub(super) fn lock_all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.locks.all()
    }

    /// Whether this holds for any; reads the disk where memory lacks some.
    pub(super) fn any(&self, mut wanted: impl FnMut(&T) -> bool) -> bool {
        {
            let memory = self.memory();
            // Asked by value: looking at all of them says nothing about which will be asked for again.
            if memory.is_complete() {
                return memory.values().any(|kept| wanted(kept));
            }
        }
        self.list().whole.iter().any(|kept| wanted(kept))
    }

    /// Whether nothing is kept, for certain.
    pub(super) fn is_known_empty(&self) -> bool {
        let memory = self.memory();
        memory.is_complete() && memory.values().len() == 0
    }

    /// Finds what is kept under a key; reads the disk where memory does not know.
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
        // A file that is about something else says nothing about this.
        if found.key() != key {
            return Ok(None);
        }
        let found = Arc::new(found);
        self.memory().insert(key, Arc::clone(&found));
        Ok(Some(found))
    }

    /// Keeps something. Durable on return.
    pub(super) fn write(&self, item: T) -> io::Result<()> {
        let item = Arc::new(item);
        if let Some(folder) = &self.folder {
            folder.write(&file_name(item.key()), &item.encode())?;
        }
        self.memory().insert(item.key(), Arc::clone(&item));
        Ok(())
    }

    /// Forgets what is kept under a key. Nothing is success.
    pub(super) fn remove(&self, key: &str) -> io::Result<()> {
        if let Some(folder) = &self.folder {
            folder.remove(&file_name(key))?;
        }
        self.memory().remove(key);
        Ok(())
    }

    /// Reads all files; memory takes them up where it lacked some. Called without a lock.
    pub(super) fn list(&self) -> Listed<T> {
        let _turn = self.lock_all();
        self.list_locked()
    }

    /// The same, called with all locks.
    pub(super) fn list_locked(&self) -> Listed<T> {
        let Some(folder) = &self.folder else {
            let memory = self.memory();
            let failures = if memory.is_complete() { Vec::new() } else { vec![Unreadable::Forgotten] };
            return Listed { whole: memory.values().cloned().collect(), failures };
        };
        let mut listed = Listed { whole: Vec::new(), failures: Vec::new() };
        // A file under another's name is never asked for, and is not taken for what it says it is.
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
