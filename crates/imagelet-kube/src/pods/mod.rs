//! What a pod object says about images: a plain function, and its answer.

mod known_pods;
mod object;
mod start_latency;
mod waits;

use std::{collections::BTreeSet, sync::Arc};

use imagelet_core::{
    image::{Reference, counted, shown_name},
    inventory::WaitingPod,
    manager::{PodIdentity, PodRole, PullPolicy},
};

pub(crate) use known_pods::KnownPods;
pub(crate) use object::PodObject;
use object::{ContainerSpec, status_of};
pub(crate) use start_latency::{FAMILIES, StartTracker};
use waits::waits;

use crate::names::{NAME_LENGTH_MAX, NAMESPACE_LENGTH_MAX, is_name, shown};

/// Most pods of a node; the kubelet's own limit is 110 by default.
const PODS_MAX: usize = 2000;
/// Longest image name; a reference without its registry has at most about 600 bytes.
const IMAGE_LENGTH_MAX: usize = 1024;
/// Most images of one pod; pods have a handful.
const IMAGES_MAX: usize = 256;
pub(crate) const SECRETS_MAX: usize = 64;

/// A pod that is bound to a node and neither finished nor being deleted, as far as it is about images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BoundPod {
    pub(crate) identity: PodIdentity,
    /// Its service account; empty: it has none, as the pod of a kubelet's own manifest.
    pub(crate) service_account: Arc<str>,
    /// The names of its pull secrets, in its own namespace.
    pub(crate) pull_secrets: Vec<Arc<str>>,
    /// The images of its volumes and containers, in the kubelet's order of requests.
    pub(crate) images: Vec<PodImageUse>,
    /// What is passed over, for the log.
    pub(crate) passed_over: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodImageUse {
    pub(crate) role: PodRole,
    /// The container's or the volume's name.
    pub(crate) name: Arc<str>,
    /// The image as the pod spells it; a valid reference.
    pub(crate) image: Arc<str>,
    /// The pull policy, defaulted as in the API server.
    pub(crate) policy: PullPolicy,
    /// Its container does not exist yet, or is going to be created again.
    pub(crate) waits: bool,
}

impl PodImageUse {
    /// The field of the pod that names the image, as events of a kubelet have it; empty for a volume.
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

    /// The images that its containers wait for; `None`: all exist.
    pub(crate) fn waiting(&self) -> Option<WaitingPod> {
        let images: BTreeSet<&Arc<str>> = self.images.iter().filter(|it| it.waits).map(|it| &it.image).collect();
        let images: Vec<Arc<str>> = images.into_iter().cloned().collect();
        (!images.is_empty()).then(|| WaitingPod { pod: self.full_name().into(), images })
    }
}

/// The images of a pod; `None` for a pod that is finished or being deleted: it starts no more containers.
/// Fails for an invalid name, which the API server rejects.
pub(crate) fn bound_pod(object: &PodObject) -> Result<Option<BoundPod>, String> {
    let PodObject { metadata, spec, status } = object;
    let [namespace, pod_name, uid] =
        [&metadata.namespace, &metadata.name, &metadata.uid].map(|text| text.as_deref().unwrap_or_default());
    for (name, length_max) in [(namespace, NAMESPACE_LENGTH_MAX), (pod_name, NAME_LENGTH_MAX)] {
        if !is_name(name, length_max) {
            return Err(format!("`{}` is no name of a pod", shown(name)));
        }
    }
    if metadata.deletion_timestamp.is_some() || matches!(status.phase.as_str(), "Succeeded" | "Failed") {
        return Ok(None);
    }
    let mut read = ImageReader::default();
    let lists = [
        (PodRole::Ephemeral, &spec.ephemeral_containers, &status.ephemeral_container_statuses),
        (PodRole::Init, &spec.init_containers, &status.init_container_statuses),
        (PodRole::Container, &spec.containers, &status.container_statuses),
    ];
    let mut is_waiting = false;
    for (role, containers, statuses) in lists {
        for (position, container) in containers.iter().flatten().enumerate() {
            let ContainerSpec { name, image, image_pull_policy, .. } = container;
            let waits = waits(role, container, status_of(statuses, name), &spec.restart_policy);
            is_waiting |= waits;
            read.add(role, name, position, image, image_pull_policy, waits);
        }
    }
    // A volume is mounted before any container of the pod is created.
    let volumes = spec.volumes.iter().flatten().enumerate();
    for (position, volume, source) in volumes.filter_map(|(at, it)| Some((at, it, it.image.as_ref()?))) {
        read.add(PodRole::Volume, &volume.name, position, &source.reference, &source.pull_policy, is_waiting);
    }
    let ImageReader { mut images, mut passed_over, left_out } = read;
    images.sort_by_key(|it| it.role);
    if left_out > 0 {
        passed_over.push(format!("{} beyond the limit of {IMAGES_MAX}", counted(left_out, "image")));
    }
    let secrets = spec.image_pull_secrets.iter().flatten().filter(|it| is_name(&it.name, NAME_LENGTH_MAX));
    let accounts = [&spec.service_account_name, &spec.service_account];
    let account = accounts.into_iter().find(|name| is_name(name, NAME_LENGTH_MAX));
    Ok(Some(BoundPod {
        identity: PodIdentity { namespace: namespace.into(), name: pod_name.into(), uid: uid.into() },
        service_account: account.map_or("", String::as_str).into(),
        pull_secrets: secrets.take(SECRETS_MAX).map(|it| it.name.as_str().into()).collect(),
        images,
        passed_over,
    }))
}

#[derive(Default)]
struct ImageReader {
    images: Vec<PodImageUse>,
    passed_over: Vec<String>,
    left_out: usize,
}

impl ImageReader {
    fn add(&mut self, role: PodRole, name: &str, position: usize, image: &str, policy: &str, waits: bool) {
        if self.images.len() + self.passed_over.len() >= IMAGES_MAX {
            self.left_out += 1;
            return;
        }
        match defaulted_policy(image, policy) {
            Ok(policy) => {
                self.images.push(PodImageUse { role, name: name.into(), image: image.into(), policy, waits });
            }
            Err(why) => {
                let field = format!("spec.{}[{position}]", role.field());
                self.passed_over.push(format!("{field}: `{}`: {why}", shown(&shown_name(image))));
            }
        }
    }
}

/// The policy as the API server defaults it, of an image with a valid name.
fn defaulted_policy(image: &str, policy: &str) -> Result<PullPolicy, String> {
    if image.len() > IMAGE_LENGTH_MAX {
        return Err(format!("the name has {} bytes; the limit is {IMAGE_LENGTH_MAX}", image.len()));
    }
    let default = image.parse::<Reference>().and_then(|_| PullPolicy::default_for(image));
    let default = default.map_err(|error| error.to_string())?;
    Ok(if policy.is_empty() { default } else { PullPolicy::as_written(policy) })
}

#[cfg(test)]
mod tests;
