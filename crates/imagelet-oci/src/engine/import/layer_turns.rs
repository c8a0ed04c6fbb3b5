//! The turns of imports: which import passes a layer to the sink, and which layers of the sink are not synced yet.
//!
//! A chain id names a layer and all layers below it. Imports of the same chain id fetch it once, or separately if a
//! registry is slow. Then they take turns: each checks whether the sink has the layer, and passes it on if not. The
//! owner of a turn waits for no other import, so there is no deadlock.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use imagelet_core::{image::Digest, lock::locked};
use tokio::sync::OwnedMutexGuard;

use crate::{engine::layer_single_flight::LayerSingleFlight, store::SyncView};

#[derive(Default)]
pub(crate) struct LayerTurns {
    /// The running fetches. A fetched layer belongs to one import until the sink has it.
    pub(crate) fetching: LayerSingleFlight<Infallible>,
    /// A lock for each layer that imports want. The import that passes the layer to the sink holds the lock.
    wanted: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
    /// The unsynced layers of the sink, with the imports that will sync them and the views that receive the errors.
    unsynced: Mutex<UnsyncedViews>,
}

type UnsyncedViews = HashMap<Digest, Vec<(Arc<()>, Arc<SyncView>)>>;

/// The layers that an import has passed to the sink and has not synced. The drop removes them from the list.
pub(crate) struct UnsyncedLayers<'a> {
    turns: &'a LayerTurns,
    import: Arc<()>,
}

impl LayerTurns {
    /// Waits for the turn. Returns also whether another import may have added the layer since this import checked.
    pub(crate) async fn turn(&self, chain: &Digest) -> (OwnedMutexGuard<()>, bool) {
        let wanted = {
            let mut turns = locked(&self.wanted);
            turns.retain(|_, wanted| Arc::strong_count(wanted) > 1);
            Arc::clone(turns.entry(chain.clone()).or_default())
        };
        match Arc::clone(&wanted).try_lock_owned() {
            Ok(turn) => (turn, !self.views(chain).is_empty()),
            Err(_) => (wanted.lock_owned().await, true),
        }
    }

    pub(crate) fn views(&self, chain: &Digest) -> Vec<Arc<SyncView>> {
        locked(&self.unsynced).get(chain).into_iter().flatten().map(|(_, view)| Arc::clone(view)).collect()
    }

    pub(crate) fn unsynced(&self) -> UnsyncedLayers<'_> {
        UnsyncedLayers { turns: self, import: Arc::default() }
    }
}

impl UnsyncedLayers<'_> {
    pub(crate) fn add(&self, chain: &Digest, view: &Arc<SyncView>) {
        let mut unsynced = locked(&self.turns.unsynced);
        unsynced.entry(chain.clone()).or_default().push((Arc::clone(&self.import), Arc::clone(view)));
    }
}

impl Drop for UnsyncedLayers<'_> {
    fn drop(&mut self) {
        locked(&self.turns.unsynced).retain(|_, views| {
            views.retain(|(import, _)| !Arc::ptr_eq(import, &self.import));
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
        assert!(!first.1);
        assert!(!turns.turn(&Digest::of(b"other")).await.1);
        let mut second = Box::pin(turns.turn(&chain));
        assert!(second.as_mut().now_or_never().is_none(), "it waits");
        drop(first);
        assert!(second.await.1);
        assert!(!turns.turn(&chain).await.1, "no import has unsynced it");
        assert_eq!(turns.wanted.lock().unwrap().len(), 1, "what is not wanted any more is forgotten");
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
        assert!(turns.turn(&chain).await.1);
        drop(second);
        assert!(turns.views(&chain).is_empty() && locked(&turns.unsynced).is_empty());
        assert_eq!(Arc::strong_count(&view), 1, "nothing keeps it open");
    }
}
