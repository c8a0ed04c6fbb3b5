//! The sets of one kind as a watch knows them, and which of them have a place.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client,
    runtime::watcher::{self, Event},
};
use tokio::sync::Notify;

use super::{
    REPORTED_SETS_MAX,
    image_set::{ImageSet, SetObject},
    set_scope::SetScope,
};
use crate::watch::{WatchHealth, follow};

/// Sets of one page of a list.
const PAGE_SETS: u32 = 100;
/// Most sets of each kind that are fetched.
pub(super) const SETS_MAX: usize = 1000;
/// Most sets of one namespace that are fetched.
pub(super) const SETS_OF_NAMESPACE_MAX: usize = 100;
/// Most sets of each kind that are known, to get a place when one is free.
const KNOWN_MAX: usize = 4 * SETS_MAX;

/// The limit that a set is beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetLimit {
    /// Older sets of its namespace have all places of the namespace.
    OfNamespace,
    /// Other sets have all places.
    Total,
    /// Nodes fetch it, and the reports of so many are full.
    Report(usize),
}

impl SetLimit {
    /// The reason of the condition.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::OfNamespace => "NamespaceLimit",
            Self::Total => "TotalLimit",
            Self::Report(_) => "ReportLimit",
        }
    }

    /// Whether nodes pass over the set.
    pub(crate) fn is_passed_over(self) -> bool {
        !matches!(self, Self::Report(_))
    }
}

impl fmt::Display for SetLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfNamespace => {
                write!(f, "no node fetches the set: {SETS_OF_NAMESPACE_MAX} older sets of its namespace are the limit")
            }
            Self::Total => write!(f, "no node fetches the set: {SETS_MAX} other sets are the limit"),
            Self::Report(1) => write!(f, "the report of 1 node has {REPORTED_SETS_MAX} other sets, which is the limit"),
            Self::Report(nodes) => {
                write!(f, "the reports of {nodes} nodes have {REPORTED_SETS_MAX} other sets, which is the limit")
            }
        }
    }
}

type SetKey = (String, String);

/// By namespace and name; invalid sets and those being deleted are absent.
#[derive(Debug)]
pub(crate) struct KnownSets {
    scope: SetScope,
    sets: BTreeMap<SetKey, ImageSet>,
    /// The sets of a list that is being read.
    listing: BTreeMap<SetKey, ImageSet>,
    is_listed: bool,
    /// In the order of [`places`].
    places: Vec<(SetKey, Option<SetLimit>)>,
}

impl KnownSets {
    pub(crate) fn new(scope: SetScope) -> Self {
        Self { scope, sets: BTreeMap::new(), listing: BTreeMap::new(), is_listed: false, places: Vec::new() }
    }

    /// The sets that are fetched, in the order of their places.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &ImageSet> {
        self.all().filter(|(_, limit)| limit.is_none()).map(|(set, _)| set)
    }

    /// All sets in the order of their places, with the limit that each is beyond.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&ImageSet, Option<SetLimit>)> {
        self.places.iter().filter_map(|(key, limit)| Some((self.sets.get(key)?, *limit)))
    }

    /// Returns whether that makes a difference; a list always does.
    fn take(&mut self, event: Event<SetObject>) -> bool {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(object) => {
                if let Some(set) = self.read(&object) {
                    self.listing.insert(key(&object), set);
                    if self.listing.len() > 2 * KNOWN_MAX {
                        places(self.scope, &mut self.listing);
                    }
                }
            }
            Event::InitDone => {
                self.sets = std::mem::take(&mut self.listing);
                self.is_listed = true;
                self.arrange();
                return true;
            }
            Event::Apply(object) => return self.change(&object),
            Event::Delete(object) => return self.remove(&object),
        }
        false
    }

    fn change(&mut self, object: &SetObject) -> bool {
        let Some(set) = self.read(object) else { return self.remove(object) };
        let before = self.sets.insert(key(object), set.clone());
        if before.as_ref().is_none_or(|before| before.created_at != set.created_at) {
            self.arrange();
        }
        before != Some(set)
    }

    fn remove(&mut self, object: &SetObject) -> bool {
        let is_there = self.sets.remove(&key(object)).is_some();
        if is_there {
            self.arrange();
        }
        is_there
    }

    /// The set; `None`: it is invalid or being deleted.
    fn read(&self, object: &SetObject) -> Option<ImageSet> {
        ImageSet::read(object, self.scope).unwrap_or_else(|error| {
            let (namespace, name) = key(object);
            let (kind, name) = (self.scope.kind(), crate::names::shown(&format!("{namespace}/{name}")));
            tracing::warn!(kind, name, %error, "passing over an invalid set");
            None
        })
    }

    fn arrange(&mut self) {
        let is_beyond = |places: &[(SetKey, Option<SetLimit>)]| places.iter().any(|(_, limit)| limit.is_some());
        let was_beyond = is_beyond(&self.places);
        self.places = places(self.scope, &mut self.sets);
        if let Some((key, Some(limit))) = self.places.iter().find(|(_, limit)| limit.is_some())
            && !was_beyond
        {
            let (kind, name) = (self.scope.kind(), format!("{}/{}", key.0, key.1));
            tracing::warn!(kind, name, %limit, "there are sets beyond a limit");
        }
    }
}

/// The order in which sets get a place, and the limit that each is beyond. Sets beyond the last place are dropped.
///
/// First the oldest of each namespace, then the second of each: a namespace with many sets takes places of no other one, and
/// a new set takes none of an older set of its namespace.
fn places(scope: SetScope, sets: &mut BTreeMap<SetKey, ImageSet>) -> Vec<(SetKey, Option<SetLimit>)> {
    let mut by_age: Vec<(&SetKey, &ImageSet)> = sets.iter().collect();
    by_age.sort_by_key(|(key, set)| (set.created_at, *key));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, &SetKey)> = Vec::with_capacity(by_age.len());
    for (key, _) in by_age {
        let count = counts.entry(&key.0).or_default();
        ranked.push((*count, key));
        *count += usize::from(scope == SetScope::Namespace);
    }
    // A stable sort: of one rank the oldest is first.
    ranked.sort_by_key(|(rank, _)| *rank);
    let limit = |place: usize, rank: usize| match () {
        () if rank >= SETS_OF_NAMESPACE_MAX => Some(SetLimit::OfNamespace),
        () if place >= SETS_MAX => Some(SetLimit::Total),
        () => None,
    };
    let ranked = ranked.into_iter().enumerate().map(|(place, (rank, key))| (key.clone(), limit(place, rank)));
    let mut places: Vec<(SetKey, Option<SetLimit>)> = ranked.collect();
    for (key, _) in places.drain(places.len().min(KNOWN_MAX)..) {
        sets.remove(&key);
    }
    places
}

fn key(object: &SetObject) -> SetKey {
    let ObjectMeta { namespace, name, .. } = &object.metadata;
    (namespace.clone().unwrap_or_default(), name.clone().unwrap_or_default())
}

/// The sets of both kinds, which two watches fill and another task reads.
#[derive(Debug)]
pub(crate) struct SharedSets {
    /// In the order of [`SetScope::ALL`].
    sets: [Mutex<KnownSets>; 2],
}

impl SharedSets {
    pub(crate) fn new() -> Self {
        Self { sets: SetScope::ALL.map(|scope| Mutex::new(KnownSets::new(scope))) }
    }

    /// Follows both kinds for as long as this future lives, and wakes the reader of `changed`.
    pub(crate) async fn follow(&self, client: &Client, changed: &Notify) {
        let [of_namespaces, of_cluster] = &self.sets;
        let follow = async |name, scope, sets: &Mutex<KnownSets>| {
            let take = |event| {
                if lock(sets).take(event) {
                    changed.notify_one();
                }
            };
            let config = watcher::Config::default().page_size(PAGE_SETS);
            follow::<SetObject>(name, client, &scope, config, &Arc::new(WatchHealth::unmeasured()), take).await;
        };
        tokio::join!(
            follow("image sets", SetScope::Namespace, of_namespaces),
            follow("image sets of the cluster", SetScope::Cluster, of_cluster),
        );
    }

    /// The sets of the cluster and those of namespaces; `None`: not all are listed yet.
    pub(crate) fn listed(&self) -> Option<[MutexGuard<'_, KnownSets>; 2]> {
        let [of_namespaces, of_cluster] = self.sets.each_ref().map(lock);
        (of_namespaces.is_listed && of_cluster.is_listed).then_some([of_cluster, of_namespaces])
    }
}

fn lock(sets: &Mutex<KnownSets>) -> MutexGuard<'_, KnownSets> {
    sets.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut known = KnownSets::new(scope);
        for object in namespaces.iter().flat_map(|(name, count, from)| sets(name, *count, *from)) {
            known.take(Event::InitApply(object));
        }
        known.take(Event::InitDone);
        known
    }

    /// Sets of a namespace that are fetched, and those beyond the limits of the namespace and of all.
    fn counts(known: &KnownSets, namespace: &str) -> [usize; 3] {
        let count = |wanted: Option<SetLimit>| {
            known.all().filter(|(set, limit)| set.name.namespace == namespace && *limit == wanted).count()
        };
        [None, Some(SetLimit::OfNamespace), Some(SetLimit::Total)].map(count)
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
            assert!(known.all().count() <= KNOWN_MAX);
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
        assert_eq!(known.sets().count(), SETS_MAX);
        let first: Vec<&str> = known.sets().take(21).map(|set| set.name.namespace.as_str()).collect();
        assert_eq!((first[0], first[19], first[20]), ("n00", "n19", "zoo"), "the first of each namespace");
    }

    #[test]
    fn sets_of_the_cluster_have_the_limit_of_all_alone() {
        assert_eq!(counts(&known(SetScope::Cluster, &[("", 1200, 0)]), ""), [1000, 0, 200]);
    }

    #[test]
    fn a_new_set_takes_no_place_of_an_older_one_and_gets_the_place_of_one_that_goes() {
        let mut known = known(SetScope::Namespace, &[("a", 100, 10)]);
        let names = |known: &KnownSets| known.sets().map(|set| set.name.name.clone()).collect::<Vec<_>>();
        let before = names(&known);
        let mut later = sets("a", 1, 3000).remove(0);
        later.metadata.name = Some("another".to_owned());
        assert!(known.change(&later));
        assert_eq!((names(&known), counts(&known, "a")), (before, [100, 1, 0]));
        assert!(!known.change(&later), "it is known");
        assert!(known.remove(&sets("a", 1, 10).remove(0)));
        assert_eq!(names(&known).last().map(String::as_str), Some("another"));
        assert_eq!(counts(&known, "a"), [100, 0, 0]);
    }
}
