//! Brings the inventory's memory to disk, and takes up what others left there.

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

/// How an inventory keeps its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryRules {
    /// Ages count by the machine's boot clock, so that no setting of the wall clock changes them. Without it the times that
    /// callers tell are believed, as tests and replays want.
    pub is_steady: bool,
    /// An image that was gone and comes back is a new one in all that is shown, as the kubelet has it (`docs/spec/gc.md §5`).
    pub is_forgetful: bool,
}

impl Inventory {
    /// The same, keeping its memory by these rules. To be called before anything else.
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

    /// Whether no ledger reported of any image: the first start on this node, or all of it is lost.
    pub fn remembers_nothing(&self) -> bool {
        self.lock().memory.is_empty()
    }

    /// Notes that another manager of this node has an image on record, and since when it was there, where this inventory
    /// did not know it yet. It counts with the next pass, and only where nothing better is known.
    pub fn adopt(&self, id: &ImageId, since: Option<SystemTime>) {
        let mut state = self.lock();
        let since = since.map(|since| crate::inventory::moved(since, -state.shift));
        state.memory.adopt(id, since);
    }

    /// Writes the ledger now; what was noted before is on disk when this returns.
    ///
    /// Nothing to do without a state directory or without changes.
    ///
    /// # Errors
    /// When the file cannot be written; everything is written with the next flush.
    pub fn flush(&self) -> Result<(), InventoryError> {
        let (Some(ledger), Some(directory)) = (&self.ledger, &self.directory) else { return Ok(()) };
        flush(ledger, &self.state).map_err(|source| InventoryError::File { path: directory.path().to_owned(), source })
    }

    /// Writes the ledger when it was not written for a while. For a timer: uses come in without a pass, too.
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

/// The writer's lock is taken first, so that what is taken from the state is written in the order it was taken.
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
    /// What the ledger has to be reported. What is doubted is not reported: a process that begins in the middle of a doubt doubts
    /// from the beginning.
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
    // A panic elsewhere leaves at worst an older table behind, which the next pass corrects.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
