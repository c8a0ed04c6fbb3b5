//! The flush of the inventory's usage history to disk, and the merge of other processes' changes.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::image::ImageId;
use crate::inventory::{
    FLUSH_EVERY, Inventory, InventoryError, InventoryState,
    boot_clock::{AgeClock, Anchor, BootClock, Linux},
    ledger::{Images, Ledger, LedgerFile},
};

/// Rules for the usage history of an inventory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryRules {
    /// Count ages by the boot clock, independent of the wall clock. Without it the callers' times are trusted, for
    /// tests and replays.
    pub is_steady: bool,
    /// An image that comes back is new in all reports, as in the kubelet (`docs/spec/gc.md §5`).
    pub is_forgetful: bool,
}

impl Inventory {
    /// Sets the rules. Must be the first call.
    #[must_use]
    pub fn with_memory(self, rules: MemoryRules) -> Self {
        if rules.is_steady {
            self.with_clock(Box::new(Linux), SystemTime::now());
        }
        self.lock().memory.is_forgetful = rules.is_forgetful;
        self
    }

    pub(in crate::inventory) fn with_clock(&self, clock: Box<dyn BootClock>, wall: SystemTime) {
        let mut state = self.lock();
        state.clock = AgeClock::start(clock, state.anchor.as_ref(), wall);
        let now = state.clock.now(wall);
        state.shift = AgeClock::shift(now, wall);
    }

    /// Whether no ledger had an image: the first start on this node, or a lost ledger.
    pub fn remembers_nothing(&self) -> bool {
        self.lock().memory.images.is_empty()
    }

    /// Records the image of another manager and its age, where this inventory did not know it. Takes effect with the
    /// next pass, unless better data is known.
    pub fn adopt(&self, id: &ImageId, since: Option<SystemTime>) {
        let mut state = self.lock();
        let since = since.map(|since| crate::inventory::moved(since, -state.shift));
        state.memory.adopt(id, since);
    }

    /// Writes the ledger; earlier changes are on disk on return. Does nothing without a state directory or changes.
    ///
    /// # Errors
    /// When the file cannot be written; the next flush tries again.
    pub fn flush(&self) -> Result<(), InventoryError> {
        let (Some(ledger), Some(directory)) = (&self.ledger, &self.directory) else { return Ok(()) };
        flush(ledger, &self.state).map_err(|source| InventoryError::File { path: directory.path().to_owned(), source })
    }

    /// Writes the ledger if the last write is old, or at once where a container came to an image that had none: after a
    /// crash only the ledger knows the containers that a restarting runtime does not list. For a timer, because uses occur
    /// without a pass, too.
    pub async fn flush_if_due(&self) {
        let Some(ledger) = self.ledger.clone() else { return };
        {
            let state = self.lock();
            if !state.is_flush_due(state.flushed_at.map(|flushed| flushed.elapsed())) {
                return;
            }
        }
        let state = Arc::clone(&self.state);
        let written = tokio::task::spawn_blocking(move || flush(&ledger, &state)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(%error, "could not write the inventory's ledger; trying again later");
        }
    }
}

/// The file's lock is taken first, so that states are written in the order they are taken.
fn flush(ledger: &Mutex<LedgerFile>, state: &Mutex<InventoryState>) -> io::Result<()> {
    let mut file = held(ledger);
    if !held(state).dirty {
        return Ok(());
    }
    if file.directory.is_read_only() {
        held(state).mark_written();
        return Ok(());
    }
    let _lock = file.directory.lock()?;
    let others = file.read_changed()?;
    let text = {
        let mut state = held(state);
        if let Some(others) = others {
            state.memory.merge(others);
        }
        state.flushed_at = Some(Instant::now());
        state.mark_written();
        let anchor = state.clock.anchor(SystemTime::now()).or_else(|| state.anchor.clone());
        state.ledger(anchor).encode()
    };
    // What a full disk refuses is tried again after the usual time.
    text.and_then(|text| file.write(&text)).inspect_err(|_| held(state).dirty = true)
}

impl InventoryState {
    /// Whether a ledger that was written so long ago has to be written again now.
    pub(in crate::inventory) fn is_flush_due(&self, age: Option<Duration>) -> bool {
        self.dirty && (self.memory.has_new_users || age.is_none_or(|age| age >= FLUSH_EVERY))
    }

    pub(in crate::inventory) fn mark_written(&mut self) {
        self.dirty = false;
        self.memory.has_new_users = false;
    }

    pub(in crate::inventory) fn ledger(&self, anchor: Option<Anchor>) -> Ledger<&Images> {
        Ledger::new(self.watch, anchor, &self.memory.images)
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves at worst a stale table, which the next pass corrects.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
