//! The sets from the watches, and which of them have a place.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use imagelet_core::lock::locked;
use kube::{
    Client,
    runtime::watcher::{self, Event},
};
use tokio::sync::Notify;

use super::{
    REPORTED_SETS_MAX,
    image_set::{ImageSet, SetName, SetObject},
    set_spec::SetScope,
};
use crate::watch::follow;

const PAGE_SETS: u32 = 100;
pub(super) const SETS_MAX: usize = 1000;
pub(super) const SETS_OF_NAMESPACE_MAX: usize = 100;
/// Maximum known sets of each kind. A set without a place gets a place when one is free.
const KNOWN_MAX: usize = 4 * SETS_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetLimit {
    /// Older sets of the same namespace use all places of the namespace.
    OfNamespace,
    Total,
    /// Nodes fetch the set, but the report of at least one node is full.
    Report,
}

impl SetLimit {
    pub(crate) fn texts(self) -> (&'static str, String) {
        match self {
            Self::OfNamespace => (
                "NamespaceLimit",
                format!("no node fetches the set: {SETS_OF_NAMESPACE_MAX} older sets of its namespace are the limit"),
            ),
            Self::Total => ("TotalLimit", format!("no node fetches the set: {SETS_MAX} other sets are the limit")),
            Self::Report => (
                "ReportLimit",
                format!("the report of a selected node has {REPORTED_SETS_MAX} other sets, which is the limit"),
            ),
        }
    }
}

type SetMap = BTreeMap<SetName, ImageSet>;

/// The sets of one kind. Invalid sets and sets that are being deleted are absent.
#[derive(Debug, Default)]
pub(crate) struct KnownSets {
    sets: SetMap,
    listing: SetMap,
    is_listed: bool,
}

impl KnownSets {
    /// The sets in the order of their places. Each set has the limit that it exceeds, if any.
    ///
    /// The oldest set of each namespace is first, then the second oldest of each. A namespace with many sets takes no
    /// places of other namespaces, and a new set takes no place of an older set in its namespace.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (&ImageSet, Option<SetLimit>)> {
        placed(&self.sets).take(KNOWN_MAX)
    }

    /// Applies an event. Returns whether the sets changed. The end of a list always returns true.
    fn take(&mut self, event: Event<SetObject>, scope: SetScope) -> bool {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(object) => {
                apply(&mut self.listing, &object, scope);
            }
            Event::InitDone => {
                (self.sets, self.is_listed) = (std::mem::take(&mut self.listing), true);
                return true;
            }
            Event::Apply(object) => return apply(&mut self.sets, &object, scope),
            Event::Delete(object) => return self.sets.remove(&object.name(scope)).is_some(),
        }
        false
    }
}

fn apply(sets: &mut SetMap, object: &SetObject, scope: SetScope) -> bool {
    let name = object.name(scope);
    let set = object.read(scope).unwrap_or_else(|error| {
        tracing::warn!(set = crate::names::shown(&name.to_string()), %error, "passing over an invalid set");
        None
    });
    let Some(set) = set else { return sets.remove(&name).is_some() };
    if sets.get(&name) == Some(&set) {
        return false;
    }
    sets.insert(name, set);
    if sets.len() > 2 * KNOWN_MAX {
        let beyond: Vec<SetName> = placed(sets).skip(KNOWN_MAX).map(|(set, _)| set.name.clone()).collect();
        for name in beyond {
            sets.remove(&name);
        }
    }
    true
}

fn placed(sets: &SetMap) -> impl Iterator<Item = (&ImageSet, Option<SetLimit>)> {
    let mut by_age: Vec<&ImageSet> = sets.values().collect();
    by_age.sort_by(|a, b| (&a.created_at, &a.name).cmp(&(&b.created_at, &b.name)));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, &ImageSet)> = Vec::with_capacity(by_age.len());
    for set in by_age {
        let count = counts.entry(&set.name.namespace).or_default();
        ranked.push((*count, set));
        *count += usize::from(set.name.scope == SetScope::Namespace);
    }
    // The sort is stable, so the oldest set of each rank is first.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().enumerate().map(|(place, (rank, set))| match () {
        () if rank >= SETS_OF_NAMESPACE_MAX => (set, Some(SetLimit::OfNamespace)),
        () if place >= SETS_MAX => (set, Some(SetLimit::Total)),
        () => (set, None),
    })
}

#[derive(Debug, Default)]
pub(crate) struct SharedSets(Mutex<[KnownSets; 2]>);

impl SharedSets {
    pub(crate) async fn follow(&self, client: &Client, changed: &Notify) {
        let follow = async |name, scope, place: usize| {
            let take = |event| {
                if locked(&self.0)[place].take(event, scope) {
                    changed.notify_one();
                }
            };
            let config = watcher::Config::default().page_size(PAGE_SETS);
            follow::<SetObject>(name, client, &scope, config, Arc::default(), take).await;
        };
        tokio::join!(
            follow("image sets of the cluster", SetScope::Cluster, 0),
            follow("image sets", SetScope::Namespace, 1),
        );
    }

    pub(crate) fn listed(&self) -> Option<MutexGuard<'_, [KnownSets; 2]>> {
        Some(locked(&self.0)).filter(|sets| sets.iter().all(|sets| sets.is_listed))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    /// So many sets of a namespace, created one second after the other from this second of the hour on.
    fn sets(namespace: &str, count: usize, from: usize) -> Vec<SetObject> {
        let set = |at: usize| {
            let second = from + at;
            let metadata = json!({
                "namespace": namespace, "name": format!("set-{at:04}"), "uid": format!("{namespace}-{at}"),
                "creationTimestamp": format!("2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60),
            });
            from_value(json!({"metadata": metadata, "spec": {"images": [{"reference": "app:v1"}]}})).unwrap()
        };
        (0..count).map(set).collect()
    }

    fn known(scope: SetScope, namespaces: &[(&str, usize, usize)]) -> KnownSets {
        let mut known = KnownSets::default();
        for object in namespaces.iter().flat_map(|(name, count, from)| sets(name, *count, *from)) {
            known.take(Event::InitApply(object), scope);
        }
        known.take(Event::InitDone, scope);
        known
    }

    /// Sets of a namespace that are fetched, and those beyond the limits of the namespace and of all.
    fn counts(known: &KnownSets, namespace: &str) -> [usize; 3] {
        let count = |wanted: Option<SetLimit>| {
            known.placed().filter(|(set, limit)| set.name.namespace == namespace && *limit == wanted).count()
        };
        [None, Some(SetLimit::OfNamespace), Some(SetLimit::Total)].map(count)
    }

    fn fetched(known: &KnownSets) -> impl Iterator<Item = &ImageSet> {
        known.placed().filter(|(_, limit)| limit.is_none()).map(|(set, _)| set)
    }

    #[test]
    fn a_namespace_with_many_sets_takes_no_place_of_another_one() {
        for (namespaces, expected) in [
            // All at once, older, and of a name that sorts first.
            (&[("a", 1000, 0), ("z", 3, 2000)][..], &[("a", [100, 900, 0]), ("z", [3, 0, 0])][..]),
            (&[("a", 100, 0), ("z", 101, 0)], &[("a", [100, 0, 0]), ("z", [100, 1, 0])]),
            (&[("a", 3000, 0), ("b", 1000, 0), ("c", 500, 0)], &[("a", [100, 2400, 0]), ("b", [100, 900, 0])]),
        ] {
            let known = known(SetScope::Namespace, namespaces);
            for (namespace, counts_expected) in expected {
                assert_eq!(counts(&known, namespace), *counts_expected, "{namespace} of {namespaces:?}");
            }
            assert!(known.placed().count() <= KNOWN_MAX);
        }
        let names: Vec<String> = (0..20).map(|at| format!("n{at:02}")).collect();
        let mut many: Vec<(&str, usize, usize)> = names.iter().map(|name| (name.as_str(), 100, 0)).collect();
        many.push(("zoo", 7, 3000));
        let known = known(SetScope::Namespace, &many);
        assert_eq!(
            counts(&known, "zoo"),
            [7, 0, 0],
            "the last namespace has its places although all others wait for some"
        );
        assert_eq!(counts(&known, "n00"), [50, 0, 50]);
        assert_eq!(fetched(&known).count(), SETS_MAX);
        let first: Vec<&str> = fetched(&known).take(21).map(|set| set.name.namespace.as_str()).collect();
        assert_eq!((first[0], first[19], first[20]), ("n00", "n19", "zoo"), "the first of each namespace");
    }

    #[test]
    fn sets_of_the_cluster_have_the_limit_of_all_alone() {
        assert_eq!(counts(&known(SetScope::Cluster, &[("", 1200, 0)]), ""), [1000, 0, 200]);
    }

    #[test]
    fn a_new_set_takes_no_place_of_an_older_one_and_gets_the_place_of_one_that_goes() {
        let mut known = known(SetScope::Namespace, &[("a", 100, 10)]);
        let names = |known: &KnownSets| fetched(known).map(|set| set.name.name.clone()).collect::<Vec<_>>();
        let before = names(&known);
        let mut later = sets("a", 1, 3000).remove(0);
        later.metadata.name = Some("another".to_owned());
        assert!(known.take(Event::Apply(later.clone()), SetScope::Namespace));
        assert_eq!((names(&known), counts(&known, "a")), (before, [100, 1, 0]));
        assert!(!known.take(Event::Apply(later), SetScope::Namespace), "it is known");
        assert!(known.take(Event::Delete(sets("a", 1, 10).remove(0)), SetScope::Namespace));
        assert_eq!(names(&known).last().map(String::as_str), Some("another"));
        assert_eq!(counts(&known, "a"), [100, 0, 0]);
    }
}
