//! The disk of an inventory that a model test crashes a million times: the ledger in memory, the leases in their file.

use std::{
    fmt::{self, Write as _},
    fs,
    future::poll_fn,
    hash::{DefaultHasher, Hasher as _},
    sync::{Arc, Mutex},
    task::Poll,
    time::{Duration, SystemTime},
};

use crate::inventory::{
    Inventory, InventoryState,
    ledger::Ledger,
    observation_window::ObservationWindow,
    usage_history::image_usage::{ImageUsage, UseTimes},
};
use crate::{
    durable::{Disk, StateDir},
    image::{ImageId, ImageKey},
    leases::{LEASES, LeaseService},
    ports::RuntimeManager,
};

/// A disk whose changes are done at once: the model's clock has no other threads.
#[derive(Debug)]
struct NoTime;

impl Disk for NoTime {
    fn takes_time(&self) -> bool {
        false
    }
}

/// Where a file costs no write of a disk.
const MEMORY: &str = "/dev/shm";

#[derive(Debug)]
pub(crate) struct ModelDisk {
    ledger: Mutex<(Option<SystemTime>, Ledger)>,
    folder: tempfile::TempDir,
}

impl Default for ModelDisk {
    fn default() -> Self {
        let folder = tempfile::tempdir_in(MEMORY).or_else(|_| tempfile::tempdir()).unwrap();
        Self { ledger: Mutex::default(), folder }
    }
}

impl Inventory {
    /// The inventory of a process that starts after a crash.
    pub(crate) fn from_disk(runtime: RuntimeManager, disk: &ModelDisk, lasts: Duration, now: SystemTime) -> Self {
        let mut inventory = Self::open(runtime, None).unwrap();
        let folder = StateDir::open(disk.folder.path()).unwrap();
        inventory.leases = LeaseService::new(Some(folder), Arc::new(NoTime));
        {
            let mut state = inventory.lock();
            let ledger = disk.ledger.lock().unwrap();
            if ledger.0.is_some() {
                state.restore(ledger.1.clone());
            }
        }
        inventory.leases.start(lasts, now);
        inventory
    }

    /// The inventory of a process that watched images since then, the last pass just before `now`: each image with its
    /// first sight and last use.
    pub(crate) fn watching(
        runtime: RuntimeManager,
        since: SystemTime,
        now: SystemTime,
        images: impl IntoIterator<Item = (ImageKey, SystemTime, Option<SystemTime>)>,
    ) -> Self {
        let remembered = |(key, first_seen, last_used)| {
            (
                key,
                ImageUsage {
                    times: UseTimes { first_seen: Some(first_seen), last_used, ..UseTimes::default() },
                    ..ImageUsage::default()
                },
            )
        };
        let window = ObservationWindow { since: Some(since), last_pass: Some(now), ..ObservationWindow::default() };
        let images = images.into_iter().map(remembered).collect();
        let inventory = Self::open(runtime, None).unwrap();
        inventory.lock().restore(Ledger::new(window, images));
        inventory
    }

    /// Writes the ledger of a pass that ended then.
    pub(crate) fn remember(&self, disk: &ModelDisk, now: SystemTime) {
        let mut kept = disk.ledger.lock().unwrap();
        let mut state = self.lock();
        if state.is_flush_due(kept.0.map(|last| now.duration_since(last).unwrap_or_default())) {
            state.mark_written();
            *kept = (Some(now), Ledger::new(state.watch, state.memory.images.clone()));
        }
    }

    /// Equal for inventories with the same future behaviour for a caller at this mark.
    pub(crate) fn digest(&self, mark: u64) -> u64 {
        let state = self.lock();
        let mut digest = Digest::default();
        let InventoryState { pins, mounts, sandboxes, watch, dirty, .. } = &*state;
        // Writing to a hasher does not fail.
        let _ = write!(digest, "{pins:?}{mounts:?}{sandboxes:?}{watch:?}{:?}", state.memory.requests());
        let _ = write!(digest, "{:?}{dirty}{}", self.leases.lock().digest(mark), state.memory.has_new_users);
        state.memory.images.iter().for_each(|(key, usage)| digest.image(key, usage));
        for entry in state.snapshot.iter().flat_map(|snapshot| &snapshot.entries) {
            let (used, pinned) = (&entry.usage.used_by, &entry.pinned_by);
            let _ = write!(
                digest,
                "{}{used:?}{pinned:?}{:?}{:?}",
                entry.key(),
                entry.leased_until,
                entry.usage.times.released_at
            );
        }
        digest.0.finish()
    }

    /// A digest of the state that affects a caller.
    pub(crate) fn digest_for_caller(&self, mark: u64) -> u64 {
        let mut digest = Digest::default();
        let _ = write!(digest, "{:?}", self.leases.lock().removals(mark));
        digest.0.finish()
    }

    /// A digest of the state that affects a collection or a pass without a snapshot.
    pub(crate) fn digest_for_pass(&self) -> u64 {
        let mut digest = Digest::default();
        let InventoryState { memory, pins, mounts, sandboxes, .. } = &*self.lock();
        let _ = write!(digest, "{:?}{pins:?}{mounts:?}{sandboxes:?}", memory.requests());
        digest.0.finish()
    }

    pub(crate) fn removals_begun(&self) -> u64 {
        self.leases.lock().begun()
    }

    pub(crate) fn is_removing(&self, id: &ImageId) -> bool {
        self.leases.lock().removing.contains(id)
    }
}

/// Deliberate mistakes that the model has to find.
impl Inventory {
    /// As if the last pass had seen no container.
    pub(crate) fn forget_containers(&self) {
        let mut state = self.lock();
        state.snapshot = None;
        state.watch.containers = 0;
        state.memory.images.values_mut().for_each(|usage| usage.has_containers = false);
    }

    /// As if the last pass had seen no user.
    pub(crate) fn forget_users(&self) {
        if let Some(snapshot) = &mut self.lock().snapshot {
            Arc::make_mut(snapshot).entries.iter_mut().for_each(|entry| Arc::make_mut(entry).usage.used_by.clear());
        }
    }

    pub(crate) fn forget_pins(&self) {
        self.lock().pins.clear();
    }
}

impl ModelDisk {
    pub(crate) fn forget_leases(&self) {
        // The file is absent until the first lease.
        let _ = fs::remove_file(self.folder.path().join(LEASES));
    }

    pub(crate) fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        let ledger = self.ledger.lock().unwrap();
        let leases = fs::read(self.folder.path().join(LEASES));
        let _ = write!(digest, "{:?}{:?}{:?}", ledger.0, ledger.1.window, leases.ok());
        ledger.1.images.iter().for_each(|(key, usage)| digest.image(key, usage));
        digest.0.finish()
    }
}

/// Yields to other tasks, as each answer of a disk or a runtime does.
pub(crate) async fn step() {
    let mut was_pending = false;
    poll_fn(|context| {
        if std::mem::replace(&mut was_pending, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[derive(Default)]
struct Digest(DefaultHasher);

impl Digest {
    fn image(&mut self, key: &ImageKey, usage: &ImageUsage) {
        let ImageUsage { times, in_use, has_containers, .. } = usage;
        let UseTimes { first_seen, last_used, released_at, gone, .. } = times;
        let _ = write!(self, "{key}{gone:?}{released_at:?}");
        // Of an absent image nothing else has an effect on the model.
        if gone.is_none() {
            let _ = write!(self, "{first_seen:?}{last_used:?}{in_use}{has_containers}");
        }
    }
}

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
