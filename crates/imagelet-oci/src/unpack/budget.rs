//! The memory, the open directories and the disk that all layers share while they are unpacked.
//!
//! Each layer has its own memory, which is enough for most layers. The rest is shared; one tenant gets at most half of
//! it (or 16 MiB). A layer with shared memory never waits for more, so there is no deadlock: it fails, releases its
//! memory, waits in order of arrival until its tenant's half is free, and starts again with that half. A layer that
//! needs more is rejected. While other layers wait, a layer with a slow registry gives up its memory
//! ([`imagelet_core::hold`]).

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    hold::{GRACE, HoldMeter, HoldPolicy, WAIT_FAIR},
    image::ByteSize,
    lock::locked,
};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};

use crate::{scarce::DescriptorShare, tenant::Tenant};

const LAYERS_MAX: usize = 64;
/// Each layer's own memory without its notes: two blocks between inflater and unpacker, and the manifest's buffer.
const OWN_BLOCKS: u64 = 368 << 10;
/// Bounds of a layer's own memory for notes about paths. The default budget is enough for some thousand folders.
const OWN_NOTES_MIN: u64 = 16 << 10;
const OWN_NOTES_MAX: u64 = 1 << 20;
/// The minimum share of a tenant: the largest header with its parsed form, and a zstd window of 8 MiB (RFC 8878).
const TENANT_MIN: u64 = 16 << 20;
/// The minimum budget: each layer's own memory, and the minimum share of one tenant.
pub const UNPACK_MEMORY_MIN: u64 = 48 << 20;
/// The default budget. Half of its shared memory is enough for a zstd window of 32 MiB.
pub const UNPACK_MEMORY_DEFAULT: u64 = 160 << 20;
/// Shared memory is claimed in steps of this size, so that claims are rare.
const STEP: u64 = 64 << 10;
/// Directories that all layers together keep open. A process with 64 layers then stays below 1024 descriptors.
const DIRECTORIES_MAX: usize = 192;
/// Files that all layers together write with direct I/O at a time. Each takes 2 MiB in addition to the budget.
const DIRECT_WRITERS_MAX: usize = 8;
const CANCEL_POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct UnpackBudget {
    pool: Mutex<Pool>,
    half: u64,
    own_notes: u64,
    directories: Arc<Semaphore>,
    direct_writers: Arc<Semaphore>,
    is_disk_behind: AtomicBool,
}

#[derive(Debug)]
struct Pool {
    free: u64,
    half: u64,
    holders: Vec<(Arc<MemoryOwner>, u64)>,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct MemoryOwner {
    tenant: Arc<Tenant>,
    image: Arc<str>,
    meter: Arc<HoldMeter>,
}

#[derive(Debug)]
struct Waiter {
    owner: Arc<MemoryOwner>,
    bytes: u64,
    since: Instant,
    granted: oneshot::Sender<()>,
}

impl Pool {
    fn fits_tenant(&self, owner: &MemoryOwner, bytes: u64) -> bool {
        let held = self.holders.iter().filter(|(holder, _)| holder.tenant == owner.tenant).map(|(_, held)| held);
        held.sum::<u64>() + bytes <= self.half
    }

    /// Takes free memory for a layer, unless an earlier layer waits for it. Returns whether the layer has got it.
    fn take(&mut self, owner: &Arc<MemoryOwner>, bytes: u64) -> bool {
        let is_first = !self.waiting.iter().any(|waiter| self.fits_tenant(&waiter.owner, waiter.bytes));
        let is_free = is_first && bytes <= self.free && self.fits_tenant(owner, bytes);
        if is_free {
            self.give(owner, bytes);
        }
        is_free
    }

    fn give(&mut self, owner: &Arc<MemoryOwner>, bytes: u64) {
        self.free -= bytes;
        match self.holders.iter_mut().find(|(holder, _)| Arc::ptr_eq(holder, owner)) {
            Some((_, held)) => *held += bytes,
            None => self.holders.push((Arc::clone(owner), bytes)),
        }
    }

    fn leave(&mut self, owner: &Arc<MemoryOwner>) {
        self.waiting.retain(|waiter| !Arc::ptr_eq(&waiter.owner, owner));
        let held = self.holders.extract_if(.., |(holder, _)| Arc::ptr_eq(holder, owner));
        self.free += held.map(|(_, bytes)| bytes).sum::<u64>();
    }

    /// Grants free memory in order of arrival. A tenant that already has its half does not block other tenants.
    fn grant(&mut self) {
        let mut is_blocked = false;
        for waiter in std::mem::take(&mut self.waiting) {
            let fits_tenant = self.fits_tenant(&waiter.owner, waiter.bytes);
            if !is_blocked && fits_tenant && waiter.bytes <= self.free {
                self.give(&waiter.owner, waiter.bytes);
                // This fails if the layer has ended. The end of a layer returns its memory to the pool.
                let _ = waiter.granted.send(());
            } else {
                is_blocked |= fits_tenant;
                self.waiting.push_back(waiter);
            }
        }
    }

    fn lacks(&self, owner: &MemoryOwner) -> Option<&Waiter> {
        let lacks =
            |waiter: &&Waiter| waiter.owner.tenant == owner.tenant || self.fits_tenant(&waiter.owner, waiter.bytes);
        self.waiting.iter().find(lacks)
    }

    fn is_slowest(&self, owner: &Arc<MemoryOwner>, now: Instant) -> bool {
        let due = self.holders.iter().filter(|(holder, _)| holder.meter.held_for(now) >= GRACE);
        due.min_by_key(|(holder, _)| (holder.meter.rate(now), Arc::as_ptr(holder)))
            .is_some_and(|(holder, _)| Arc::ptr_eq(holder, owner))
    }
}

impl UnpackBudget {
    pub(crate) fn new(memory: u64) -> Self {
        let layers = LAYERS_MAX as u64;
        let after_blocks = memory.max(UNPACK_MEMORY_MIN) - layers * OWN_BLOCKS;
        let notes = after_blocks.saturating_sub(2 * TENANT_MIN) / layers;
        let own_notes = notes.clamp(OWN_NOTES_MIN, OWN_NOTES_MAX);
        let free = after_blocks - layers * own_notes;
        Self::sharing(free, own_notes, (free / 2).max(TENANT_MIN.min(free)))
    }

    fn sharing(free: u64, own_notes: u64, half: u64) -> Self {
        Self {
            pool: Mutex::new(Pool { free, half, holders: Vec::new(), waiting: VecDeque::new() }),
            half,
            own_notes,
            directories: Arc::new(Semaphore::new(DescriptorShare::default().of(DIRECTORIES_MAX))),
            direct_writers: Arc::new(Semaphore::new(DIRECT_WRITERS_MAX)),
            is_disk_behind: AtomicBool::new(false),
        }
    }

    pub(crate) fn layer(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        image: &Arc<str>,
        meter: &Arc<HoldMeter>,
    ) -> Arc<LayerMemory> {
        let (tenant, image, meter) = (Arc::clone(tenant), Arc::clone(image), Arc::clone(meter));
        Arc::new(LayerMemory {
            budget: Arc::clone(self),
            owner: Arc::new(MemoryOwner { tenant, image, meter }),
            account: Mutex::default(),
            runtime: Handle::try_current().ok(),
        })
    }

    pub(crate) async fn whole_layer(&self, layer: Arc<LayerMemory>) -> Arc<LayerMemory> {
        self.wait(&layer.owner, self.half).await.expect("a layer stays in the line for as long as it is here");
        locked(&layer.account).held += self.half;
        layer
    }

    /// Permission to open a directory; `None` if all layers together have reached the limit of open directories.
    pub(crate) fn directory(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.directories).try_acquire_owned().ok()
    }

    /// Permission to write a file with direct I/O; `None` if all writers are taken.
    pub(crate) fn direct_writer(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.direct_writers).try_acquire_owned().ok()
    }

    /// Whether the disk writes more slowly than pulls produce data. Layers then start the write-back of their files.
    pub(crate) fn is_disk_behind(&self) -> bool {
        self.is_disk_behind.load(Ordering::Relaxed)
    }

    pub(crate) fn set_disk_behind(&self, is_behind: bool) {
        self.is_disk_behind.store(is_behind, Ordering::Relaxed);
    }

    pub(crate) fn holder(&self) -> Option<String> {
        let pool = locked(&self.pool);
        pool.holders.iter().max_by_key(|(_, held)| *held).map(|(holder, _)| holder.image.to_string())
    }

    fn wait(&self, owner: &Arc<MemoryOwner>, bytes: u64) -> oneshot::Receiver<()> {
        let (granted, wait) = oneshot::channel();
        let waiter = Waiter { owner: Arc::clone(owner), bytes, since: Instant::now(), granted };
        self.change(|pool| pool.waiting.push_back(waiter));
        wait
    }

    fn change(&self, change: impl FnOnce(&mut Pool)) {
        let mut pool = locked(&self.pool);
        change(&mut pool);
        pool.grant();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("other layers hold the memory that unpacking may take")]
    Busy,
    #[error("it needs more memory than one layer may have; the limit is {}, of `store.unpackMemory`", ByteSize(*.0))]
    Limit(u64),
    #[error("the layer was cancelled")]
    Cancelled,
}

/// The memory of one layer. The drop returns the memory and removes the layer from the queue.
#[derive(Debug)]
pub(crate) struct LayerMemory {
    pub(crate) budget: Arc<UnpackBudget>,
    owner: Arc<MemoryOwner>,
    account: Mutex<MemoryAccount>,
    runtime: Option<Handle>,
}

#[derive(Debug, Default)]
struct MemoryAccount {
    used: u64,
    held: u64,
    was_refused: bool,
    is_awaited: bool,
}

impl Drop for LayerMemory {
    fn drop(&mut self) {
        self.budget.change(|pool| pool.leave(&self.owner));
    }
}

impl LayerMemory {
    pub(crate) fn holds_shared(&self) -> bool {
        locked(&self.account).held > 0
    }

    /// Whether the layer gives up memory that another layer waits for. It gives memory up if its registry is slow, or
    /// if it is the slowest layer and the other has waited long.
    pub(crate) fn gives_way(&self, policy: HoldPolicy, network: &HoldMeter, now: Instant) -> bool {
        if !self.holds_shared() {
            return false;
        }
        let pool = locked(&self.budget.pool);
        let Some(waiter) = pool.lacks(&self.owner) else { return false };
        let has_waited = now.saturating_duration_since(waiter.since) >= WAIT_FAIR;
        policy.gives_up(network, now) || (has_waited && pool.is_slowest(&self.owner, now))
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of_its_own(bytes: u64) -> Arc<Self> {
        let budget = Arc::new(UnpackBudget::sharing(bytes, OWN_NOTES_MIN, bytes));
        budget.layer(&Arc::default(), &"image".into(), &Arc::new(HoldMeter::new(Instant::now())))
    }

    pub(crate) fn was_refused(&self) -> bool {
        locked(&self.account).was_refused
    }

    pub(crate) fn is_awaited(&self) -> bool {
        locked(&self.account).is_awaited
    }

    fn take(&self, bytes: u64) -> Result<(), MemoryError> {
        let mut account = locked(&self.account);
        let used = account.used.saturating_add(bytes);
        let limit = self.budget.half + self.budget.own_notes;
        if used > limit {
            return Err(MemoryError::Limit(limit));
        }
        let missing = used.saturating_sub(account.held + self.budget.own_notes);
        if missing > 0 {
            let step = missing.next_multiple_of(STEP).min(self.budget.half - account.held);
            if !locked(&self.budget.pool).take(&self.owner, step) {
                return Err(MemoryError::Busy);
            }
            account.held += step;
        }
        account.used = used;
        Ok(())
    }

    /// Waits for shared memory for `bytes` more bytes. Against deadlock, a layer that has shared memory does not wait.
    fn wait_for(&self, bytes: u64, cancelled: &AtomicBool) -> Result<(), MemoryError> {
        let missing = (locked(&self.account).used + bytes).saturating_sub(self.budget.own_notes);
        let Some(runtime) = self.runtime.as_ref().filter(|_| missing > 0 && !self.holds_shared()) else {
            return Ok(());
        };
        let bytes = missing.next_multiple_of(STEP).min(self.budget.half);
        locked(&self.account).is_awaited = true;
        let is_granted = runtime.block_on(async {
            let mut wait = self.budget.wait(&self.owner, bytes);
            while tokio::time::timeout(CANCEL_POLL, &mut wait).await.is_err() {
                if cancelled.load(Ordering::Relaxed) {
                    return false;
                }
            }
            true
        });
        locked(&self.account).is_awaited = false;
        if !is_granted {
            self.budget.change(|pool| pool.leave(&self.owner));
            return Err(MemoryError::Cancelled);
        }
        locked(&self.account).held += bytes;
        Ok(())
    }
}

/// A part of a layer's memory for one purpose. The drop releases it.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    memory: Arc<LayerMemory>,
    bytes: u64,
}

impl MemoryReservation {
    pub(crate) fn on(memory: &Arc<LayerMemory>) -> Self {
        Self { memory: Arc::clone(memory), bytes: 0 }
    }

    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), MemoryError> {
        let taken = self.take(bytes);
        if taken == Err(MemoryError::Busy) {
            locked(&self.memory.account).was_refused = true;
        }
        taken
    }

    pub(crate) fn grow_if_free(&mut self, bytes: usize) -> bool {
        self.take(bytes).is_ok()
    }

    fn take(&mut self, bytes: usize) -> Result<(), MemoryError> {
        self.memory.take(bytes as u64)?;
        self.bytes += bytes as u64;
        Ok(())
    }

    /// Grows the reservation to `bytes`. Waits only if the layer has no shared memory.
    pub(crate) fn grow_to(&mut self, bytes: u64, cancelled: &AtomicBool) -> Result<(), MemoryError> {
        let more = bytes.saturating_sub(self.bytes);
        self.memory.wait_for(more, cancelled)?;
        self.grow(usize::try_from(more).unwrap_or(usize::MAX))
    }

    pub(crate) fn is_own(&self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        locked(&self.memory.account).used + more <= self.memory.budget.own_notes
    }

    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = self.bytes.min(bytes as u64);
        self.bytes -= bytes;
        locked(&self.memory.account).used -= bytes;
    }

    pub(crate) fn clear(&mut self) {
        if self.bytes > 0 {
            self.shrink(usize::MAX);
        }
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
