//! The documents of `ensure`: the images of one pod.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::types::{PodName, PullSecretText};
use crate::failure::Failure;

documents! {
    PodRequest {
        /// `Pod`, or the kind of what makes such pods: `Deployment`, `Job`.
        kind: String,
        pod: PodName,
        /// Its annotations; runtimes take hints from them.
        annotations: BTreeMap<String, String>,
        /// The name of its service account; empty where it has none.
        service_account: String,
        /// The handler of its runtime class; empty is the default one.
        runtime_handler: String,
        /// Its pull secrets that could be read, in the pod's order.
        secrets: Vec<PullSecretText>,
        /// Names of those that could not.
        secrets_unread: Vec<String>,
        /// Its images; they are answered in this order.
        images: Vec<PodImageRequest>,
    }
    /// An image that a pod names.
    PodImageRequest {
        /// What it is for: `container`, `init`, `sidecar`, `ephemeral` or `volume`; empty is `container`.
        role: String,
        /// The container's or the volume's name.
        name: String,
        /// Where it stands in its list, from 0; tells those without a name apart.
        position: usize,
        image: String,
        /// `Always`, `IfNotPresent` or `Never`; empty is the kubelet's default for the tag.
        policy: String,
        /// Names of the volumes that the container mounts.
        mounts: Vec<String>,
    }
    /// What became of a pod's images.
    PodEnsured {
        /// As it was asked.
        kind: String,
        pod: PodName,
        /// Image by image, in the order of the request.
        images: Vec<PodImageRow>,
        /// What happened to this pod while its images were ensured, oldest first.
        events: Vec<EventRow>,
    }
    /// What became of one image of a pod.
    PodImageRow {
        /// The field that names it: `spec.containers{NAME}`.
        field: String,
        /// As in the request.
        role: String,
        image: String,
        /// The policy it was asked for under; the default for the tag where none was given.
        policy: String,
        /// Its id; empty where it is not to be used.
        id: String,
        /// `present` or `pulled`; empty where it is not to be used.
        origin: String,
        /// What it occupies, where known.
        size: Option<u64>,
        /// How long the pull took, in milliseconds, without waiting for its turn.
        took_ms: u64,
        /// The waiting reason that pod status shows; empty where all is well.
        reason: String,
        /// What pod status says of it; empty after a pull.
        message: String,
        /// What failed, why, and how to mend it.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
    EventRow {
        at: Option<String>,
        /// `Normal` or `Warning`.
        r#type: String,
        /// The word for it: `Pulling`, `Pulled`, `Failed`.
        reason: String,
        message: String,
        /// The field of the pod it happened to; empty for the pod itself.
        field: String,
        /// What went wrong, in a stable word of `docs/errors.md`; empty where nothing did.
        #[serde(skip_serializing_if = "String::is_empty")]
        class: String,
        /// Where on the way it went wrong.
        #[serde(skip_serializing_if = "String::is_empty")]
        hop: String,
    }
}
