//! The memory and the open directories that concurrently unpacked layers share.
//!
//! Each layer has memory of its own, enough for most layers; the rest comes from shared memory, of which one tenant has
//! at most half. A layer that holds shared memory never waits for more: it fails, waits without memory until its
//! tenant's half is free, in order of arrival, and starts again with that. So there is no deadlock. A layer that needs
//! more than a half is rejected. A layer that others wait for gives its memory up where its registry is slow
//! ([`imagelet_core::hold`]).

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use imagelet_core::hold::{GRACE, HoldMeter, HoldPolicy, WAIT_FAIR};
use imagelet_core::image::ByteSize;
use tokio::{
    runtime::Handle,
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::{scarce::DescriptorShare, tenant::Tenant};

pub(crate) const LAYERS_MAX: usize = 64;
/// Each layer's own memory beside its notes: two blocks between inflater and unpacker, the manifest's buffer.
const OWN_BLOCKS: u64 = 368 << 10;
/// Each layer's own memory for notes: by default those of some thousand folders, less with a small budget.
const OWN_NOTES_MIN: u64 = 16 << 10;
const OWN_NOTES_MAX: u64 = 1 << 20;
/// What one tenant can have at least: the largest header with its parsed form, and the window that every zstd decoder
/// must support.
const TENANT_MIN: u64 = 16 << 20;
/// The least budget: each layer's own memory, and as much as one tenant can have.
pub const UNPACK_MEMORY_MIN: u64 = 48 << 20;
/// The default budget: the half of a tenant holds a window of 32 MiB.
pub const UNPACK_MEMORY_DEFAULT: u64 = 160 << 20;
/// Shared memory is claimed in steps, to keep counting cheap.
const STEP: u64 = 64 << 10;
/// Directories that all layers together keep open as a cache; with the other files of 64 layers a process stays below
/// 1024 descriptors.
const DIRECTORIES_MAX: usize = 192;
/// The delay until a layer that waits for memory notices its cancellation.
const CANCEL_POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct UnpackBudget {
    pool: Mutex<Pool>,
    granted: Notify,
    /// The most of one tenant.
    half: u64,
    own_notes: u64,
    directories: Arc<Semaphore>,
}

/// Shared memory, and the layers that wait for some.
#[derive(Debug, Default)]
struct Pool {
    free: u64,
    half: u64,
    held: Vec<(Arc<Tenant>, u64)>,
    held_for: BTreeMap<Arc<str>, u64>,
    /// The layers that hold some, with what their registries bring.
    holders: Vec<(u64, Arc<HoldMeter>)>,
    /// In order of arrival.
    waiting: VecDeque<Waiter>,
    granted: HashSet<u64>,
    next: u64,
}

#[derive(Clone, Debug)]
struct Waiter {
    ticket: u64,
    tenant: Arc<Tenant>,
    image: Arc<str>,
    bytes: u64,
    since: Instant,
}

impl Pool {
    fn fits_tenant(&self, tenant: &Tenant, bytes: u64) -> bool {
        let held = self.held.iter().find(|(holder, _)| **holder == *tenant).map_or(0, |(_, held)| *held);
        held + bytes <= self.half
    }

    /// Takes free memory, unless an earlier layer waits for it.
    fn take(&mut self, tenant: &Arc<Tenant>, image: &Arc<str>, bytes: u64) -> bool {
        let is_first = !self.waiting.iter().any(|waiter| self.fits_tenant(&waiter.tenant, waiter.bytes));
        let is_free = is_first && bytes <= self.free && self.fits_tenant(tenant, bytes);
        if is_free {
            self.give(tenant, image, bytes);
        }
        is_free
    }

    fn give(&mut self, tenant: &Arc<Tenant>, image: &Arc<str>, bytes: u64) {
        self.free -= bytes;
        *self.held_for.entry(Arc::clone(image)).or_default() += bytes;
        match self.held.iter_mut().find(|(holder, _)| holder == tenant) {
            Some((_, held)) => *held += bytes,
            None => self.held.push((Arc::clone(tenant), bytes)),
        }
    }

    fn put_back(&mut self, tenant: &Arc<Tenant>, image: &Arc<str>, bytes: u64) {
        self.free += bytes;
        self.held_for.entry(Arc::clone(image)).and_modify(|held| *held -= bytes);
        self.held_for.retain(|_, held| *held > 0);
        for (_, held) in self.held.iter_mut().filter(|(holder, _)| holder == tenant) {
            *held -= bytes;
        }
        self.held.retain(|(_, held)| *held > 0);
    }

    /// Grants what is free in order of arrival. A tenant that has its half keeps no other waiting.
    fn grant(&mut self) -> bool {
        let mut has_granted = false;
        let waiting = std::mem::take(&mut self.waiting);
        let mut is_blocked = false;
        for waiter in waiting {
            let fits_tenant = self.fits_tenant(&waiter.tenant, waiter.bytes);
            if !is_blocked && fits_tenant && waiter.bytes <= self.free {
                self.give(&waiter.tenant, &waiter.image, waiter.bytes);
                has_granted |= self.granted.insert(waiter.ticket);
            } else {
                is_blocked |= fits_tenant;
                self.waiting.push_back(waiter);
            }
        }
        has_granted
    }

    /// The first waiting layer that lacks memory of this tenant.
    fn lacks(&self, tenant: &Tenant) -> Option<&Waiter> {
        let lacks = |waiter: &&Waiter| *waiter.tenant == *tenant || self.fits_tenant(&waiter.tenant, waiter.bytes);
        self.waiting.iter().find(lacks)
    }

    /// Whether no other holder, of those that had the time to be fast, is slower.
    fn is_slowest(&self, own: u64, now: Instant) -> bool {
        let due = self.holders.iter().filter(|(_, meter)| meter.held_for(now) >= GRACE);
        due.min_by_key(|(number, meter)| (meter.rate(now), *number)).is_some_and(|(number, _)| *number == own)
    }
}

/// A place in the line for memory; dropped, what it was granted is free again.
#[derive(Debug)]
struct Wait<'a> {
    budget: &'a UnpackBudget,
    waiter: Waiter,
    is_taken: bool,
}

impl Wait<'_> {
    async fn granted(&mut self) {
        loop {
            // Made before the check: it sees every later notification.
            let granted = self.budget.granted.notified();
            if self.budget.lock().granted.remove(&self.waiter.ticket) {
                self.is_taken = true;
                return;
            }
            granted.await;
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        let Waiter { ticket, tenant, image, bytes, .. } = &self.waiter;
        self.budget.change(|pool| {
            pool.waiting.retain(|waiter| waiter.ticket != *ticket);
            if pool.granted.remove(ticket) {
                pool.put_back(tenant, image, *bytes);
            }
        });
    }
}

impl UnpackBudget {
    pub(crate) fn new(memory: u64) -> Self {
        let layers = LAYERS_MAX as u64;
        let after_blocks = memory.max(UNPACK_MEMORY_MIN) - layers * OWN_BLOCKS;
        let notes = after_blocks.saturating_sub(2 * TENANT_MIN) / layers;
        let own_notes = notes.clamp(OWN_NOTES_MIN, OWN_NOTES_MAX);
        Self::sharing(after_blocks - layers * own_notes, own_notes)
    }

    fn sharing(free: u64, own_notes: u64) -> Self {
        let half = (free / 2).max(TENANT_MIN.min(free));
        Self {
            pool: Mutex::new(Pool { free, half, ..Pool::default() }),
            granted: Notify::new(),
            half,
            own_notes,
            directories: Arc::new(Semaphore::new(DescriptorShare::default().of(DIRECTORIES_MAX))),
        }
    }

    pub(crate) fn layer(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        image: &Arc<str>,
        meter: &Arc<HoldMeter>,
    ) -> Arc<LayerMemory> {
        let mut pool = self.lock();
        pool.next += 1;
        Arc::new(LayerMemory {
            budget: Arc::clone(self),
            number: pool.next,
            meter: Arc::clone(meter),
            tenant: Arc::clone(tenant),
            image: Arc::clone(image),
            account: Mutex::default(),
            runtime: Handle::try_current().ok(),
        })
    }

    /// A whole half for a layer that failed for lack of memory, once it is free.
    pub(crate) async fn whole_layer(&self, layer: Arc<LayerMemory>) -> Arc<LayerMemory> {
        self.wait(&layer.tenant, &layer.image, self.half).granted().await;
        layer.hold(&mut layer.account(), self.half);
        layer
    }

    /// `None` while as many directories as permitted are open.
    pub(crate) fn directory(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.directories).try_acquire_owned().ok()
    }

    /// The image that holds most.
    pub(crate) fn holder(&self) -> Option<String> {
        let pool = self.lock();
        pool.held_for.iter().max_by_key(|(_, held)| **held).map(|(image, _)| image.to_string())
    }

    fn wait(&self, tenant: &Arc<Tenant>, image: &Arc<str>, bytes: u64) -> Wait<'_> {
        let (tenant, image) = (Arc::clone(tenant), Arc::clone(image));
        let waiter = self.change(|pool| {
            let waiter = Waiter { ticket: pool.next, tenant, image, bytes, since: Instant::now() };
            pool.next += 1;
            pool.waiting.push_back(waiter.clone());
            waiter
        });
        Wait { budget: self, waiter, is_taken: false }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the pool, and grants what is free then.
    fn change<T>(&self, change: impl FnOnce(&mut Pool) -> T) -> T {
        let mut pool = self.lock();
        let changed = change(&mut pool);
        let has_granted = pool.grant();
        drop(pool);
        if has_granted {
            self.granted.notify_waiters();
        }
        changed
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

#[derive(Debug)]
pub(crate) struct LayerMemory {
    pub(crate) budget: Arc<UnpackBudget>,
    number: u64,
    tenant: Arc<Tenant>,
    image: Arc<str>,
    /// What the layer's registry brings.
    meter: Arc<HoldMeter>,
    account: Mutex<Account>,
    runtime: Option<Handle>,
}

#[derive(Debug, Default)]
struct Account {
    used: u64,
    /// Shared memory.
    held: u64,
    was_refused: bool,
    is_awaited: bool,
}

impl Drop for LayerMemory {
    fn drop(&mut self) {
        let held = self.account().held;
        if held > 0 {
            self.budget.change(|pool| {
                pool.holders.retain(|(number, _)| *number != self.number);
                pool.put_back(&self.tenant, &self.image, held);
            });
        }
    }
}

impl LayerMemory {
    pub(crate) fn holds_shared(&self) -> bool {
        self.account().held > 0
    }

    /// Whether the layer holds memory that another layer waits for.
    pub(crate) fn is_wanted(&self) -> bool {
        self.holds_shared() && self.budget.lock().lacks(&self.tenant).is_some()
    }

    /// Whether the layer gives up the memory that another one waits for: its registry is slow, or it is the slowest
    /// holder and the other one has waited for long.
    pub(crate) fn gives_way(&self, policy: HoldPolicy, network: &HoldMeter, now: Instant) -> bool {
        if !self.holds_shared() {
            return false;
        }
        let pool = self.budget.lock();
        let Some(waiter) = pool.lacks(&self.tenant) else { return false };
        let has_waited = now.saturating_duration_since(waiter.since) >= WAIT_FAIR;
        policy.gives_up(network, now) || (has_waited && pool.is_slowest(self.number, now))
    }

    fn hold(&self, account: &mut Account, bytes: u64) {
        if account.held == 0 {
            self.budget.lock().holders.push((self.number, Arc::clone(&self.meter)));
        }
        account.held += bytes;
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of_its_own(bytes: u64) -> Arc<Self> {
        let budget = UnpackBudget { half: bytes, ..UnpackBudget::sharing(bytes, OWN_NOTES_MIN) };
        budget.lock().half = bytes;
        Arc::new(budget).layer(&Arc::default(), &"image".into(), &Arc::new(HoldMeter::new(Instant::now())))
    }

    pub(crate) fn was_refused(&self) -> bool {
        self.account().was_refused
    }

    /// The image that holds most of the shared memory.
    pub(crate) fn holder(&self) -> Option<String> {
        self.budget.holder()
    }

    /// Whether the layer waits for shared memory now.
    pub(crate) fn is_awaited(&self) -> bool {
        self.account().is_awaited
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: u64) -> Result<(), MemoryError> {
        let mut account = self.account();
        let used = account.used.saturating_add(bytes);
        let limit = self.budget.half + self.budget.own_notes;
        if used > limit {
            return Err(MemoryError::Limit(limit));
        }
        let missing = used.saturating_sub(account.held + self.budget.own_notes);
        if missing > 0 {
            let step = missing.next_multiple_of(STEP).min(self.budget.half - account.held);
            if !self.budget.lock().take(&self.tenant, &self.image, step) {
                return Err(MemoryError::Busy);
            }
            self.hold(&mut account, step);
        }
        account.used = used;
        Ok(())
    }

    /// Waits for the shared memory that `bytes` more need. Safe from deadlock only for a layer that holds none.
    fn wait_for(&self, bytes: u64, cancelled: &AtomicBool) -> Result<(), MemoryError> {
        let missing = (self.account().used + bytes).saturating_sub(self.budget.own_notes);
        let Some(runtime) = self.runtime.as_ref().filter(|_| missing > 0 && !self.holds_shared()) else {
            return Ok(());
        };
        let bytes = missing.next_multiple_of(STEP).min(self.budget.half);
        self.account().is_awaited = true;
        let is_granted = runtime.block_on(async {
            let mut wait = self.budget.wait(&self.tenant, &self.image, bytes);
            loop {
                match tokio::time::timeout(CANCEL_POLL, wait.granted()).await {
                    Ok(()) => return true,
                    Err(_) if cancelled.load(Ordering::Relaxed) => return false,
                    Err(_) => {}
                }
            }
        });
        self.account().is_awaited = false;
        if !is_granted {
            return Err(MemoryError::Cancelled);
        }
        self.hold(&mut self.account(), bytes);
        Ok(())
    }
}

/// Memory in use for one purpose, released on drop.
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
        let taken = self.memory.take(bytes as u64);
        if taken == Err(MemoryError::Busy) {
            self.memory.account().was_refused = true;
        }
        taken?;
        self.bytes += bytes as u64;
        Ok(())
    }

    pub(crate) fn grow_if_free(&mut self, bytes: usize) -> bool {
        let is_free = self.memory.take(bytes as u64).is_ok();
        if is_free {
            self.bytes += bytes as u64;
        }
        is_free
    }

    /// Claims up to `bytes` in total; waits only while the layer holds no shared memory.
    pub(crate) fn grow_to(&mut self, bytes: u64, cancelled: &AtomicBool) -> Result<(), MemoryError> {
        let more = bytes.saturating_sub(self.bytes);
        self.memory.wait_for(more, cancelled)?;
        self.grow(usize::try_from(more).unwrap_or(usize::MAX))
    }

    /// Whether so many bytes in total need no more than the layer's own memory.
    pub(crate) fn is_own(&self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        self.memory.account().used + more <= self.memory.budget.own_notes
    }

    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = self.bytes.min(bytes as u64);
        self.bytes -= bytes;
        self.memory.account().used -= bytes;
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
