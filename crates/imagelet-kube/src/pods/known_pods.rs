//! The pods of the node as the watch knows them: bounded, and with the images that each waits for.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use imagelet_core::inventory::WaitingPod;

use super::{BoundPod, PODS_MAX, PodObject, StartTracker, bound_pod};
use crate::watch::ObjectCache;

/// By `NAMESPACE/NAME`; finished pods and those being deleted are absent.
#[derive(Debug, Default)]
pub(crate) struct KnownPods {
    pods: BTreeMap<String, Arc<BoundPod>>,
    /// The last list was longer than the limit.
    is_cut: bool,
    starts: Option<StartTracker>,
}

impl ObjectCache for KnownPods {
    type Object = PodObject;

    fn replace(&mut self, objects: Vec<PodObject>) {
        let old = std::mem::take(&mut self.pods);
        if let Some(starts) = &mut self.starts {
            starts.retain(&objects);
        }
        for object in &objects {
            let Some(pod) = self.read(object) else { continue };
            warn_of_new(&pod, old.get(&pod.full_name()).map(AsRef::as_ref));
            self.insert(pod);
        }
    }

    /// Returns whether other images are awaited than before, or for another pod.
    fn change(&mut self, object: &PodObject) -> bool {
        let Some(pod) = self.read(object) else { return self.remove(object) };
        let old = self.pods.get(&pod.full_name()).map(AsRef::as_ref);
        warn_of_new(&pod, old);
        let is_changed =
            old.and_then(BoundPod::waiting) != pod.waiting() || old.is_some_and(|old| old.identity != pod.identity);
        self.insert(pod);
        is_changed
    }

    /// Returns whether it was known: a pod with all its containers has fetches on record.
    fn remove(&mut self, object: &PodObject) -> bool {
        if let Some(starts) = &mut self.starts {
            starts.forget(object);
        }
        self.pods.remove(&object.full_name()).is_some()
    }
}

impl KnownPods {
    /// No pods yet; the start of each is measured.
    pub(crate) fn measured(starts: StartTracker) -> Self {
        Self { starts: Some(starts), ..Self::default() }
    }

    pub(crate) fn all(&self) -> Vec<Arc<BoundPod>> {
        self.pods.values().cloned().collect()
    }

    /// The pods that wait, with their images.
    pub(crate) fn waiting(&self) -> Vec<WaitingPod> {
        self.pods.values().filter_map(|pod| pod.waiting()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    /// What the pod says about images; `None`: it is finished, being deleted, or no pod.
    fn read(&mut self, object: &PodObject) -> Option<BoundPod> {
        let pod = bound_pod(object).unwrap_or_else(|error| {
            tracing::warn!(%error, "passing over a pod");
            None
        })?;
        if let Some(starts) = &mut self.starts {
            starts.observe(object, SystemTime::now());
        }
        Some(pod)
    }

    fn insert(&mut self, pod: BoundPod) {
        let name = pod.full_name();
        if self.pods.len() >= PODS_MAX && !self.pods.contains_key(&name) {
            if !std::mem::replace(&mut self.is_cut, true) {
                tracing::warn!(
                    pod = name,
                    "the node has more than {PODS_MAX} pods; the images of further pods are not leased"
                );
            }
            return;
        }
        self.pods.insert(name, Arc::new(pod));
    }
}

/// Each update of a pod has its invalid names again.
fn warn_of_new(pod: &BoundPod, before: Option<&BoundPod>) {
    if before.is_some_and(|before| before.passed_over == pod.passed_over) {
        return;
    }
    for why in &pod.passed_over {
        tracing::warn!(pod = pod.full_name(), why, "passing over an image of a pod");
    }
}
