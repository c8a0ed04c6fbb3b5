//! The pods of the node as the watch knows them: bounded, and with the images that each waits for.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use imagelet_core::inventory::WaitingPod;
use kube::runtime::watcher::Event;

use super::{BoundPod, IMAGES_MAX, PODS_MAX, PodObject, StartTracker, bound_pod};

/// By `NAMESPACE/NAME`; finished pods and those being deleted are absent.
#[derive(Debug)]
pub(crate) struct KnownPods {
    pods: BTreeMap<String, Arc<BoundPod>>,
    /// The pods of a list that is being read.
    listing: BTreeMap<String, Arc<BoundPod>>,
    /// There were more pods than the limit.
    is_cut: bool,
    starts: StartTracker,
}

impl KnownPods {
    /// No pods yet; the start of each is measured.
    pub(crate) fn new(starts: StartTracker) -> Self {
        Self { pods: BTreeMap::new(), listing: BTreeMap::new(), is_cut: false, starts }
    }

    /// Returns whether other images are awaited than before, or for another pod; after a list always.
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
        let old = self.pods.get(&pod.full_name());
        let is_changed =
            old.and_then(|old| old.waiting()) != pod.waiting() || old.is_some_and(|old| old.identity != pod.identity);
        insert(&mut self.pods, pod, &mut self.is_cut);
        is_changed
    }

    /// Returns whether it was known: a pod with all its containers has fetches on record.
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

    /// What the pod says about images; `None`: it needs none any more.
    fn read(&mut self, object: &PodObject) -> Option<BoundPod> {
        let pod = bound_pod(object)?;
        self.starts.observe(object, SystemTime::now());
        // Each update of a pod has them again.
        if pod.left_out > 0 && self.pods.get(&pod.full_name()).is_none_or(|before| before.left_out != pod.left_out) {
            let (name, images) = (pod.full_name(), pod.left_out);
            tracing::warn!(pod = name, images, "passing over images of a pod beyond the limit of {IMAGES_MAX}");
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
