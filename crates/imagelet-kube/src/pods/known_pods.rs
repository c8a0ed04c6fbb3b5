//! The pods of the node as received by the watch, limited in number, and the images that each pod waits for.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use imagelet_core::{image::ByteSize, inventory::WaitingPod};
use kube::runtime::watcher::Event;

use crate::metadata::LABELS_LENGTH_MAX;

use super::{BoundPod, IMAGES_MAX, PODS_MAX, PodObject, StartTracker, bound_pod};

/// By `NAMESPACE/NAME`. Finished and deleted pods, and pods that are being deleted, are absent.
#[derive(Debug)]
pub(crate) struct KnownPods {
    pods: BTreeMap<String, Arc<BoundPod>>,
    /// The pods of a list that is being received.
    listing: BTreeMap<String, Arc<BoundPod>>,
    /// There were more pods than the limit.
    is_cut: bool,
    starts: StartTracker,
}

impl KnownPods {
    /// Starts without pods. The start of each pod is measured.
    pub(crate) fn new(starts: StartTracker) -> Self {
        Self { pods: BTreeMap::new(), listing: BTreeMap::new(), is_cut: false, starts }
    }

    /// Returns whether the awaited images, the pods or their labels changed. Always true at the end of a list.
    pub(crate) fn take(&mut self, event: Event<PodObject>) -> bool {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(object) => {
                if let Some(pod) = self.read(&object) {
                    insert(&mut self.listing, pod, &mut self.is_cut);
                }
            }
            Event::InitDone => {
                self.pods = std::mem::take(&mut self.listing);
                self.starts.retain(&self.pods.values().map(|pod| &*pod.identity.uid).collect());
                return true;
            }
            Event::Apply(object) => return self.change(&object),
            Event::Delete(object) => return self.remove(&object),
        }
        false
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

    /// Returns whether the pod was known: there may be fetches for it, even if all its containers exist.
    fn remove(&mut self, object: &PodObject) -> bool {
        self.starts.forget(object);
        self.pods.remove(&object.full_name()).is_some()
    }

    pub(crate) fn all(&self) -> Vec<Arc<BoundPod>> {
        self.pods.values().cloned().collect()
    }

    pub(crate) fn waiting(&self) -> Vec<WaitingPod> {
        self.pods.values().filter_map(|pod| pod.waiting()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    /// The pod's images. `None`: the pod needs no image any more.
    fn read(&mut self, object: &PodObject) -> Option<BoundPod> {
        let pod = bound_pod(object)?;
        self.starts.observe(object, SystemTime::now());
        // Each update of a pod has them again.
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
