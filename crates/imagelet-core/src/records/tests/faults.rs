//! For tests: a disk that fails now and then, and a process that ends between two changes of it.

use std::{
    cell::RefCell,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

thread_local! {
    static ARMED: RefCell<Faults> = RefCell::default();
}

/// Decides for each disk change whether it succeeds. Clones share all state; the default fails nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Option<Arc<FaultState>>);

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
    /// A disk for the folders that this thread opens while the guard lives.
    pub(crate) fn arm() -> Self {
        let faults = Self(Some(Arc::default()));
        ARMED.with_borrow_mut(|armed| *armed = faults.clone());
        faults
    }

    /// Folders opened from now on use the common disk.
    pub(crate) fn disarm() {
        ARMED.with_borrow_mut(|armed| *armed = Self::default());
    }

    pub(crate) fn of_this_thread() -> Self {
        ARMED.with_borrow(Clone::clone)
    }

    pub(crate) fn are_armed(&self) -> bool {
        self.0.is_some()
    }

    /// Fails one later change: 1 is the next one; 0 disarms.
    pub(crate) fn fail_in(&self, changes: usize) {
        self.state().has_failed.store(false, Ordering::Relaxed);
        self.state().fails_in.store(changes, Ordering::Relaxed);
    }

    /// Ends the process before a change: no later change reaches the disk; 0 disarms.
    pub(crate) fn end_in(&self, changes: usize) {
        self.state().ends_in.store(changes, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.state().has_ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().has_ended.load(Ordering::Relaxed)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state().has_failed.load(Ordering::Relaxed)
    }

    /// The number of attempted changes.
    pub(crate) fn effects(&self) -> usize {
        self.state().effects.load(Ordering::Relaxed)
    }

    pub(crate) fn syncs(&self) -> Vec<usize> {
        self.state().syncs.lock().unwrap().clone()
    }

    pub(crate) fn synced(&self) {
        self.state().syncs.lock().unwrap().push(self.effects());
    }

    pub(crate) fn effect(&self) -> io::Result<()> {
        let Some(state) = &self.0 else { return Ok(()) };
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

    fn state(&self) -> &FaultState {
        self.0.as_ref().expect("armed")
    }
}

fn count_down(counter: &AtomicUsize) -> bool {
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) == Ok(1)
}
