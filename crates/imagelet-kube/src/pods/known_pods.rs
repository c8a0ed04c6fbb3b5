//! The pods of the node from the watch: the images that each pod waits for, and the end of each pod.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::SystemTime,
};

use imagelet_core::{
    image::ByteSize,
    manager::{PodChanges, PodEnd},
};
use kube::runtime::watcher::Event;

use super::{BoundPod, IMAGES_MAX, PODS_MAX, PodObject, StartTracker, bound_pod, pod_end};
use crate::metadata::LABELS_LENGTH_MAX;

/// Pods by `NAMESPACE/NAME`. Finished and deleted pods, and pods that are being deleted, are absent.
#[derive(Debug)]
pub(crate) struct KnownPods {
    pods: BTreeMap<String, Arc<BoundPod>>,
    listing: BTreeMap<String, Arc<BoundPod>>,
    /// Whether more than `PODS_MAX` pods were received since the last list began.
    is_cut: bool,
    ended: Vec<(Arc<str>, PodEnd)>,
    starts: StartTracker,
}

impl KnownPods {
    pub(crate) fn new(starts: StartTracker) -> Self {
        Self { pods: BTreeMap::new(), listing: BTreeMap::new(), is_cut: false, ended: Vec::new(), starts }
    }

    /// Returns whether the event changes pods, labels or awaited images, or ends a pod. The end of a list is a change.
    pub(crate) fn take(&mut self, event: Event<PodObject>) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                // The next list repeats the ended pods of an interrupted list.
                self.ended.clear();
                self.is_cut = false;
            }
            Event::InitApply(object) => {
                self.end(&object, pod_end(&object));
                if let Some(pod) = self.read(&object) {
                    insert(&mut self.listing, pod, &mut self.is_cut);
                }
            }
            Event::InitDone => {
                let known = std::mem::replace(&mut self.pods, std::mem::take(&mut self.listing));
                let listed: HashSet<&str> = self.pods.values().map(|pod| &*pod.identity.uid).collect();
                self.starts.retain(&listed);
                // A pod beyond `PODS_MAX` is absent from the list and may still be on the node.
                if !self.is_cut {
                    let uids = known.values().map(|pod| &pod.identity.uid).filter(|uid| !listed.contains(&***uid));
                    self.ended.extend(uids.map(|uid| (Arc::clone(uid), PodEnd::Removed)));
                }
                return true;
            }
            Event::Apply(object) => {
                let has_ended = self.end(&object, pod_end(&object));
                return self.change(&object) || has_ended;
            }
            Event::Delete(object) => {
                self.end(&object, pod_end(&object).or(Some(PodEnd::Removed)));
                self.remove(&object);
                return true;
            }
        }
        false
    }

    /// A pod ends by the phase or deletion time of its object, by the deletion of the object, or by a complete list
    /// without the pod. A failed list and an unreachable API server end no pod. The object of a static pod is a mirror
    /// with another uid, so its end does not end the static pod.
    pub(crate) fn take_changes(&mut self) -> PodChanges {
        PodChanges {
            ended: std::mem::take(&mut self.ended),
            alive: self.pods.values().map(|pod| Arc::clone(&pod.identity.uid)).collect(),
            waiting: self.pods.values().filter_map(|pod| pod.waiting()).collect(),
        }
    }

    fn end(&mut self, object: &PodObject, end: Option<PodEnd>) -> bool {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        self.ended.extend(end.map(|end| (uid.into(), end)));
        end.is_some()
    }

    fn change(&mut self, object: &PodObject) -> bool {
        let Some(pod) = self.read(object) else { return self.remove(object) };
        let is_same = |old: &Arc<BoundPod>| {
            old.identity == pod.identity && old.labels == pod.labels && old.waiting() == pod.waiting()
        };
        let is_changed = !self.pods.get(&pod.full_name()).is_some_and(is_same);
        insert(&mut self.pods, pod, &mut self.is_cut);
        is_changed
    }

    /// Removes a pod. Returns whether it was known: a known pod may have fetches, even if all its containers exist.
    fn remove(&mut self, object: &PodObject) -> bool {
        self.starts.forget(object);
        self.pods.remove(&object.full_name()).is_some()
    }

    pub(crate) fn all(&self) -> Vec<Arc<BoundPod>> {
        self.pods.values().cloned().collect()
    }

    fn read(&mut self, object: &PodObject) -> Option<BoundPod> {
        let pod = bound_pod(object)?;
        self.starts.observe(object, SystemTime::now());
        // Each update of a pod repeats these values, so only a change is logged.
        let (name, images) = (pod.full_name(), pod.left_out);
        let before = self.pods.get(&name);
        if images > 0 && before.is_none_or(|before| before.left_out != images) {
            tracing::warn!(pod = name, images, "passing over images of a pod beyond the limit of {IMAGES_MAX}");
        }
        if pod.labels.is_none() && before.is_none_or(|before| before.labels.is_some()) {
            let max = ByteSize(LABELS_LENGTH_MAX as u64);
            tracing::warn!(pod = name, "the labels of a pod are longer than {max}; no `podSelector` matches the pod");
        }
        Some(pod)
    }
}

fn insert(pods: &mut BTreeMap<String, Arc<BoundPod>>, pod: BoundPod, is_cut: &mut bool) {
    let name = pod.full_name();
    if pods.len() < PODS_MAX || pods.contains_key(&name) {
        pods.insert(name, Arc::new(pod));
    } else if !std::mem::replace(is_cut, true) {
        tracing::warn!(pod = name, "the node has more than {PODS_MAX} pods; the images of further pods are not leased");
    }
}
