//! All images of a pod: the parallel pulls, and the effect of one failure on the others (`docs/spec/pull.md §2.2`).

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use futures_util::{StreamExt as _, stream};

use super::{EnsureError, EnsureRequest, Ensured, ImageManager, PullPolicy};
use crate::{
    events::{Event, EventKind, EventSubject},
    image::{ImageSpec, Reference},
    lock::locked,
    ports::{PullRequest, PullWatcher},
};

/// The maximum number of parallel requests for the images of one pod. Most pods have fewer images.
const LANES_MAX: usize = 16;

#[derive(Clone, Debug)]
pub struct PodRequest {
    /// The part of the request that all images share: pod, secrets, annotations, handler.
    pub common: EnsureRequest,
    /// The images of the pod, in any order. The results have the same order.
    pub images: Vec<PodImage>,
    pub secrets_unread: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodImage {
    pub role: PodRole,
    pub name: String,
    /// The index among the pod's images of the same role. Identifies an image without a name.
    pub position: usize,
    pub image: String,
    pub policy: PullPolicy,
    /// Names of the pod's volumes that the container mounts, in order.
    pub mounts: Vec<String>,
}

/// The use of an image in a pod, in the kubelet's order of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodRole {
    Volume,
    Ephemeral,
    Init,
    Container,
}

impl PodRole {
    pub fn field(self) -> &'static str {
        match self {
            Self::Volume => "volumes",
            Self::Ephemeral => "ephemeralContainers",
            Self::Init => "initContainers",
            Self::Container => "containers",
        }
    }
}

impl PodImage {
    /// The field of the pod: `spec.containers{NAME}`, or `spec.containers[1]` without a name.
    pub fn field(&self) -> String {
        let list = self.role.field();
        if self.name.is_empty() {
            format!("spec.{list}[{}]", self.position)
        } else {
            format!("spec.{list}{{{}}}", self.name)
        }
    }

    fn subject_field(&self) -> String {
        if self.role == PodRole::Volume { String::new() } else { self.field() }
    }
}

#[derive(Clone, Debug)]
pub enum PodOutcome {
    Ensured(Ensured),
    Failed(EnsureError),
    /// The image was not requested because an earlier image failed, as in the kubelet.
    Blocked {
        by: usize,
    },
}

impl ImageManager {
    /// Ensures every image of a pod, and returns the results in the order of the request.
    ///
    /// The requests run in parallel, so that later pulls run during an init container. Two spellings of one image run
    /// in sequence, because the second may find the result of the first. Equal spellings with equal policies share one
    /// request. Without [`PodRules::parallel_pod_images`](crate::node_policy::PodRules::parallel_pod_images) all
    /// requests run in sequence, and a failed init container or volume blocks later images.
    ///
    /// Both callbacks get the index of an image and must not block. A drop of the future cancels all requests.
    pub async fn ensure_pod(
        &self,
        request: &PodRequest,
        watcher: &(dyn Fn(usize) -> PullWatcher + Sync),
        finished: &(dyn Fn(usize, &PodOutcome) + Sync),
    ) -> Vec<PodOutcome> {
        if !request.secrets_unread.is_empty() {
            let names = request.secrets_unread.join(", ");
            let text = format!(
                "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
            );
            self.report(request, String::new(), "FailedToRetrieveImagePullSecret", text);
        }
        let results = Mutex::new(vec![None; request.images.len()]);
        let lock = || locked(&results);
        let in_parallel = self.policy().pods.parallel_pod_images;
        stream::iter(plan(&request.images, in_parallel))
            .for_each_concurrent(LANES_MAX, |sequence| async move {
                for step in sequence {
                    let blocked = blocked_by(&request.images, &lock(), step[0], in_parallel);
                    let outcome = match blocked {
                        Some(by) => PodOutcome::Blocked { by },
                        None => self.ensure_one(request, step[0], watcher(step[0])).await,
                    };
                    for image in step {
                        lock()[image] = Some(outcome.clone());
                        for (container, reason) in starts_failed(&request.images, &lock(), image) {
                            let field = request.images[container].subject_field();
                            self.report(request, field, "Failed", format!("Error: {reason}"));
                        }
                        finished(image, &outcome);
                    }
                }
            })
            .await;
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.into_iter().map(|outcome| outcome.expect("the plan names each image once")).collect()
    }

    async fn ensure_one(&self, request: &PodRequest, image: usize, watcher: PullWatcher) -> PodOutcome {
        let wanted = &request.images[image];
        let image = ImageSpec { image: wanted.image.clone(), ..request.common.pull.image.clone() };
        let asked = EnsureRequest {
            pull: PullRequest { image, ..request.common.pull.clone() },
            policy: wanted.policy.clone(),
            container: wanted.subject_field().into(),
            // Images that containers wait for have a higher priority.
            priority: request.common.priority.saturating_add(i32::from(wanted.role < PodRole::Container)),
            ..request.common.clone()
        };
        match self.ensure(&asked, watcher).await {
            Ok(ensured) => PodOutcome::Ensured(ensured),
            Err(error) => PodOutcome::Failed(error),
        }
    }

    fn report(&self, request: &PodRequest, field_path: String, reason: &'static str, message: String) {
        let subject = EventSubject::Pod { pod: request.common.pull.pod.clone(), field_path: field_path.into() };
        let kind = EventKind::Warning;
        self.parts.reports.events.record(Event { kind, reason, message, note: None, subject, cause: None });
    }
}

/// The indexes of the images that share one request. The request is for the first image.
type Step = Vec<usize>;

fn plan(images: &[PodImage], in_parallel: bool) -> Vec<Vec<Step>> {
    let mut order: Vec<usize> = (0..images.len()).collect();
    order.sort_by_key(|&image| images[image].role);
    if !in_parallel {
        return vec![order.into_iter().map(|image| vec![image]).collect()];
    }
    let mut sequences: Vec<Vec<Step>> = Vec::new();
    let mut lane_of: HashMap<String, usize> = HashMap::new();
    for image in order {
        let sequence = *lane_of.entry(full_name(&images[image].image)).or_insert(sequences.len());
        if sequence == sequences.len() {
            sequences.push(Vec::new());
        }
        let same = |step: &&mut Step| {
            let first = &images[step[0]];
            (&first.image, &first.policy) == (&images[image].image, &images[image].policy)
        };
        match sequences[sequence].iter_mut().find(same) {
            Some(step) => step.push(image),
            None => sequences[sequence].push(vec![image]),
        }
    }
    sequences
}

/// The normalised name, or the text itself if the name is invalid.
fn full_name(image: &str) -> String {
    image.parse::<Reference>().map_or_else(|_| image.to_owned(), |reference| reference.canonical().to_string())
}

/// Returns the image whose failure blocks this image; a pure function. The kubelet requests the image of a container
/// after all init containers have run, and together with the container's volumes. Of several failed volumes, the
/// kubelet reports the last.
fn blocked_by(images: &[PodImage], outcomes: &[Option<PodOutcome>], image: usize, in_parallel: bool) -> Option<usize> {
    if in_parallel || images[image].role == PodRole::Volume {
        return None;
    }
    let after_init = images[image].role >= PodRole::Init;
    let failed_init = || {
        images.iter().zip(outcomes).position(|(one, outcome)| one.role == PodRole::Init && has_failed(outcome.as_ref()))
    };
    let failed_mount = || failed_mounts(images, outcomes, image).pop();
    after_init.then(failed_init).flatten().or_else(failed_mount)
}

fn has_failed(outcome: Option<&PodOutcome>) -> bool {
    matches!(outcome, Some(PodOutcome::Failed(_) | PodOutcome::Blocked { .. }))
}

fn failed_mounts(images: &[PodImage], outcomes: &[Option<PodOutcome>], image: usize) -> Vec<usize> {
    let failed = |mount: &String| {
        let volume = images.iter().position(|one| one.role == PodRole::Volume && one.name == *mount)?;
        matches!(outcomes[volume], Some(PodOutcome::Failed(_))).then_some(volume)
    };
    images[image].mounts.iter().filter_map(failed).collect()
}

fn starts_failed(images: &[PodImage], outcomes: &[Option<PodOutcome>], settled: usize) -> Vec<(usize, String)> {
    let reason_of = |image: usize| match &outcomes[image] {
        Some(PodOutcome::Failed(error)) => Some(error.reason().to_string()),
        _ => None,
    };
    // A container that waits for an init container is not started, so its volumes are not reported.
    let is_started = |image: usize| match outcomes[image] {
        Some(PodOutcome::Blocked { by }) => images[by].role == PodRole::Volume,
        Some(_) => true,
        None => false,
    };
    if images[settled].role == PodRole::Volume {
        let Some(reason) = reason_of(settled) else { return Vec::new() };
        // A container whose image has no result yet is reported later, with that result.
        let mounting = (0..images.len()).filter(|&image| {
            images[image].role != PodRole::Volume
                && is_started(image)
                && failed_mounts(images, outcomes, image).contains(&settled)
        });
        return mounting.map(|image| (image, reason.clone())).collect();
    }
    if !is_started(settled) {
        return Vec::new();
    }
    let of_mounts = failed_mounts(images, outcomes, settled).into_iter().filter_map(reason_of);
    of_mounts.chain(reason_of(settled)).map(|reason| (settled, reason)).collect()
}

#[cfg(test)]
mod tests;
