//! The turns of imports: which import passes a layer to the sink, and which layers of the sink are not synced yet.
//!
//! A chain id names a layer and all layers below it. Imports of the same chain id fetch it once, or separately if a
//! registry is slow. Then one after the other checks whether the sink has the layer, and passes it on if not. The owner
//! of a turn waits for no other import, so that no circle of waits can form.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use imagelet_core::image::Digest;
use tokio::sync::OwnedMutexGuard;

use crate::{engine::layer_single_flight::LayerSingleFlight, store::SyncView};

#[derive(Default)]
pub(crate) struct LayerTurns {
    /// The running fetches. A fetched layer belongs to one import until the sink has it.
    pub(crate) fetching: LayerSingleFlight<Infallible>,
    /// One entry per wanted layer. The import that passes the layer to the sink has the lock.
    wanted: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
    /// Unsynced layers that the sink has, with the imports that will sync them and the views that receive their write
    /// errors.
    unsynced: Mutex<HashMap<Digest, Vec<UnsyncedView>>>,
}

type UnsyncedView = (Weak<()>, Arc<SyncView>);

impl LayerTurns {
    pub(crate) async fn turn(&self, chain: &Digest) -> OwnedMutexGuard<()> {
        let wanted = {
            let mut turns = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, wanted| Arc::strong_count(wanted) > 1);
            Arc::clone(turns.entry(chain.clone()).or_default())
        };
        wanted.lock_owned().await
    }

    /// The views of a layer that the sink has, if the layer's imports have not synced it.
    pub(crate) fn views(&self, chain: &Digest) -> Vec<Arc<SyncView>> {
        let mut unsynced = self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
        unsynced.retain(|_, views| {
            views.retain(|(import, _)| import.strong_count() > 0);
            !views.is_empty()
        });
        unsynced.get(chain).into_iter().flatten().map(|(_, view)| Arc::clone(view)).collect()
    }

    /// Adds a layer that the sink has. The view will sync the layer's files before the import ends and drops its mark.
    pub(crate) fn add(&self, import: &Arc<()>, chain: &Digest, view: &Arc<SyncView>) {
        let mut unsynced = self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
        unsynced.entry(chain.clone()).or_default().push((Arc::downgrade(import), Arc::clone(view)));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_layer_is_brought_by_one_import_and_the_next_one_waits() {
        let (turns, chain) = (LayerTurns::default(), Digest::of(b"chain"));
        let first = turns.turn(&chain).await;
        drop(turns.turn(&Digest::of(b"other")).await);
        let mut second = Box::pin(turns.turn(&chain));
        assert!(second.as_mut().now_or_never().is_none(), "it waits");
        drop(first);
        drop(second.await);
        drop(turns.turn(&chain).await);
        assert_eq!(turns.wanted.lock().unwrap().len(), 1, "what is not wanted any more is forgotten");
    }

    #[tokio::test]
    async fn what_an_import_brought_is_known_until_its_end() {
        let (turns, chain, folder) = (LayerTurns::default(), Digest::of(b"chain"), tempfile::tempdir().unwrap());
        let view = Arc::new(SyncView::open(folder.path()).unwrap());
        let (first, second) = (Arc::new(()), Arc::new(()));
        turns.add(&first, &chain, &view);
        turns.add(&second, &chain, &view);
        drop(first);
        assert_eq!(turns.views(&chain).len(), 1);
        drop(second);
        assert!(turns.views(&chain).is_empty() && turns.unsynced.lock().unwrap().is_empty());
    }
}
