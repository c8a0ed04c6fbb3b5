//! The documents of `ensure`: the images of one pod.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::types::{PodName, PullSecretText};
use crate::failure::Failure;

api_documents! {
    PodRequest {
        /// `Pod`, or the kind of the pod's controller: `Deployment`, `Job`.
        kind: String,
        pod: PodName,
        annotations: BTreeMap<String, String>,
        service_account: String,
        /// The handler of the runtime class; empty for the default.
        runtime_handler: String,
        /// The pull secrets that were readable, in the pod's order.
        secrets: Vec<PullSecretText>,
        secrets_unread: Vec<String>,
        /// Answered in this order.
        images: Vec<PodImageRequest>,
    }
    PodImageRequest {
        /// `container`, `init`, `sidecar`, `ephemeral` or `volume`; empty means `container`.
        role: String,
        name: String,
        /// Index in its list, from 0; distinguishes entries without a name.
        position: usize,
        image: String,
        /// `Always`, `IfNotPresent` or `Never`; empty is the kubelet's default for the tag.
        policy: String,
        mounts: Vec<String>,
    }
    PodEnsured {
        kind: String,
        pod: PodName,
        images: Vec<PodImageRow>,
        /// Events of this pod during the call, oldest first.
        events: Vec<EventRow>,
    }
    PodImageRow {
        /// The field that names it: `spec.containers{NAME}`.
        field: String,
        role: String,
        image: String,
        /// As in the request; the default for the tag where the request has none.
        policy: String,
        /// Empty unless the image is usable.
        id: String,
        /// `present` or `pulled`; empty unless the image is usable.
        origin: String,
        size: Option<u64>,
        /// Duration of the pull in milliseconds, without the wait for a slot.
        took_ms: u64,
        /// The waiting reason of pod status; empty on success.
        reason: String,
        /// The message of pod status; empty after a pull.
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
    EventRow {
        at: Option<String>,
        r#type: String,
        reason: String,
        message: String,
        /// The field of the pod; empty for the pod itself.
        field: String,
        /// A class of `docs/errors.md`; empty without a failure.
        #[serde(skip_serializing_if = "String::is_empty")]
        class: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        hop: String,
    }
}
