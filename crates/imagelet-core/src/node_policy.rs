//! The switches for deviations from the kubelet: one value, set once from the configuration. `docs/compatibility.md`
//! lists the deviations. The code reads single switches, never the value as a whole.

#![expect(clippy::struct_excessive_bools, reason = "each rule is on or off, whatever the others are")]

/// One switch for each deviation from the kubelet. `false` is the kubelet's behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePolicy {
    pub pulls: PullRules,
    pub access: AccessRules,
    pub pods: PodRules,
    pub inventory: InventoryRules,
    pub gc: GcRules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullRules {
    /// On: pulls wait by priority, and a few small pulls run above the slot limit. Off: pulls wait by arrival.
    pub prioritized_queue: bool,
    /// On: a pull above the rate limit waits. Off: such a pull fails.
    pub waits_for_rate: bool,
    /// On: equal requests of several pods share one pull. Off: each request has its own pull.
    pub shared_pulls: bool,
    /// On: after repeated failures of a registry, pulls from it are rejected for a while. Off: each pod requests again.
    pub circuit_breaker: bool,
    /// On: a pull tries at most 64 credentials, and none after a failure that no credential changes. Off: it tries all.
    pub bounded_attempts: bool,
    /// On: a pod with changed credentials is not in the back-off of its image any more. Off: the back-off stays.
    pub backoff_by_credentials: bool,
    /// On: a successful pull ends the back-off of its pod and image. Off: the back-off stays.
    pub success_ends_backoff: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRules {
    /// On: Docker configurations are read as in Docker, with identity tokens and helpers. Off: as in the kubelet.
    pub docker_keyring: bool,
    /// On: an unreadable pull secret is skipped. Off: it makes the request fail.
    pub skips_unreadable_secrets: bool,
    /// On: a pull's intent is recorded after the back-off check. Off: it is recorded before, and removed in back-off.
    pub intent_after_backoff: bool,
    /// On: the intent of a pull with an unknown result stays until a check for the image. Off: it is removed.
    pub keeps_doubtful_intents: bool,
    /// On: an intent restricts access to its image under any name. Off: only under the name as written in the request.
    pub intents_guard_images: bool,
    /// On: a restart removes the intents of interrupted pulls whose images the embedded store lacks. Off: they stay.
    pub resolves_interrupted_pulls: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRules {
    /// On: waiting reasons are fixed words; messages have image and cause. Off: some reasons are raw error texts.
    pub stable_reasons: bool,
    /// On: the images of a pod are requested in parallel. Off: in sequence, and a failed image may block later images.
    pub parallel_pod_images: bool,
    /// On: the images of a pod are pulled before the kubelet requests them. Off: when the kubelet requests them.
    pub looks_ahead: bool,
    /// On: the pulls of a pod have the pod's runtime handler. Off: they have no handler.
    pub sends_runtime_handler: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryRules {
    /// On: a removed image keeps its usage history, and has it after the next pull. Off: a pulled image is always new.
    pub remembers_absent_images: bool,
    /// On: lists are read as streams if the runtime supports streams. Off: each list is one response.
    pub streams_lists: bool,
    /// On: the image for new sandboxes is pinned, and images of existing sandboxes count as in use. Off: they are not kept.
    pub pins_sandbox_images: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcRules {
    /// On: the disk is measured before all removals. Off: it is measured after the removals by age; if one of these
    /// failed, the collection ends.
    pub measures_first: bool,
    /// On: a never used image is idle since it was first seen, and prefetched images are removed first. Off: a never
    /// used image is idle without limit.
    pub idle_since_sight: bool,
    /// On: each collection prunes the pull records of absent images. Off: only after a space phase without a failure.
    pub prunes_by_present: bool,
    /// On: error texts and events are imagelet's. Off: they are the kubelet's, and its log lines are written.
    pub own_texts: bool,
}

impl NodePolicy {
    pub const IMAGELET: Self = Self::all(true);

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
