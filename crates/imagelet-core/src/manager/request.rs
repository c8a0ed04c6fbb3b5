//! A request for an image, and its answer.

use std::{fmt, num::NonZeroUsize, str::FromStr, sync::Arc, time::Duration};

use super::puller::throttle::PullRate;
use crate::{
    audit_log::{Act, ActCode, ActDetails},
    credentials::{CredentialQuery, PullSecret},
    events::EventSubject,
    image::{ByteSize, ImageId, ImageKey, ImageSpec, Reference, ReferenceError},
    node_policy::NodePolicy,
    ports::PullRequest,
};

/// Most of a failure's text that is recorded, in bytes; it comes from a registry or a runtime.
const REASON_LENGTH_MAX: usize = 2048;

const POLICY_LENGTH_MAX: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PullSettings {
    /// How many run at once; `None`: any number. With [`PullRules::prioritized_queue`](crate::node_policy::PullRules::prioritized_queue) a few small pulls may run beside.
    pub slots: Option<NonZeroUsize>,
    pub rate: Option<PullRate>,
    pub backoff_first: Duration,
    pub backoff_max: Duration,
    /// How long a running pull goes on after its last client went away, for another one to join. Zero: it ends at once.
    pub grace: Duration,
    pub node_policy: NodePolicy,
}

impl Default for PullSettings {
    /// Any number at once and at any rate, with the kubelet's back-off (`docs/spec/pull.md §3.1`), and no grace.
    fn default() -> Self {
        Self {
            slots: None,
            rate: None,
            backoff_first: Duration::from_secs(10),
            backoff_max: Duration::from_mins(5),
            grace: Duration::ZERO,
            node_policy: NodePolicy::IMAGELET,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum PullPolicy {
    Always,
    #[default]
    IfNotPresent,
    Never,
    /// A word that is none of these, cut: it comes from outside and becomes a label. The kubelet pulls without looking, as
    /// if the image were absent.
    Other(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no pull policy; there are `Always`, `IfNotPresent` and `Never`")]
pub struct PullPolicyError(String);

impl PullPolicy {
    /// The policy of an image for which none is given: `Always` for the tag `latest`, written or defaulted.
    pub fn default_for(image: &str) -> Result<Self, ReferenceError> {
        let reference: Reference = image.parse()?;
        Ok(if reference.tag() == Some("latest") { Self::Always } else { Self::IfNotPresent })
    }

    /// The policy of a pod spec as it is written, whatever is written there: what the kubelet makes of it.
    pub fn as_written(text: &str) -> Self {
        text.parse().unwrap_or_else(|_| Self::Other(text[..text.floor_char_boundary(POLICY_LENGTH_MAX)].into()))
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
            Self::Other(word) => word,
        }
    }
}

impl FromStr for PullPolicy {
    type Err = PullPolicyError;

    fn from_str(text: &str) -> Result<Self, PullPolicyError> {
        [Self::Always, Self::IfNotPresent, Self::Never]
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| PullPolicyError(text.to_owned()))
    }
}

impl fmt::Display for PullPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of client, and so which side decides when to ask and how often to retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Caller {
    #[default]
    Pod,
    /// The node, for a pod that did not request the image yet. It never is the probe of an open circuit, and its failures
    /// start no back-off and count for no circuit, unless the registry names a time: the pod's own request is not worse off.
    LookAhead,
    /// A command of an operator, for no pod. Neither a back-off nor an open circuit holds it back: it is attempted at
    /// once, and its outcome counts for the pods that wait for the same.
    Command,
    /// A prefetch for an `ImageSet`, for no pod. Open circuits hold it back, and its outcome changes no back-off of a pod. What it
    /// gets counts as no use of the image.
    Prefetch {
        /// Whether the node's own credentials are shown after its pull secrets; else the registry is asked with the secrets, or
        /// anonymously.
        own_credentials: bool,
    },
    /// A client with policies, records and a back-off of its own, as a kubelet that asks a runtime to pull. Its own failures
    /// never hold it back, it gets what is here only by a recorded right, and equal requests share a pull.
    Client {
        /// Whether the node's own credentials are shown where it brings none; else the registry is asked anonymously.
        own_credentials: bool,
        /// Whether its pulls wait for the slots and the rate of [`PullSettings`]; else the client has limits of its own, and
        /// some hundred of its pulls run at once.
        is_limited: bool,
    },
}

impl Caller {
    /// Whether it decides itself when to ask.
    pub(crate) fn is_client(self) -> bool {
        matches!(self, Self::Client { .. })
    }

    pub(crate) fn is_prefetch(self) -> bool {
        matches!(self, Self::Prefetch { .. })
    }
}

#[derive(Clone, Debug, Default)]
pub struct EnsureRequest {
    /// What is pulled and for which pod. A credential in it is the only one that is shown to the registry; without one see
    /// `secrets`.
    pub pull: PullRequest,
    pub policy: PullPolicy,
    pub caller: Caller,
    /// The name of the pod's service account; `None` where it has none.
    pub service_account: Option<String>,
    /// The field of the pod that names the image: `spec.containers{NAME}`; events carry it.
    pub container: Arc<str>,
    /// The pod's pull secrets, asked before the node's own credentials.
    pub secrets: Vec<PullSecret>,
    /// The higher goes first where pulls wait. Without effect in a queue by arrival.
    pub priority: i32,
}

impl EnsureRequest {
    /// A request for no pod, with the node's credentials.
    pub fn new(image: impl Into<String>, policy: PullPolicy) -> Self {
        let pull = PullRequest { image: ImageSpec::new(image), ..PullRequest::default() };
        Self { pull, policy, ..Self::default() }
    }

    /// As its client spells it.
    pub fn image(&self) -> &str {
        &self.pull.image.image
    }

    pub(super) fn is_for_a_container(&self) -> bool {
        self.caller.is_client() || !self.pull.pod.uid.is_empty() || !self.pull.pod.name.is_empty()
    }

    pub(super) fn subject(&self) -> EventSubject {
        EventSubject::Pod { pod: self.pull.pod.clone(), field_path: Arc::clone(&self.container) }
    }

    /// The entry of the decision log for a pull of this request, without an image yet.
    pub(super) fn act(&self, canonical: &Reference, code: ActCode, took: Duration, mut why: String) -> Act {
        let pod = &self.pull.pod;
        let by = match (pod.name.is_empty(), self.caller.is_client()) {
            (false, _) if self.caller == Caller::LookAhead => {
                format!("look-ahead for pod {}/{}", pod.namespace, pod.name)
            }
            (false, _) => format!("pod {}/{}", pod.namespace, pod.name),
            (true, _) if self.caller.is_prefetch() => "prefetch".to_owned(),
            (true, true) => "CRI".to_owned(),
            (true, false) => "command".to_owned(),
        };
        why.truncate(why.floor_char_boundary(REASON_LENGTH_MAX));
        let took_ms = u64::try_from(took.as_millis()).ok();
        let details = ActDetails { took_ms, why, ..ActDetails::default() };
        Act { details, ..Act::new(code, vec![canonical.to_string()], by) }
    }

    pub(crate) fn query(&self, repository: &str) -> CredentialQuery {
        CredentialQuery {
            repository: repository.to_owned(),
            namespace: self.pull.pod.namespace.to_string(),
            pod_name: self.pull.pod.name.to_string(),
            pod_uid: self.pull.pod.uid.to_string(),
            service_account: self.service_account.clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    pub id: ImageId,
    /// In whose store it is, by what the runtime says of it: many keep one for all handlers, whichever it was pulled for.
    pub handler: String,
    /// The name the runtime was asked for: the image with its default tag.
    pub reference: String,
    pub origin: Origin,
    /// What the kubelet says of it; empty after a pull.
    pub message: String,
}

impl Ensured {
    pub(super) fn new(key: &ImageKey, spec: ImageSpec, origin: Origin, message: String) -> Self {
        Self { id: key.id().clone(), handler: key.handler().to_owned(), reference: spec.image, origin, message }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was here, and the client may use it.
    AlreadyPresent,
    /// It was here, its registry is away, and the client may use it for as long as that was allowed.
    Stale {
        /// How long ago the registry last named it.
        verified: Duration,
    },
    Pulled {
        /// How long the pull took, without waiting for its turn.
        took: Duration,
        /// What the store says it occupies; zero when it does not say.
        size: ByteSize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_back_its_name_and_refuses_other_spellings() {
        for policy in [PullPolicy::Always, PullPolicy::IfNotPresent, PullPolicy::Never] {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("always".parse::<PullPolicy>().is_err());
        assert!("".parse::<PullPolicy>().is_err());
    }

    #[test]
    fn a_policy_as_it_is_written_keeps_its_word_up_to_a_bound() {
        assert_eq!(PullPolicy::as_written("Never"), PullPolicy::Never);
        assert_eq!(PullPolicy::as_written("").name(), "");
        assert_eq!(PullPolicy::as_written("never").name(), "never");
        assert_eq!(PullPolicy::as_written(&"ü".repeat(100)).name(), "ü".repeat(POLICY_LENGTH_MAX / 2));
    }

    #[test]
    fn the_default_policy_pulls_what_is_tagged_latest_each_time() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for (image, policy) in [
            ("busybox".to_owned(), PullPolicy::Always),
            ("busybox:latest".to_owned(), PullPolicy::Always),
            (format!("busybox:latest@{digest}"), PullPolicy::Always),
            (format!("busybox@{digest}"), PullPolicy::IfNotPresent),
            ("busybox:1.36".to_owned(), PullPolicy::IfNotPresent),
        ] {
            assert_eq!(PullPolicy::default_for(&image), Ok(policy), "{image}");
        }
    }
}
