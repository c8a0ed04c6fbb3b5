//! The turns of imports: which one brings a layer into the sink, and which layers there are not synced yet.
//!
//! A chain id names a layer and all below it. Imports that want one fetch it once, or each for itself where a registry is
//! slow; then one after the other looks whether the sink has it, and passes it on. The holder of a turn waits for no
//! other import, so that no circle of waits can close.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use imagelet_core::image::Digest;
use tokio::sync::OwnedMutexGuard;

use crate::{engine::layer_single_flight::LayerSingleFlight, store::SyncView};

#[derive(Debug, Default)]
pub(crate) struct LayerTurns {
    /// The fetches under way. What they bring is of one import alone until the sink has it.
    pub(crate) fetching: LayerSingleFlight<Infallible>,
    turns: Mutex<Turns>,
}

#[derive(Debug, Default)]
struct Turns {
    /// One entry per wanted layer; the import that passes it to the sink holds the lock.
    wanted: HashMap<Digest, Arc<tokio::sync::Mutex<()>>>,
    /// Unsynced layers that the sink has, with the views that receive their write errors.
    unsynced: HashMap<Digest, Vec<(u64, Arc<SyncView>)>>,
    imports: u64,
}

#[derive(Debug)]
pub(crate) struct LayerTurn {
    _turn: OwnedMutexGuard<()>,
    /// Another import may have added the layer since this one checked.
    pub(crate) is_late: bool,
}

#[derive(Debug)]
pub(crate) struct UnsyncedLayers<'a> {
    turns: &'a LayerTurns,
    import: u64,
}

impl LayerTurns {
    pub(crate) async fn turn(&self, chain: &Digest) -> LayerTurn {
        let wanted = {
            let mut turns = self.lock();
            turns.wanted.retain(|_, wanted| Arc::strong_count(wanted) > 1);
            Arc::clone(turns.wanted.entry(chain.clone()).or_default())
        };
        if let Ok(turn) = Arc::clone(&wanted).try_lock_owned() {
            return LayerTurn { _turn: turn, is_late: !self.views(chain).is_empty() };
        }
        LayerTurn { _turn: wanted.lock_owned().await, is_late: true }
    }

    /// The views of a layer that the sink has and its imports have not synced.
    pub(crate) fn views(&self, chain: &Digest) -> Vec<Arc<SyncView>> {
        let turns = self.lock();
        turns.unsynced.get(chain).into_iter().flatten().map(|(_, view)| Arc::clone(view)).collect()
    }

    pub(crate) fn unsynced(&self) -> UnsyncedLayers<'_> {
        let mut turns = self.lock();
        turns.imports += 1;
        UnsyncedLayers { turns: self, import: turns.imports }
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnsyncedLayers<'_> {
    /// Adds a layer that the sink has; this view will sync its files.
    pub(crate) fn add(&self, chain: &Digest, view: &Arc<SyncView>) {
        self.turns.lock().unsynced.entry(chain.clone()).or_default().push((self.import, Arc::clone(view)));
    }
}

impl Drop for UnsyncedLayers<'_> {
    fn drop(&mut self) {
        self.turns.lock().unsynced.retain(|_, views| {
            views.retain(|(import, _)| *import != self.import);
            !views.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_layer_is_brought_by_one_import_and_the_next_one_looks_again() {
        let (turns, chain) = (LayerTurns::default(), Digest::of(b"chain"));
        let first = turns.turn(&chain).await;
        assert!(!first.is_late);
        assert!(!turns.turn(&Digest::of(b"other")).await.is_late);
        let mut second = Box::pin(turns.turn(&chain));
        assert!(second.as_mut().now_or_never().is_none(), "it waits");
        drop(first);
        assert!(second.await.is_late);
        assert!(!turns.turn(&chain).await.is_late, "no import has unsynced it");
        assert_eq!(turns.lock().wanted.len(), 1, "what is not wanted any more is forgotten");
    }

    #[tokio::test]
    async fn what_an_import_brought_is_known_until_its_end() {
        let (turns, chain, folder) = (LayerTurns::default(), Digest::of(b"chain"), tempfile::tempdir().unwrap());
        let view = Arc::new(SyncView::open(folder.path()).unwrap());
        let (first, second) = (turns.unsynced(), turns.unsynced());
        first.add(&chain, &view);
        second.add(&chain, &view);
        drop(first);
        assert_eq!(turns.views(&chain).len(), 1);
        assert!(turns.turn(&chain).await.is_late);
        drop(second);
        assert!(turns.views(&chain).is_empty() && turns.lock().unsynced.is_empty());
    }
}
