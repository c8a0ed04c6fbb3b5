//! The in-memory LRU part of a folder (`docs/spec/pull.md §8.7`).

use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct Memory<T> {
    kept: HashMap<Box<str>, Slot<T>>,
    capacity: usize,
    clock: u64,
    /// Memory has every file of the folder: a key that is missing here does not exist.
    is_complete: bool,
}

#[derive(Debug)]
struct Slot<T> {
    content: T,
    used: u64,
}

impl<T: Clone> Memory<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { kept: HashMap::new(), capacity: capacity.max(1), clock: 0, is_complete: false }
    }

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

    pub(super) fn get(&mut self, key: &str) -> Option<&T> {
        self.clock += 1;
        let slot = self.kept.get_mut(key)?;
        slot.used = self.clock;
        Some(&slot.content)
    }

    /// Adds an item. A full cache evicts another item and is no longer complete.
    pub(super) fn insert(&mut self, key: &str, content: T) {
        self.clock += 1;
        let used = self.clock;
        if let Some(slot) = self.kept.get_mut(key) {
            *slot = Slot { content, used };
            return;
        }
        if self.kept.len() >= self.capacity {
            // A scan of some hundred items costs little compared with the file write.
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

    pub(super) fn usage_percent(&self) -> usize {
        100 * self.kept.len() / self.capacity
    }
}
