//! The rules of a node where the kubelet has a weakness: one value, chosen once from the configuration.
//!
//! `docs/compatibility.md` has the differences. No code asks for a mode.

/// Each rule says what holds where it is on; off is what the kubelet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePolicy {
    pub pulls: PullRules,
    pub access: AccessRules,
    pub pods: PodRules,
    pub inventory: InventoryRules,
    pub gc: GcRules,
}

/// Queue, attempts and back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is on or off, whatever the others are")]
pub struct PullRules {
    /// Pulls wait by priority, and small ones start beside taken slots. Off: first come, first served.
    pub prioritized_queue: bool,
    /// A pull beyond the rate waits. Off: it fails.
    pub waits_for_rate: bool,
    /// Equal pulls of several pods are one.
    pub shared_pulls: bool,
    /// A registry that fails repeatedly is not asked for a while.
    pub circuit_breaker: bool,
    /// A failure that no credential can change ends a pull, and the number of credentials is limited. Off: each is tried.
    pub bounded_attempts: bool,
    /// A back-off is that of the image with its credentials. Off: of the image.
    pub backoff_by_credentials: bool,
    /// A success ends the back-off.
    pub success_ends_backoff: bool,
}

/// Credentials, and the records of which client may use what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is on or off, whatever the others are")]
pub struct AccessRules {
    /// Docker configurations count with identity tokens, helpers and the host that is asked, and without empty entries.
    pub docker_keyring: bool,
    /// An unreadable pull secret is skipped. Off: it fails the request.
    pub skips_unreadable_secrets: bool,
    /// The intent of a pull is recorded after the check of the back-off. Off: before, and withdrawn.
    pub intent_after_backoff: bool,
    /// The intent of a pull whose end was not observed stays until a check for the image. Off: it is withdrawn.
    pub keeps_doubtful_intents: bool,
    /// An intent guards its image under any name. Off: under the requested spelling.
    pub intents_guard_images: bool,
    /// A pull into the embedded store that a restart interrupted is over.
    pub resolves_interrupted_pulls: bool,
}

/// A pod's images, and what it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is on or off, whatever the others are")]
pub struct PodRules {
    /// A waiting reason is one of a few words, and messages name image and cause. Off: some are raw error texts.
    pub stable_reasons: bool,
    /// The images of a pod are requested in parallel. Off: in sequence, and a failed init container or volume blocks
    /// those that wait for it.
    pub parallel_pod_images: bool,
    /// The images of a pod are pulled before the pod requests them.
    pub looks_ahead: bool,
    /// A pod's runtime handler is sent with its pulls.
    pub sends_runtime_handler: bool,
}

/// What is listed, kept and remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryRules {
    /// The history of an image survives its absence. Off: an image that comes back is new.
    pub remembers_absent_images: bool,
    /// Lists are read as streams, where the runtime has them.
    pub streams_lists: bool,
    /// Collections pin the images of sandboxes that the configuration names.
    pub pins_sandbox_images: bool,
}

/// The rules of collections, beside their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is on or off, whatever the others are")]
pub struct GcRules {
    /// The disk is measured once. Off: after the removals by age, and not at all after one that failed.
    pub measures_first: bool,
    /// A never used image is idle since its first sight, and prefetched images are removed first. Off: it is infinitely
    /// idle.
    pub idle_since_sight: bool,
    /// Pull records are pruned by the images that are present. Off: by those that a space phase examined and kept.
    pub prunes_by_present: bool,
    /// Texts and events are imagelet's. Off: the kubelet's, with its log lines.
    pub own_texts: bool,
}

impl NodePolicy {
    pub const IMAGELET: Self = Self::all(true);

    /// The kubelet's behaviour to the letter.
    pub const KUBELET: Self = Self::all(false);

    const fn all(on: bool) -> Self {
        Self {
            pulls: PullRules {
                prioritized_queue: on,
                waits_for_rate: on,
                shared_pulls: on,
                circuit_breaker: on,
                bounded_attempts: on,
                backoff_by_credentials: on,
                success_ends_backoff: on,
            },
            access: AccessRules {
                docker_keyring: on,
                skips_unreadable_secrets: on,
                intent_after_backoff: on,
                keeps_doubtful_intents: on,
                intents_guard_images: on,
                resolves_interrupted_pulls: on,
            },
            pods: PodRules { stable_reasons: on, parallel_pod_images: on, looks_ahead: on, sends_runtime_handler: on },
            inventory: InventoryRules { remembers_absent_images: on, streams_lists: on, pins_sandbox_images: on },
            gc: GcRules { measures_first: on, idle_since_sight: on, prunes_by_present: on, own_texts: on },
        }
    }
}
