//! A cache that a watch fills and another task reads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::ObjectCache;

/// Clones are the same cache.
#[derive(Debug)]
pub(crate) struct SharedCache<C> {
    /// With whether the objects were listed.
    cache: Arc<Mutex<(C, bool)>>,
    changed: Arc<Notify>,
}

impl<C> SharedCache<C> {
    /// A cache that wakes the reader of `changed`.
    pub(crate) fn new(cache: C, changed: &Arc<Notify>) -> Self {
        Self { cache: Arc::new(Mutex::new((cache, false))), changed: Arc::clone(changed) }
    }

    /// The cache was listed or changed.
    pub(crate) fn publish(&self) {
        self.lock().1 = true;
        self.changed.notify_one();
    }

    /// The cache; `None`: the objects are not listed yet.
    pub(crate) fn listed(&self) -> Option<MutexGuard<'_, (C, bool)>> {
        Some(self.lock()).filter(|cache| cache.1)
    }

    fn lock(&self) -> MutexGuard<'_, (C, bool)> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Clone for SharedCache<C> {
    fn clone(&self) -> Self {
        Self { cache: Arc::clone(&self.cache), changed: Arc::clone(&self.changed) }
    }
}

impl<C: ObjectCache> ObjectCache for SharedCache<C> {
    type Object = C::Object;

    fn replace(&mut self, objects: Vec<C::Object>) {
        self.lock().0.replace(objects);
    }

    fn change(&mut self, object: &C::Object) -> bool {
        self.lock().0.change(object)
    }

    fn remove(&mut self, object: &C::Object) -> bool {
        self.lock().0.remove(object)
    }
}
