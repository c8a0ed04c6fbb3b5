//! What of a folder is held in memory: the least recently asked for goes first (`docs/spec/pull.md §8.7`).

use std::collections::HashMap;

/// Some of the files of a folder, or all of them.
#[derive(Debug)]
pub(super) struct Memory<T> {
    kept: HashMap<Box<str>, Slot<T>>,
    capacity: usize,
    /// Counts what was asked for, so that each slot knows when it was the last time.
    clock: u64,
    /// All there is is in here: what is missed does not exist.
    is_complete: bool,
}

#[derive(Debug)]
struct Slot<T> {
    content: T,
    used: u64,
}

impl<T: Clone> Memory<T> {
    /// An empty one. It is complete as long as nothing is in the folder.
    pub(super) fn new(capacity: usize) -> Self {
        Self { kept: HashMap::new(), capacity: capacity.max(1), clock: 0, is_complete: false }
    }

    /// Takes what a folder lists. `is_whole`: the list has everything.
    pub(super) fn fill(&mut self, listed: impl ExactSizeIterator<Item = (Box<str>, T)>, is_whole: bool) {
        if self.is_complete {
            return;
        }
        if is_whole && listed.len() < self.capacity {
            self.kept.clear();
            self.is_complete = true;
        } else if !self.kept.is_empty() {
            return;
        }
        for (key, content) in listed.take(self.capacity) {
            self.clock += 1;
            self.kept.insert(key, Slot { content, used: self.clock });
        }
    }

    /// Finds one, and remembers that it was asked for.
    pub(super) fn get(&mut self, key: &str) -> Option<&T> {
        self.clock += 1;
        let slot = self.kept.get_mut(key)?;
        slot.used = self.clock;
        Some(&slot.content)
    }

    /// Keeps one. Where there is no room, another is forgotten, and memory no longer has everything.
    pub(super) fn insert(&mut self, key: &str, content: T) {
        self.clock += 1;
        let used = self.clock;
        if let Some(slot) = self.kept.get_mut(key) {
            *slot = Slot { content, used };
            return;
        }
        if self.kept.len() >= self.capacity {
            // A look at each of some hundred, beside the write of a file.
            let oldest = self.kept.iter().min_by_key(|(_, slot)| slot.used).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.kept.remove(&oldest);
            }
            self.is_complete = false;
        }
        self.kept.insert(key.into(), Slot { content, used });
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.kept.remove(key);
    }

    pub(super) fn values(&self) -> impl ExactSizeIterator<Item = &T> {
        self.kept.values().map(|slot| &slot.content)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Rounded down.
    pub(super) fn usage_percent(&self) -> usize {
        100 * self.kept.len() / self.capacity
    }
}
