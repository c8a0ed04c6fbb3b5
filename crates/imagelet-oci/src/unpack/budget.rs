//! What all layers that are unpacked at the same time share.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Directories that all layers together keep open to find them again; with what 64 layers hold besides, a process stays
/// below 1024 descriptors.
const DIRECTORIES_MAX: usize = 192;

/// One for the process.
#[derive(Debug)]
pub struct UnpackBudget {
    /// Directories that may be opened and kept.
    directories: AtomicUsize,
}

impl Default for UnpackBudget {
    fn default() -> Self {
        Self { directories: AtomicUsize::new(DIRECTORIES_MAX) }
    }
}

impl UnpackBudget {
    /// The right to keep one more directory open; `None` while all are in use.
    pub(super) fn directory(self: &Arc<Self>) -> Option<DirectoryPermit> {
        let take = |free: usize| free.checked_sub(1);
        self.directories.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(DirectoryPermit(Arc::clone(self)))
    }
}

/// The right to keep a directory open, until it is dropped.
#[derive(Debug)]
pub(super) struct DirectoryPermit(Arc<UnpackBudget>);

impl Drop for DirectoryPermit {
    fn drop(&mut self) {
        self.0.directories.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_kept_open_up_to_the_bound_and_given_back() {
        let budget = Arc::new(UnpackBudget::default());
        let mut held: Vec<DirectoryPermit> = std::iter::from_fn(|| budget.directory()).collect();
        assert_eq!(held.len(), DIRECTORIES_MAX);
        held.pop();
        assert!(budget.directory().is_some());
    }
}
