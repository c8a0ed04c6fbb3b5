//! How many layers are on their way at once, whichever pulls want them.
//!
//! A pull has a bound of its own. Callers with limits of their own may have a hundred pulls under way, and what each
//! layer holds (connections, windows to inflate into, files) would add up without this.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Layers of all pulls at once; what they hold stays below some hundred megabytes, and any link is full long before.
const STREAMS_MAX: usize = crate::unpack::LAYERS_MAX;
/// Those of one registry: one that has stalled leaves room for the others.
const PER_REGISTRY_MAX: usize = 48;

/// The places there are.
#[derive(Debug)]
pub(super) struct Streams {
    all: Arc<Semaphore>,
    by_registry: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Stream {
    _of_registry: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Streams {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(STREAMS_MAX)), by_registry: Mutex::default() }
    }
}

impl Streams {
    /// Waits for a place, behind those who came before.
    pub(super) async fn place(&self, registry: &str) -> Stream {
        const OPEN: &str = "nobody closes it";
        let of_registry = self.of(registry).acquire_owned().await.expect(OPEN);
        let of_all = Arc::clone(&self.all).acquire_owned().await.expect(OPEN);
        Stream { _of_registry: of_registry, _of_all: of_all }
    }

    /// Who holds or waits for a place of it keeps it; one that nobody asks is forgotten.
    fn of(&self, registry: &str) -> Arc<Semaphore> {
        let mut known = self.by_registry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(semaphore) = known.get(registry).and_then(Weak::upgrade) {
            return semaphore;
        }
        known.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(PER_REGISTRY_MAX));
        known.insert(registry.to_owned(), Arc::downgrade(&semaphore));
        semaphore
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    // Without a runtime: in one, a task that does not pause is soon told to wait for anything.
    #[test]
    fn one_registry_leaves_places_to_the_others_and_all_together_keep_to_the_bound() {
        let streams = Streams::default();
        let mut held = Vec::new();
        while let Some(place) = streams.place("stalled.test").now_or_never() {
            held.push(place);
        }
        assert_eq!(held.len(), PER_REGISTRY_MAX);
        for number in 0.. {
            let Some(place) = streams.place(&format!("registry{number}.test")).now_or_never() else { break };
            held.push(place);
        }
        assert_eq!(held.len(), STREAMS_MAX);
        held.pop();
        assert!(streams.place("another.test").now_or_never().is_some());
        drop(held);
        assert!(streams.place("stalled.test").now_or_never().is_some());
        assert_eq!(streams.by_registry.lock().unwrap().len(), 1, "registries that nobody asks are forgotten");
    }
}
