//! The flush of the inventory's usage history to disk, and the merge of other processes' changes.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use tokio::time::Instant;

use crate::image::ImageId;
use crate::inventory::{
    FLUSH_EVERY, Inventory, InventoryError, InventoryState,
    boot_clock::{AgeClock, Anchor, BootClock, Linux},
    ledger::{Batch, Writer},
    usage_history::pass_line,
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
        self.lock().memory.is_empty()
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
    /// When the file cannot be written; the next flush writes everything.
    pub fn flush(&self) -> Result<(), InventoryError> {
        let (Some(ledger), Some(directory)) = (&self.ledger, &self.directory) else { return Ok(()) };
        flush(ledger, &self.state).map_err(|source| InventoryError::File { path: directory.path().to_owned(), source })
    }

    /// Writes the ledger if the last write is old. For a timer, because uses occur without a pass, too.
    pub async fn flush_if_due(&self) {
        let Some(ledger) = self.ledger.clone() else { return };
        {
            let state = self.lock();
            if !state.dirty || state.flushed_at.is_some_and(|flushed| flushed.elapsed() < FLUSH_EVERY) {
                return;
            }
        }
        let state = Arc::clone(&self.state);
        let written = tokio::task::spawn_blocking(move || flush(&ledger, &state)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(%error, "could not write the inventory's ledger; trying again with a later pass");
        }
    }
}

/// The writer's lock is taken first, so that batches are written in the order they are taken.
fn flush(ledger: &Mutex<Writer>, state: &Mutex<InventoryState>) -> io::Result<()> {
    let mut writer = held(ledger);
    if !held(state).dirty {
        return Ok(());
    }
    let Some(mut turn) = writer.turn()? else {
        held(state).dirty = false;
        return Ok(());
    };
    let batch = {
        let mut state = held(state);
        if let Some(others) = turn.others.take() {
            state.memory.merge(others);
        }
        state.dirty = false;
        state.flushed_at = Some(Instant::now());
        let wall = SystemTime::now();
        let anchor = state.clock.anchor(wall).or_else(|| state.anchor.clone());
        state.batch(anchor, turn.wants_whole)
    };
    turn.write(&batch).inspect_err(|_| {
        let mut state = held(state);
        state.memory.keep();
        state.dirty = true;
    })
}

impl InventoryState {
    /// The batch for the ledger. It excludes untrusted observations: a process that starts meanwhile begins its own
    /// waiting time.
    pub(in crate::inventory) fn batch(&mut self, anchor: Option<Anchor>, is_whole: bool) -> Batch {
        let mut line = pass_line(self.watch, anchor);
        if self.watch.vanished_at.is_some() {
            line.containers = line.containers.max(1);
        }
        let mut batch = self.memory.batch(line, is_whole);
        for (key, remembered) in &mut batch.images {
            remembered.in_use |= self.released.contains_key(key) && remembered.gone.is_none();
        }
        batch
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves at worst a stale table, which the next pass corrects.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
