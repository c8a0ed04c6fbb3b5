//! The memory and the open directories that concurrently unpacked layers share.
//!
//! Each layer has a little memory of its own, enough for most layers; the rest comes from shared memory. A layer that
//! holds shared memory never waits for more: it fails, waits without memory until a layer's whole share is free, in
//! order of arrival, and starts again with that. So there is no deadlock and no unbounded wait; a layer that needs more
//! than a share is rejected.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};

use crate::scarce::DescriptorShare;

pub(crate) const LAYERS_MAX: usize = 64;
/// Each layer's own memory: two blocks between inflater and unpacker, the manifest's buffer, notes.
const OWN: u64 = 384 << 10;
const OWN_NOTES: u64 = 16 << 10;
/// The least budget: after each layer's own memory it holds the largest header with its parsed form, and the window
/// that every zstd decoder must support.
pub const UNPACK_MEMORY_MIN: u64 = 48 << 20;
/// The default budget.
pub const UNPACK_MEMORY_DEFAULT: u64 = 64 << 20;
/// Shared memory is counted in units and claimed in steps, to keep counting cheap.
const UNIT: u64 = 1 << 10;
const STEP: u64 = 64 << 10;
/// Directories that all layers together keep open as a cache; with the other files of 64 layers a process stays below
/// 1024 descriptors.
const DIRECTORIES_MAX: usize = 192;
/// The delay until a layer that waits for memory notices its cancellation.
const CANCEL_POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct UnpackBudget {
    shared: Arc<Semaphore>,
    share_max: u64,
    directories: Arc<Semaphore>,
}

impl UnpackBudget {
    pub(crate) fn new(memory: u64) -> Self {
        Self::sharing(memory.max(UNPACK_MEMORY_MIN) - LAYERS_MAX as u64 * OWN)
    }

    fn sharing(share_max: u64) -> Self {
        Self {
            shared: Arc::new(Semaphore::new(usize::try_from(share_max / UNIT).unwrap_or(Semaphore::MAX_PERMITS))),
            share_max,
            directories: Arc::new(Semaphore::new(DescriptorShare::default().of(DIRECTORIES_MAX))),
        }
    }

    pub(crate) fn layer(self: &Arc<Self>) -> Arc<LayerMemory> {
        Arc::new(LayerMemory {
            budget: Arc::clone(self),
            account: Mutex::default(),
            runtime: Handle::try_current().ok(),
        })
    }

    /// A whole share for a layer that failed for lack of memory, once it is free.
    pub(crate) async fn whole_layer(self: &Arc<Self>) -> Arc<LayerMemory> {
        let layer = self.layer();
        let permit = Arc::clone(&self.shared).acquire_many_owned(units(self.share_max)).await;
        layer.account().permit = permit.ok();
        layer
    }

    /// `None` while as many directories as permitted are open.
    pub(crate) fn directory(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.directories).try_acquire_owned().ok()
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes / UNIT).unwrap_or(u32::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("other layers hold the memory that unpacking may take")]
    Busy,
    #[error("it needs more memory than one layer may have; the limit is {0} bytes, of `store.unpackMemory`")]
    Limit(u64),
    #[error("the layer was cancelled")]
    Cancelled,
}

#[derive(Debug)]
pub(crate) struct LayerMemory {
    pub(crate) budget: Arc<UnpackBudget>,
    account: Mutex<Account>,
    runtime: Option<Handle>,
}

#[derive(Debug, Default)]
struct Account {
    used: u64,
    /// Shared memory.
    permit: Option<OwnedSemaphorePermit>,
    was_refused: bool,
    is_awaited: bool,
}

impl Account {
    fn held(&self) -> u64 {
        self.permit.as_ref().map_or(0, |permit| permit.num_permits() as u64 * UNIT)
    }

    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
    }
}

impl LayerMemory {
    pub(crate) fn holds_shared(&self) -> bool {
        self.account().held() > 0
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of_its_own(bytes: u64) -> Arc<Self> {
        Arc::new(UnpackBudget::sharing(bytes)).layer()
    }

    pub(crate) fn was_refused(&self) -> bool {
        self.account().was_refused
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
        let limit = self.budget.share_max + OWN_NOTES;
        if used > limit {
            return Err(MemoryError::Limit(limit));
        }
        let missing = used.saturating_sub(account.held() + OWN_NOTES);
        if missing > 0 {
            let step = missing.next_multiple_of(STEP).min(self.budget.share_max - account.held());
            let permit = Arc::clone(&self.budget.shared).try_acquire_many_owned(units(step));
            account.add(permit.map_err(|_| MemoryError::Busy)?);
        }
        account.used = used;
        Ok(())
    }

    /// Waits for shared memory. Safe from deadlock only for a layer that holds none.
    fn wait_for(&self, bytes: u64, cancelled: &AtomicBool) -> Result<(), MemoryError> {
        let bytes = bytes.next_multiple_of(STEP).min(self.budget.share_max);
        let Some(runtime) = self.runtime.as_ref().filter(|_| !self.holds_shared()) else { return Ok(()) };
        self.account().is_awaited = true;
        let acquired = runtime.block_on(async {
            let mut acquired = std::pin::pin!(Arc::clone(&self.budget.shared).acquire_many_owned(units(bytes)));
            loop {
                match tokio::time::timeout(CANCEL_POLL, &mut acquired).await {
                    Ok(permit) => return permit.ok(),
                    Err(_) if cancelled.load(Ordering::Relaxed) => return None,
                    Err(_) => {}
                }
            }
        });
        self.account().is_awaited = false;
        self.account().add(acquired.ok_or(MemoryError::Cancelled)?);
        Ok(())
    }
}

/// Memory in use for one purpose, released on drop.
#[derive(Debug)]
pub(crate) struct Claim {
    memory: Arc<LayerMemory>,
    bytes: u64,
}

impl Claim {
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

    /// Waits for a layer's whole share under the same condition, because the size is not known in advance.
    pub(crate) fn wait_for_whole(&self, cancelled: &AtomicBool) -> Result<(), MemoryError> {
        self.memory.wait_for(self.memory.budget.share_max, cancelled)
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

impl Drop for Claim {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn directories_are_kept_open_up_to_the_bound_and_given_back() {
        let budget = Arc::new(UnpackBudget::new(UNPACK_MEMORY_DEFAULT));
        let mut held: Vec<OwnedSemaphorePermit> = std::iter::from_fn(|| budget.directory()).collect();
        assert_eq!(held.len(), DIRECTORIES_MAX);
        held.pop();
        assert!(budget.directory().is_some());
    }

    #[test]
    fn the_least_budget_holds_the_largest_header_and_the_window_of_every_decoder() {
        let budget = Arc::new(UnpackBudget::new(0));
        let mut claim = Claim::on(&budget.layer());
        let header = crate::unpack::UnpackLimits::default().header_max;
        claim.grow(8 * MIB + 4 * header + (4 << 20)).expect("it fits");
    }

    #[test]
    fn all_layers_together_take_no_more_than_the_budget_and_what_they_give_back_is_there_again() {
        let budget = Arc::new(UnpackBudget::sharing(10 << 20));
        let layers: Vec<_> = (0..4).map(|_| budget.layer()).collect();
        let mut claims: Vec<_> = layers.iter().map(Claim::on).collect();
        for claim in &mut claims {
            claim.grow(usize::try_from(OWN_NOTES).unwrap()).expect("each layer has some of its own");
        }
        claims[0].grow(6 * MIB).expect("it is free");
        assert_eq!(claims[1].grow(6 * MIB), Err(MemoryError::Busy));
        assert!(layers[1].was_refused() && !layers[0].was_refused());
        assert!(!claims[2].grow_if_free(6 * MIB) && !layers[2].was_refused());
        assert!(layers[0].holds_shared() && !layers[1].holds_shared());
        claims[1].grow(3 * MIB).expect("as much is free");
        drop((claims, layers));
        Claim::on(&budget.layer()).grow(10 * MIB).expect("all is free again");
    }

    #[test]
    fn one_layer_is_refused_what_no_layer_may_have_and_told_the_limit() {
        let mut claim = Claim::on(&LayerMemory::of_its_own(1 << 20));
        claim.grow(MIB).expect("as much as there is");
        let limit = (1 << 20) + OWN_NOTES;
        assert_eq!(claim.grow(MIB), Err(MemoryError::Limit(limit)));
        assert!(MemoryError::Limit(limit).to_string().contains(&limit.to_string()));
        claim.clear();
        claim.grow(MIB).expect("it was given back");
        drop(claim);
        let mut all = Claim::on(&LayerMemory::of_its_own(1 << 20));
        all.grow(usize::try_from(limit).unwrap()).expect("to the byte");
        assert_eq!(all.grow(1), Err(MemoryError::Limit(limit)));
    }

    #[test]
    fn what_a_claim_took_is_given_back_whichever_way_it_was_taken() {
        let memory = LayerMemory::of_its_own(1 << 20);
        for _ in 0..3 {
            let mut claim = Claim::on(&memory);
            assert!(claim.grow_if_free(MIB / 2));
            claim.grow(MIB / 2).expect("the rest is free");
            assert!(!claim.grow_if_free(MIB));
        }
        let mut claim = Claim::on(&memory);
        assert!(claim.grow_if_free(MIB));
        claim.clear();
        claim.grow(MIB).expect("all of it");
    }

    #[tokio::test]
    async fn layers_that_were_refused_come_one_after_the_other_and_none_waits_for_ever() {
        let budget = Arc::new(UnpackBudget::sharing(10 << 20));
        let first = budget.layer();
        let mut claim = Claim::on(&first);
        claim.grow(6 * MIB).expect("it is free");
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let budget = Arc::clone(&budget);
                tokio::spawn(async move {
                    let layer = budget.whole_layer().await;
                    Claim::on(&layer).grow(10 * MIB).expect("the whole share is its own");
                })
            })
            .collect();
        tokio::task::yield_now().await;
        // A later request does not overtake.
        assert_eq!(Claim::on(&budget.layer()).grow(MIB), Err(MemoryError::Busy));
        drop((claim, first));
        for task in waiting {
            task.await.expect("no panic");
        }
    }

    #[tokio::test]
    async fn a_layer_that_waits_for_its_first_memory_can_be_cancelled_and_gets_it_otherwise() {
        let budget = Arc::new(UnpackBudget::sharing(10 << 20));
        let holder = budget.layer();
        let mut held = Claim::on(&holder);
        held.grow(9 * MIB).expect("it is free");
        let layer = budget.layer();
        let wait = |cancelled: bool| {
            let layer = Arc::clone(&layer);
            tokio::task::spawn_blocking(move || {
                let mut claim = Claim::on(&layer);
                claim.grow_to(8 << 20, &AtomicBool::new(cancelled))
            })
        };
        assert_eq!(wait(true).await.expect("no panic"), Err(MemoryError::Cancelled));
        assert!(!layer.is_awaited() && !layer.holds_shared());
        let waiting = wait(false);
        while !layer.is_awaited() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop((held, holder));
        assert_eq!(waiting.await.expect("no panic"), Ok(()));
        assert!(!layer.is_awaited() && layer.holds_shared());
        // It holds some, and must not wait for more.
        let whole = Claim::on(&layer);
        tokio::task::spawn_blocking(move || whole.wait_for_whole(&AtomicBool::new(false)))
            .await
            .expect("no panic")
            .expect("no wait");
    }

    #[tokio::test]
    async fn a_layer_that_waits_for_a_whole_share_has_all_of_it() {
        let budget = Arc::new(UnpackBudget::sharing(10 << 20));
        let layer = budget.layer();
        let claim = Claim::on(&layer);
        tokio::task::spawn_blocking(move || claim.wait_for_whole(&AtomicBool::new(false)))
            .await
            .expect("no panic")
            .expect("it is free");
        assert!(layer.holds_shared());
        assert_eq!(Claim::on(&budget.layer()).grow(MIB), Err(MemoryError::Busy));
    }
}
