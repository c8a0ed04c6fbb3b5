//! Single flight of layers: one fetch serves all pulls that want the layer.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, Weak},
};

use imagelet_core::{
    image::Digest,
    runtime::{Progress, RuntimeError},
};
use tokio::sync::Mutex as SlotMutex;

use super::{Engine, report_present};
use crate::{
    confine::Confinement,
    pipeline::LayerJob,
    scarce,
    store::{SpareWanted, StagedLayer},
};

/// The layers that are being fetched, or staged by a pull and not in the store yet. It knows
/// neither registry nor store, so that its tests need none.
pub(crate) struct LayerSingleFlight<T>(Mutex<HashMap<LayerKey, Arc<LayerSlot<T>>>>);

/// A layer, and the repository whose pulls may share it; `None`: all.
type LayerKey = (Digest, Option<String>);

/// A layer being fetched; the lock is held meanwhile.
type LayerSlot<T> = SlotMutex<Weak<T>>;

enum LayerOrigin<T> {
    InStore,
    /// Another pull staged it.
    Shared(Arc<T>),
    Fetched(Arc<T>),
}

impl<T> Default for LayerSingleFlight<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for LayerSingleFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerSingleFlight").finish_non_exhaustive()
    }
}

impl<T> LayerSingleFlight<T> {
    /// Waits for another pull's fetch of the layer, and fetches it where neither the store nor that pull has it then.
    async fn share<E>(
        &self,
        key: LayerKey,
        is_in_store: impl Fn() -> bool,
        fetch: impl Future<Output = Result<T, E>>,
    ) -> Result<LayerOrigin<T>, E> {
        let slot = self.slot(key);
        let mut shared = slot.lock().await;
        if is_in_store() {
            return Ok(LayerOrigin::InStore);
        }
        if let Some(staged) = shared.upgrade() {
            return Ok(LayerOrigin::Shared(staged));
        }
        let staged = Arc::new(fetch.await?);
        *shared = Arc::downgrade(&staged);
        Ok(LayerOrigin::Fetched(staged))
    }

    /// The slot of a layer. Those that no pull has and whose layer is gone are dropped.
    fn slot(&self, key: LayerKey) -> Arc<LayerSlot<T>> {
        let mut slots = self.0.lock().expect("no thread panics while it holds the lock");
        let is_staged = |slot: &LayerSlot<T>| slot.try_lock().is_ok_and(|shared| shared.strong_count() > 0);
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || is_staged(slot));
        Arc::clone(slots.entry(key).or_default())
    }
}

impl Engine {
    /// The confinement of the threads that unpack layers.
    pub fn confinement(&self) -> &Confinement {
        &self.confinement
    }

    /// Fetches a layer, or shares a present one or one of another pull. `None`: it is in the store.
    pub(crate) async fn fetch_layer(
        &self,
        job: LayerJob,
        only_from: Option<&str>,
        progress: &Progress,
    ) -> Result<Option<Arc<StagedLayer>>, RuntimeError> {
        let present = || report_present(progress, &job.descriptor.digest);
        let is_in_store = || self.store.layer(&job.diff_id).is_some() && self.may_share(only_from, &job.diff_id);
        let fetch = Box::pin(async {
            if let Some(spare) = self.spare(&job, only_from) {
                present();
                return Ok(spare);
            }
            // A wait for a place blocks only pulls of the same layer.
            let place = self.places.place(job.claim.clone()).await;
            let staged = scarce::retried(|| job.run(&place, progress)).await;
            staged.map_err(|error| job.descriptor.not_fetched(error))
        });
        let key = (job.diff_id.clone(), only_from.map(str::to_owned));
        let origin = self.fetching.share(key, is_in_store, fetch).await?;
        if !matches!(origin, LayerOrigin::Fetched(_)) {
            present();
        }
        Ok(match origin {
            LayerOrigin::InStore => None,
            LayerOrigin::Shared(staged) | LayerOrigin::Fetched(staged) => Some(staged),
        })
    }

    /// A layer that an unfinished pull left. It has no blob, so it is of no use where blobs are kept.
    fn spare(&self, job: &LayerJob, only_from: Option<&str>) -> Option<StagedLayer> {
        let wanted = SpareWanted { diff_id: &job.diff_id, repository: only_from, end: job.end };
        let spare = if job.keep_blobs { None } else { self.store.take_spare(&wanted, &job.resumption) };
        spare.inspect(|_| tracing::debug!(layer = %job.diff_id, "took a layer that an earlier pull unpacked"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_util::{
        FutureExt as _,
        future::{self, BoxFuture},
    };
    use imagelet_core::testing::interleavings::{InterleavedStory, explore_all_orders, explore_random_order, step};

    use super::*;

    use Fetch::{Cancelled, Fails, Succeeds};

    #[derive(Clone, Copy)]
    enum Fetch {
        Succeeds,
        Fails,
        /// The pull is cancelled after so many steps.
        Cancelled(usize),
    }

    /// The layer of one run: how often it is being fetched, staged and in the store.
    #[derive(Default)]
    struct Layer {
        fetching: AtomicUsize,
        staged: AtomicUsize,
        is_in_store: AtomicBool,
        fetched_by: AtomicUsize,
    }

    struct Staged(Arc<Layer>);

    impl Staged {
        fn new(layer: &Arc<Layer>) -> Self {
            layer.staged.fetch_add(1, Ordering::SeqCst);
            Self(Arc::clone(layer))
        }
    }

    impl Drop for Staged {
        fn drop(&mut self) {
            self.0.staged.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Counts a fetch for as long as it is not dropped.
    struct Fetching(Arc<Layer>);

    impl Drop for Fetching {
        fn drop(&mut self) {
            self.0.fetching.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn key() -> LayerKey {
        (Digest::of(b"layer"), None)
    }

    /// A pull of the layer: it fetches or shares it, fetches another layer, and puts both into the store.
    fn pull(flights: &Arc<LayerSingleFlight<Staged>>, layer: &Arc<Layer>, way: Fetch) -> BoxFuture<'static, ()> {
        let (flights, layer) = (Arc::clone(flights), Arc::clone(layer));
        let pulls = async move {
            let fetch = async {
                layer.fetched_by.fetch_add(1, Ordering::SeqCst);
                layer.fetching.fetch_add(1, Ordering::SeqCst);
                let _fetching = Fetching(Arc::clone(&layer));
                step().await;
                if matches!(way, Fails) { Err(()) } else { Ok(Staged::new(&layer)) }
            };
            let is_in_store = || layer.is_in_store.load(Ordering::SeqCst);
            let Ok(origin) = flights.share(key(), is_in_store, fetch).await else { return };
            step().await;
            if let LayerOrigin::Shared(_) | LayerOrigin::Fetched(_) = &origin {
                layer.is_in_store.store(true, Ordering::SeqCst);
            }
            step().await;
        };
        let Cancelled(steps) = way else { return pulls.boxed() };
        async move {
            let cancelled = async {
                for _ in 0..steps {
                    step().await;
                }
            };
            drop(future::select(pulls.boxed(), cancelled.boxed()).await);
        }
        .boxed()
    }

    fn story(ways: &[Fetch]) -> InterleavedStory {
        let (flights, layer) = (Arc::new(LayerSingleFlight::default()), Arc::new(Layer::default()));
        let tasks = ways.iter().map(|way| pull(&flights, &layer, *way)).collect();
        let invariant = {
            let layer = Arc::clone(&layer);
            move || match (layer.fetching.load(Ordering::SeqCst), layer.staged.load(Ordering::SeqCst)) {
                (0, 0 | 1) | (1, 0) => Ok(()),
                (fetching, staged) => Err(format!("fetched {fetching} times at once beside {staged} staged layers")),
            }
        };
        let (pulls, succeed) = (ways.len(), ways.iter().filter(|way| matches!(way, Succeeds)).count());
        let at_end = move || {
            let fetched = layer.fetched_by.load(Ordering::SeqCst);
            if succeed > 0 && !layer.is_in_store.load(Ordering::SeqCst) {
                return Err("no pull brought the layer".to_owned());
            }
            if succeed == pulls && fetched != 1 {
                return Err(format!("{pulls} pulls fetched the layer {fetched} times"));
            }
            drop(flights.slot((Digest::of(b"other"), None)));
            let slots = flights.0.lock().unwrap().len();
            if slots == 1 { Ok(()) } else { Err(format!("{slots} slots remain of one that is wanted")) }
        };
        InterleavedStory { tasks, invariant: Box::new(invariant), at_end: Box::new(at_end) }
    }

    #[tokio::test(start_paused = true)]
    async fn in_every_order_a_layer_is_fetched_once_at_a_time_and_not_beside_a_staged_one() {
        for ways in [
            [Succeeds, Succeeds, Succeeds],
            [Succeeds, Succeeds, Fails],
            [Succeeds, Fails, Fails],
            [Succeeds, Succeeds, Cancelled(1)],
            [Succeeds, Cancelled(1), Cancelled(2)],
            [Succeeds, Fails, Cancelled(2)],
        ] {
            explore_all_orders(|| story(&ways)).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn in_orders_drawn_by_a_seed_six_pulls_of_a_layer_do_so_too() {
        for ways in [[Succeeds; 6], [Fails, Cancelled(1), Succeeds, Cancelled(3), Fails, Succeeds]] {
            for seed in 0..500 {
                explore_random_order(story(&ways), seed).await.unwrap();
            }
        }
    }
}
