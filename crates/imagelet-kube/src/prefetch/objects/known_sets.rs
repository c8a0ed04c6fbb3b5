//! The sets of one kind as a watch knows them.

use std::collections::BTreeMap;

use super::{
    SETS_MAX,
    image_set::{ImageSet, SetObject},
    set_scope::SetScope,
};
use crate::watch::ObjectCache;

/// By namespace and name; invalid sets and those being deleted are absent.
#[derive(Debug)]
pub(crate) struct KnownSets {
    scope: SetScope,
    sets: BTreeMap<(String, String), ImageSet>,
    /// The limit was reached before.
    is_cut: bool,
}

impl KnownSets {
    pub(crate) fn new(scope: SetScope) -> Self {
        Self { scope, sets: BTreeMap::new(), is_cut: false }
    }

    pub(crate) fn sets(&self) -> impl Iterator<Item = &ImageSet> {
        self.sets.values()
    }

    fn insert(&mut self, object: &SetObject) -> bool {
        let key = key(object);
        let set = match ImageSet::read(object, self.scope) {
            Ok(Some(set)) => set,
            Ok(None) => return self.sets.remove(&key).is_some(),
            Err(error) => {
                let (kind, name) = (self.scope.kind(), crate::names::shown(&format!("{}/{}", key.0, key.1)));
                tracing::warn!(kind, name, %error, "passing over an invalid set");
                return self.sets.remove(&key).is_some();
            }
        };
        if self.sets.len() >= SETS_MAX && !self.sets.contains_key(&key) {
            if !std::mem::replace(&mut self.is_cut, true) {
                let kind = self.scope.kind();
                tracing::warn!(kind, set = %set.name, "there are more than {SETS_MAX} sets; further ones are ignored");
            }
            return false;
        }
        self.sets.insert(key, set.clone()) != Some(set)
    }
}

impl ObjectCache for KnownSets {
    type Object = SetObject;

    fn replace(&mut self, objects: Vec<SetObject>) {
        self.sets.clear();
        for object in &objects {
            self.insert(object);
        }
    }

    fn change(&mut self, object: &SetObject) -> bool {
        self.insert(object)
    }

    fn remove(&mut self, object: &SetObject) -> bool {
        self.sets.remove(&key(object)).is_some()
    }
}

fn key(object: &SetObject) -> (String, String) {
    (object.metadata.namespace.clone(), object.metadata.name.clone())
}
