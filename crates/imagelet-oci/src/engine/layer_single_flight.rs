//! Single flight of layers: one fetch serves all pulls of the layer, unless the fetch is too slow for another tenant.
//!
//! A pull waits for a fetch of its own tenant. It waits for another tenant's fetch only if that fetch ends soon
//! ([`imagelet_core::hold`]). Otherwise it starts its own fetch, and the first whole layer ends the other fetches.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, Weak},
};

use imagelet_core::{
    error::RuntimeError,
    hold::{CHECK_PERIOD, HoldPolicy, SharedThing},
    image::Digest,
    lock::locked,
    ports::Progress,
};
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit},
    time::{Instant, timeout},
};

use super::{Engine, report_present};
use crate::{
    confine::Confinement,
    pipeline::{LayerJob, LayerPace, Place, report_wait},
    scarce,
    store::{SpareWanted, StagedLayer},
    tenant::Tenant,
};

/// After this number of failed fetches of other tenants, a pull no longer waits for fetches of other tenants.
const FAILED_MAX: u32 = 2;

/// The layers that are being fetched, or that are staged as `T` and not committed.
pub(crate) struct LayerSingleFlight<T>(Mutex<HashMap<LayerKey, Arc<LayerSlot<T>>>>);

/// A layer, and the only repository whose pulls may share it; with `None`, all pulls may share the layer.
type LayerKey = (Digest, Option<String>);

struct LayerSlot<T> {
    state: Mutex<SlotState<T>>,
    ended: Notify,
}

struct SlotState<T> {
    fetches: Vec<LayerFetch>,
    staged: Weak<T>,
    ended: u64,
}

struct LayerFetch {
    caller: Arc<LayerCaller>,
    pace: Arc<LayerPace>,
}

pub(crate) struct LayerCaller {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) repository: String,
    pub(crate) reference: String,
    pub(crate) size: u64,
    pub(crate) hold: HoldPolicy,
    /// Bytes per second of the pull's own registry, if known.
    pub(crate) rate: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    pub(crate) layer: Digest,
    pub(crate) progress: Progress,
}

impl LayerCaller {
    pub(crate) fn of(job: &LayerJob, progress: &Progress) -> Arc<Self> {
        let session = job.session.clone();
        Arc::new(Self {
            tenant: Arc::clone(&job.claim.tenant),
            repository: session.reference().repository().to_owned(),
            reference: session.reference().to_string(),
            size: job.descriptor.size,
            hold: job.terms.hold,
            rate: Box::new(move || session.usual_rate()),
            layer: job.descriptor.digest.clone(),
            progress: Arc::clone(progress),
        })
    }

    fn waits_for(&self, fetch: &LayerFetch, may_wait: bool, now: Instant) -> bool {
        let LayerFetch { caller: other, pace, .. } = fetch;
        if self.tenant == other.tenant && self.repository == other.repository {
            return true;
        }
        may_wait
            && match pace.whole_for(now) {
                Some(time) => self.hold.waits_for_whole(time, self.size, (self.rate)()),
                None => self.hold.waits_for(&pace.wall, pace.left(), self.size, (self.rate)(), now),
            }
    }
}

pub(crate) enum RaceOutcome<F, P, T> {
    /// The layer is at its destination, or another pull has fetched it.
    Present(P),
    Own(F, FetchGuard<T>),
}

/// A running fetch. The drop ends the fetch, and waiting pulls then check again.
pub(crate) struct FetchGuard<T> {
    slot: Arc<LayerSlot<T>>,
    pace: Arc<LayerPace>,
    ended: u64,
}

impl<T> FetchGuard<T> {
    pub(crate) fn is_late(&self) -> bool {
        locked(&self.slot.state).ended != self.ended
    }

    fn publish(self, staged: &Arc<T>) {
        locked(&self.slot.state).staged = Arc::downgrade(staged);
    }
}

impl<T> Drop for FetchGuard<T> {
    fn drop(&mut self) {
        let mut state = locked(&self.slot.state);
        state.fetches.retain(|fetch| !Arc::ptr_eq(&fetch.pace, &self.pace));
        state.ended += 1;
        drop(state);
        self.slot.ended.notify_waiters();
    }
}

impl<T> LayerSlot<T> {
    fn staged(&self) -> Option<Arc<T>> {
        locked(&self.state).staged.upgrade()
    }

    async fn ended_since(&self, seen: u64) {
        loop {
            // The future is created before the check, so that it receives every later notification.
            let ended = self.ended.notified();
            if locked(&self.state).ended != seen {
                return;
            }
            ended.await;
        }
    }

    fn awaited(&self, caller: &LayerCaller, may_wait: bool) -> Option<String> {
        let now = Instant::now();
        let state = locked(&self.state);
        let fetch = state.fetches.iter().find(|fetch| caller.waits_for(fetch, may_wait, now));
        fetch.map(|fetch| fetch.caller.reference.clone())
    }

    /// Starts a fetch, unless the caller should wait for another fetch, or a fetch has ended since the last check.
    fn begin(
        self: &Arc<Self>,
        caller: &Arc<LayerCaller>,
        pace: Arc<LayerPace>,
        (ended, may_wait): (u64, bool),
    ) -> Option<FetchGuard<T>> {
        let now = Instant::now();
        let mut state = locked(&self.state);
        if state.ended != ended || state.fetches.iter().any(|fetch| caller.waits_for(fetch, may_wait, now)) {
            return None;
        }
        if let Some(other) = state.fetches.first() {
            tracing::info!(
                reference = caller.reference,
                other = other.caller.reference,
                rate = other.pace.wall.rate(now),
                left = other.pace.left(),
                "another tenant's fetch of the same layer is slow: the pull fetches it as well"
            );
        }
        state.fetches.push(LayerFetch { caller: Arc::clone(caller), pace: Arc::clone(&pace) });
        Some(FetchGuard { slot: Arc::clone(self), pace, ended })
    }
}

impl<T> Default for LayerSingleFlight<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> LayerSingleFlight<T> {
    /// Waits for other pulls' fetches that are fast enough. Otherwise fetches, too, until one fetch is complete.
    ///
    /// `present` checks whether the layer is at its destination, or takes the layer that another pull has staged.
    /// `enter` waits for the right to fetch.
    pub(crate) async fn race<E, P, S, F, Present, Enter, Fetch>(
        &self,
        key: LayerKey,
        caller: &Arc<LayerCaller>,
        present: impl Fn(Option<Arc<T>>) -> Present,
        enter: impl Fn() -> Enter,
        fetch: impl FnOnce(S) -> Fetch,
    ) -> Result<RaceOutcome<F, P, T>, E>
    where
        Present: Future<Output = Result<Option<P>, E>>,
        Enter: Future<Output = (S, Arc<LayerPace>)>,
        Fetch: Future<Output = Result<F, E>>,
    {
        let slot = self.slot(key);
        // `waits` reports the wait for a fetch. Its drop reports the end, even if this future is dropped.
        let mut waits = None;
        let (mut seen, mut failed) = (locked(&slot.state).ended, 0);
        let (entered, guard) = loop {
            if let Some(present) = present(slot.staged()).await? {
                return Ok(RaceOutcome::Present(present));
            }
            let may_wait = failed < FAILED_MAX;
            if let Some(holder) = slot.awaited(caller, may_wait) {
                let what = (SharedThing::Layer, &caller.layer, &caller.progress);
                waits.get_or_insert_with(|| report_wait(what, Some(holder)));
                let ended = slot.ended_since(seen);
                failed += u32::from(timeout(CHECK_PERIOD, ended).await.is_ok());
                seen = locked(&slot.state).ended;
                continue;
            }
            // The wait for a place continues while other fetches of the layer end.
            let mut entering = pin!(enter());
            let (entered, pace) = loop {
                let entered = tokio::select! {
                    biased;
                    () = slot.ended_since(seen) => None,
                    entered = &mut entering => Some(entered),
                };
                if locked(&slot.state).ended != seen {
                    (seen, failed) = (locked(&slot.state).ended, failed + 1);
                    if let Some(present) = present(slot.staged()).await? {
                        return Ok(RaceOutcome::Present(present));
                    }
                }
                if let Some(entered) = entered {
                    break entered;
                }
            };
            if let Some(guard) = slot.begin(caller, pace, (seen, failed < FAILED_MAX)) {
                break (entered, guard);
            }
        };
        drop(waits);
        let mut fetch = pin!(fetch(entered));
        loop {
            tokio::select! {
                biased;
                fetched = &mut fetch => return fetched.map(|fetched| RaceOutcome::Own(fetched, guard)),
                () = slot.ended_since(seen) => {}
            }
            seen = locked(&slot.state).ended;
            if let Some(present) = present(slot.staged()).await? {
                return Ok(RaceOutcome::Present(present));
            }
        }
    }

    /// The slot of a layer. Removes slots that have neither a pull nor a staged layer.
    fn slot(&self, key: LayerKey) -> Arc<LayerSlot<T>> {
        let mut slots = locked(&self.0);
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || locked(&slot.state).staged.strong_count() > 0);
        let slot = || {
            let state = SlotState { fetches: Vec::new(), staged: Weak::new(), ended: 0 };
            Arc::new(LayerSlot { state: Mutex::new(state), ended: Notify::new() })
        };
        Arc::clone(slots.entry(key).or_insert_with(slot))
    }
}

impl Engine {
    pub fn confinement(&self) -> &Confinement {
        &self.confinement
    }

    pub(crate) async fn fetch_layer(
        &self,
        job: LayerJob,
        only_from: Option<&str>,
        progress: &Progress,
    ) -> Result<Option<Arc<StagedLayer>>, RuntimeError> {
        let is_in_store = || self.store.layer(&job.diff_id).is_some() && self.may_share(only_from, &job.diff_id);
        let key = (job.diff_id.clone(), only_from.map(str::to_owned));
        let present = async |staged: Option<Arc<StagedLayer>>| {
            Ok::<_, RuntimeError>(if is_in_store() { Some(None) } else { staged.map(Some) })
        };
        match self.bring_layer(&self.fetching, key, &job, None, progress, present).await? {
            RaceOutcome::Present(staged) => {
                report_present(progress, &job.descriptor.digest);
                job.give_up().await?;
                Ok(staged)
            }
            RaceOutcome::Own(staged, guard) => {
                let staged = Arc::new(staged);
                guard.publish(&staged);
                Ok(Some(staged))
            }
        }
    }

    /// Takes a spare or fetches the layer, unless `present` finds it first. `window` bounds concurrent fetches.
    pub(super) async fn bring_layer<T, P, E: From<RuntimeError>, Present>(
        &self,
        flight: &LayerSingleFlight<T>,
        key: LayerKey,
        job: &LayerJob,
        window: Option<&Semaphore>,
        progress: &Progress,
        present: impl Fn(Option<Arc<T>>) -> Present,
    ) -> Result<RaceOutcome<StagedLayer, P, T>, E>
    where
        Present: Future<Output = Result<Option<P>, E>>,
    {
        let (caller, repository) = (LayerCaller::of(job, progress), key.1.clone());
        let wanted = SpareWanted { diff_id: &job.diff_id, repository: repository.as_deref(), end: job.staging.end };
        let spare_pace = Arc::new(LayerPace::new(0, Instant::now()));
        let place = async || {
            let window = match window {
                Some(window) => Some(window.acquire().await.expect("the window is never closed")),
                None => None,
            };
            (window, self.places.place(job.claim.clone(), &job.descriptor, progress).await)
        };
        let enter = async || {
            if self.has_spare(&wanted) {
                return (None, Arc::clone(&spare_pace));
            }
            let place = place().await;
            let pace = Arc::clone(&place.1.pace);
            (Some(place), pace)
        };
        let fetch = async |entered: Option<(Option<SemaphorePermit<'_>>, Place)>| {
            let spare = if job.blob.is_kept { None } else { self.store.take_spare(&wanted, &job.blob.resumption) };
            if let Some(spare) = spare {
                tracing::debug!(layer = %job.diff_id, "took a layer that an earlier pull unpacked");
                report_present(progress, &job.descriptor.digest);
                return Ok(spare);
            }
            let (_window, place) = if let Some(entered) = entered {
                entered
            } else {
                spare_pace.set_left(job.descriptor.size);
                place().await
            };
            let staged = scarce::retried(|| job.run(&place, progress)).await;
            Ok(staged
                .inspect_err(|error| job.blob.resumption.heed(error))
                .map_err(|error| job.descriptor.not_fetched(error))?)
        };
        Box::pin(flight.race(key, &caller, present, enter, fetch)).await
    }

    /// Whether the pull can use a spare layer. A spare has no blob, so it is not used if blobs are kept.
    pub(super) fn has_spare(&self, wanted: &SpareWanted<'_>) -> bool {
        !self.config.keep_blobs && self.store.has_spare(wanted)
    }
}

#[cfg(test)]
mod tests;
