//! The switches for deviations from the kubelet: one value, set once from the configuration. `docs/compatibility.md`
//! lists the deviations. Code reads single switches, never a mode.

/// One switch for each deviation from the kubelet. `false` is the kubelet's behaviour.
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
    /// Pulls wait by priority, and a few small pulls may run above the slot limit. Off: first come, first served.
    pub prioritized_queue: bool,
    /// A pull above the rate limit waits. Off: the pull fails.
    pub waits_for_rate: bool,
    /// Equal pulls of several pods share one pull.
    pub shared_pulls: bool,
    /// Requests to a registry that fails repeatedly stop for a while.
    pub circuit_breaker: bool,
    /// A pull tries a limited number of credentials, and stops after a failure that no credential changes. Off: all.
    pub bounded_attempts: bool,
    /// The back-off belongs to the image and its credentials. Off: only to the image.
    pub backoff_by_credentials: bool,
    /// A successful pull ends the back-off.
    pub success_ends_backoff: bool,
}

/// Credentials, and the records of which client may use an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is on or off, whatever the others are")]
pub struct AccessRules {
    /// Identity tokens, helpers and the queried host of Docker configurations are used, and empty entries are ignored.
    pub docker_keyring: bool,
    /// An unreadable pull secret is skipped. Off: the request fails.
    pub skips_unreadable_secrets: bool,
    /// The intent of a pull is recorded after the back-off check. Off: before; a failed check removes the intent.
    pub intent_after_backoff: bool,
    /// The intent of a pull with an unknown result stays until a check for the image. Off: it is removed.
    pub keeps_doubtful_intents: bool,
    /// An intent applies to its image under any name. Off: only under the requested spelling.
    pub intents_guard_images: bool,
    /// After a restart, the intents of interrupted pulls into the embedded store are resolved.
    pub resolves_interrupted_pulls: bool,
}

/// The images of a pod, and the messages that the pod shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is on or off, whatever the others are")]
pub struct PodRules {
    /// Waiting reasons are fixed words; messages have image and cause. Off: some reasons are raw error texts.
    pub stable_reasons: bool,
    /// The images of a pod are requested in parallel. Off: in sequence; a failed init image or volume blocks the rest.
    pub parallel_pod_images: bool,
    /// The images of a pod are pulled before the pod requests them.
    pub looks_ahead: bool,
    /// Pulls include the pod's runtime handler.
    pub sends_runtime_handler: bool,
}

/// Lists, pins and the usage history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryRules {
    /// The history of an image survives its absence. Off: an image that comes back is new.
    pub remembers_absent_images: bool,
    /// Lists are read as streams, if the runtime supports streams.
    pub streams_lists: bool,
    /// Images of sandboxes are pinned, and those of running sandboxes are in use. Off: neither.
    pub pins_sandbox_images: bool,
}

/// Switches of collections, except the removal order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is on or off, whatever the others are")]
pub struct GcRules {
    /// The disk is measured before all removals. Off: after the removals by age, if none failed.
    pub measures_first: bool,
    /// A never used image is idle since its first sight (off: infinitely), and prefetched images are removed first.
    pub idle_since_sight: bool,
    /// Pull records of absent images are pruned. Off: records of all images except those that a space phase considered
    /// and kept.
    pub prunes_by_present: bool,
    /// Texts and events are imagelet's. Off: the kubelet's, with its log lines.
    pub own_texts: bool,
}

impl NodePolicy {
    pub const IMAGELET: Self = Self::all(true);

    /// Exactly the kubelet's behaviour.
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
