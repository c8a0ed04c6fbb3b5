//! The images of a pod object: a pure function, and its result type.

mod known_pods;
mod object;
mod start_latency;
mod waits;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imagelet_core::{
    events::PodIdentity,
    image::{Reference, shown_name},
    inventory::WaitingPod,
    manager::{PodEnd, PodRole, PullPolicy},
};

use tokio::sync::watch;

pub(crate) use known_pods::KnownPods;
pub(crate) use object::PodObject;
use object::{ContainerSpec, state_of};
pub(crate) use start_latency::{FAMILIES, StartTracker};
use waits::waits;

use crate::names::{NAME_LENGTH_MAX, NAMESPACE_LENGTH_MAX, is_name, shown};

/// The kubelet's default limit is 110.
const PODS_MAX: usize = 2000;
/// A reference without its registry has at most about 600 bytes.
const IMAGE_LENGTH_MAX: usize = 1024;
/// Usual pods have fewer than ten images.
const IMAGES_MAX: usize = 256;
pub(crate) const SECRETS_MAX: usize = 64;

/// Receives the pods of the node. The first complete list is the first change.
pub(crate) type PodsReceiver = watch::Receiver<Vec<Arc<BoundPod>>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BoundPod {
    pub(crate) identity: PodIdentity,
    /// `None` means that the labels are over the limit. No pod selector matches such a pod.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    /// The service account. A pod without one, such as a pod from a kubelet's manifest file, has an empty text.
    pub(crate) service_account: Arc<str>,
    pub(crate) pull_secrets: Vec<Arc<str>>,
    /// The images of the volumes and containers, in the order of the kubelet's requests.
    pub(crate) images: Vec<PodImageUse>,
    /// The number of images beyond `IMAGES_MAX`.
    pub(crate) left_out: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodImageUse {
    pub(crate) role: PodRole,
    pub(crate) name: Arc<str>,
    /// The image as the pod spells it; a valid reference.
    pub(crate) image: Arc<str>,
    pub(crate) policy: PullPolicy,
    /// Whether the container does not exist yet or will be created again.
    pub(crate) waits: bool,
}

impl PodImageUse {
    /// The field of the pod that names the image, as in a kubelet's events. It is empty for a volume.
    pub(crate) fn field(&self) -> String {
        match self.role {
            PodRole::Volume => String::new(),
            role => format!("spec.{}{{{}}}", role.field(), shown(&self.name)),
        }
    }
}

impl BoundPod {
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.identity.namespace, self.identity.name)
    }

    pub(crate) fn waiting(&self) -> Option<WaitingPod> {
        let images: BTreeSet<&Arc<str>> = self.images.iter().filter(|it| it.waits).map(|it| &it.image).collect();
        let images: Vec<Arc<str>> = images.into_iter().cloned().collect();
        (!images.is_empty()).then(|| WaitingPod { pod: self.full_name().into(), images })
    }
}

pub(crate) fn bound_pod(object: &PodObject) -> Option<BoundPod> {
    let PodObject { metadata, spec, status } = object;
    let [namespace, pod_name, uid] =
        [&metadata.namespace, &metadata.name, &metadata.uid].map(|text| text.as_deref().unwrap_or_default());
    let is_named = is_name(namespace, NAMESPACE_LENGTH_MAX) && is_name(pod_name, NAME_LENGTH_MAX);
    if !is_named || pod_end(object).is_some() {
        return None;
    }
    let (mut images, mut left_out) = (Vec::new(), 0);
    let mut add = |role, name: &str, image: &str, policy: &str, waits| match defaulted_policy(image, policy) {
        Some(_) if images.len() == IMAGES_MAX => left_out += 1,
        Some(policy) => {
            images.push(PodImageUse { role, name: name.into(), image: image.into(), policy, waits });
        }
        // The kubelet itself reports an invalid image name.
        None => {
            let image = shown(&shown_name(image));
            tracing::debug!(namespace, pod = pod_name, image, "passing over an image of a pod");
        }
    };
    let lists = [
        (PodRole::Ephemeral, &spec.ephemeral_containers, &status.ephemeral_container_statuses),
        (PodRole::Init, &spec.init_containers, &status.init_container_statuses),
        (PodRole::Container, &spec.containers, &status.container_statuses),
    ];
    let mut is_waiting = false;
    for (role, containers, statuses) in lists {
        for container in containers.iter().flatten() {
            let ContainerSpec { name, image, image_pull_policy, .. } = container;
            let waits = waits(role, container, state_of(statuses.as_deref(), name), &spec.restart_policy);
            is_waiting |= waits;
            add(role, name, image, image_pull_policy, waits);
        }
    }
    // An image volume waits if any container waits, because it is mounted before the containers are created.
    for (volume, source) in spec.volumes.iter().flatten().filter_map(|it| Some((it, it.image.as_ref()?))) {
        let [image, policy] = [&source.reference, &source.pull_policy].map(|text| text.as_deref().unwrap_or_default());
        add(PodRole::Volume, &volume.name, image, policy, is_waiting);
    }
    images.sort_by_key(|it| it.role);
    let secrets = spec.image_pull_secrets.iter().flatten().filter(|it| is_name(&it.name, NAME_LENGTH_MAX));
    let accounts = [&spec.service_account_name, &spec.service_account];
    let account = accounts.into_iter().find(|name| is_name(name, NAME_LENGTH_MAX));
    Some(BoundPod {
        identity: PodIdentity { namespace: namespace.into(), name: pod_name.into(), uid: uid.into() },
        labels: metadata.labels.clone(),
        service_account: account.map_or("", String::as_str).into(),
        pull_secrets: secrets.take(SECRETS_MAX).map(|it| it.name.as_str().into()).collect(),
        images,
        left_out,
    })
}

pub(crate) fn pod_end(object: &PodObject) -> Option<PodEnd> {
    if object.metadata.deletion_timestamp.is_some() {
        return Some(PodEnd::Deleted);
    }
    matches!(object.status.phase.as_str(), "Succeeded" | "Failed").then_some(PodEnd::Finished)
}

fn defaulted_policy(image: &str, policy: &str) -> Option<PullPolicy> {
    let is_name = image.len() <= IMAGE_LENGTH_MAX && image.parse::<Reference>().is_ok();
    let default = PullPolicy::default_for(Some(image).filter(|_| is_name)?).ok()?;
    Some(if policy.is_empty() { default } else { PullPolicy::as_written(policy) })
}

#[cfg(test)]
mod tests;
