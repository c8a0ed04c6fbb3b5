//! For tests: a disk that fails now and then, and a process that ends between two changes of it.

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use crate::durable::Disk;

/// Decides for each change of the disk whether it succeeds. Clones share all state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<FaultState>);

#[derive(Debug, Default)]
struct FaultState {
    /// The change that fails, counted from 1; 0 means no change fails.
    fails_in: AtomicUsize,
    /// The change before which the process ends; 0 means it does not end.
    ends_in: AtomicUsize,
    has_ended: AtomicBool,
    has_failed: AtomicBool,
    effects: AtomicUsize,
    /// The number of changes before each sync.
    syncs: Mutex<Vec<usize>>,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Fails one later change: 1 is the next one; 0 disarms.
    pub(crate) fn fail_in(&self, changes: usize) {
        self.0.has_failed.store(false, Ordering::Relaxed);
        self.0.fails_in.store(changes, Ordering::Relaxed);
    }

    /// Ends the process before a change: no later change reaches the disk; 0 disarms.
    pub(crate) fn end_in(&self, changes: usize) {
        self.0.ends_in.store(changes, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.has_ended.load(Ordering::Relaxed)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.0.has_failed.load(Ordering::Relaxed)
    }

    /// The number of attempted changes.
    pub(crate) fn effects(&self) -> usize {
        self.0.effects.load(Ordering::Relaxed)
    }

    pub(crate) fn syncs(&self) -> Vec<usize> {
        self.0.syncs.lock().unwrap().clone()
    }
}

impl Disk for Faults {
    fn change(&self) -> io::Result<()> {
        let state = &self.0;
        state.effects.fetch_add(1, Ordering::Relaxed);
        if count_down(&state.ends_in) {
            state.has_ended.store(true, Ordering::Relaxed);
        }
        if state.has_ended.load(Ordering::Relaxed) {
            return Err(io::Error::other("the process has ended"));
        }
        if !count_down(&state.fails_in) {
            return Ok(());
        }
        state.has_failed.store(true, Ordering::Relaxed);
        Err(io::ErrorKind::StorageFull.into())
    }

    fn sync(&self, _file: &File) -> io::Result<()> {
        self.0.syncs.lock().unwrap().push(self.effects());
        Ok(())
    }

    fn takes_time(&self) -> bool {
        false
    }
}

fn count_down(counter: &AtomicUsize) -> bool {
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) == Ok(1)
}
