//! The image volumes of a container at its start (`docs/spec/pull.md §2.9`).

use super::{PodOutcome, PodRequest, PodRole};
use crate::{
    image::ImageSpec,
    manager::{EnsureError, ImageManager},
    metrics::{Family, MetricKind},
};

pub(super) static REQUESTED: Family = Family {
    name: "kubelet_image_volume_requested_total",
    help: "Number of requested image volumes.",
    kind: MetricKind::Counter,
    labels: &[],
};

pub(super) static SUCCEEDED: Family = Family {
    name: "kubelet_image_volume_mounted_succeed_total",
    help: "Number of successful image volume mounts.",
    kind: MetricKind::Counter,
    labels: &[],
};

pub(super) static FAILED: Family = Family {
    name: "kubelet_image_volume_mounted_errors_total",
    help: "Number of failed image volume mounts.",
    kind: MetricKind::Counter,
    labels: &[],
};

pub(in crate::manager) static FAMILIES: [&Family; 3] = [&REQUESTED, &SUCCEEDED, &FAILED];

/// The prefix of a runtime's error for an image that could not be mounted.
const MOUNT_FAILED: &str = "ImageVolumeMountFailed";

/// An image to mount into a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeImage {
    /// The volume's name.
    pub volume: String,
    /// The image by its id, with the pod's handler and annotations.
    pub image: ImageSpec,
    /// As the user spelled it.
    pub user_specified: String,
}

impl PodRequest {
    /// The images that a container mounts, in the order of its mounts, after all images of the pod have results.
    ///
    /// Other mounts are skipped.
    ///
    /// # Errors
    /// When a volume's image failed; the last failure of several, as in the kubelet.
    ///
    /// # Panics
    /// When `container` is not an image of the pod, or `outcomes` are those of another request.
    pub fn volumes_of(&self, container: usize, outcomes: &[PodOutcome]) -> Result<Vec<VolumeImage>, EnsureError> {
        let found = |mount: &str| {
            let volume = self.images.iter().position(|one| one.role == PodRole::Volume && one.name == mount)?;
            match &outcomes[volume] {
                PodOutcome::Ensured(ensured) => Some(Ok(VolumeImage {
                    volume: mount.to_owned(),
                    image: ImageSpec {
                        image: ensured.id.to_string(),
                        runtime_handler: self.common.runtime_handler.clone(),
                        annotations: self.common.annotations.clone(),
                    },
                    user_specified: self.images[volume].image.clone(),
                })),
                PodOutcome::Failed(error) => Some(Err(error.clone())),
                PodOutcome::Blocked { .. } => None,
            }
        };
        let (images, mut failures) = walk(&self.images[container].mounts, found);
        failures.pop().map_or(Ok(images), Err)
    }
}

impl ImageManager {
    /// Counts the start of a container: its image volumes, and the runtime's error if it was not created.
    ///
    /// For a client that starts containers; once per attempt.
    pub fn count_volume_mounts(&self, volumes: usize, failure: Option<&str>) {
        let outcome = match failure {
            Some(text) if text.starts_with(MOUNT_FAILED) => &FAILED,
            _ => &SUCCEEDED,
        };
        for family in [&REQUESTED, outcome] {
            (0..volumes).for_each(|_| self.parts.metrics.increment(family, &[]));
        }
    }
}

pub(super) fn walk<T, E>(mounts: &[String], found: impl Fn(&str) -> Option<Result<T, E>>) -> (Vec<T>, Vec<E>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for mount in mounts {
        match found(mount) {
            Some(Ok(one)) => good.push(one),
            Some(Err(one)) => bad.push(one),
            None => {}
        }
    }
    (good, bad)
}
