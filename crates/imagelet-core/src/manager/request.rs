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
    text::PlainError,
};

/// The maximum length of a recorded failure text, in bytes. The text comes from a registry or a runtime.
const REASON_LENGTH_MAX: usize = 2048;

const POLICY_LENGTH_MAX: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PullSettings {
    /// The maximum number of parallel pulls; `None`: no limit. With
    /// [`PullRules::prioritized_queue`](crate::node_policy::PullRules::prioritized_queue) a few small pulls run in
    /// addition.
    pub slots: Option<NonZeroUsize>,
    pub rate: Option<PullRate>,
    pub backoff_first: Duration,
    pub backoff_max: Duration,
    /// How long a running pull continues without a client, so that a new client can join. Zero: the pull ends at once.
    pub grace: Duration,
    pub node_policy: NodePolicy,
}

impl Default for PullSettings {
    /// No limit of parallel pulls, no rate, no grace; the kubelet's back-off (`docs/spec/pull.md §3.1`).
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
    /// Any other word, shortened, because the text comes from outside and becomes a label. The kubelet pulls without a
    /// lookup, as if the image were absent.
    Other(Arc<str>),
}

impl PullPolicy {
    /// The default policy of an image: `Always` for the tag `latest`, written or defaulted, else `IfNotPresent`.
    pub fn default_for(image: &str) -> Result<Self, ReferenceError> {
        let reference: Reference = image.parse()?;
        Ok(if reference.tag() == Some("latest") { Self::Always } else { Self::IfNotPresent })
    }

    /// Reads the policy of a pod spec. Accepts an unknown word, as the kubelet does.
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
    type Err = PlainError;

    fn from_str(text: &str) -> Result<Self, PlainError> {
        let known = [Self::Always, Self::IfNotPresent, Self::Never].into_iter().find(|policy| policy.name() == text);
        known.ok_or_else(|| {
            PlainError(format!("`{text}` is no pull policy; there are `Always`, `IfNotPresent` and `Never`"))
        })
    }
}

impl fmt::Display for PullPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of client. Decides whether imagelet or the client limits the retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Caller {
    #[default]
    Pod,
    /// The node, for a pod that has not requested the image yet. It is never the probe of an open circuit. Its failure
    /// starts no back-off, and counts for a circuit only with `Retry-After`, so the pod's own request is not delayed.
    LookAhead,
    /// A command of an operator, for no pod. No back-off and no open circuit delays it. Its result also applies to the
    /// pods that wait for the same image.
    Command,
    /// A prefetch for an `ImageSet`, for no pod. An open circuit delays it. Its result changes no back-off of a pod. It
    /// is not counted as a use of the image.
    Prefetch {
        /// Whether the node's credentials are tried after the pull secrets. `false`: only the secrets are tried.
        own_credentials: bool,
    },
    /// A client with its own policies, records and back-off, for example a kubelet that pulls through CRI. Its failures
    /// never delay its requests. It may use a present image only if a record permits it.
    Client {
        /// Whether the node's credentials are used if the client sends none. `false`: such a request is anonymous.
        own_credentials: bool,
        /// Whether the client's pulls wait for the slots and the rate of [`PullSettings`].
        is_limited: bool,
    },
}

impl Caller {
    pub(crate) fn is_client(self) -> bool {
        matches!(self, Self::Client { .. })
    }

    pub(crate) fn is_prefetch(self) -> bool {
        matches!(self, Self::Prefetch { .. })
    }
}

#[derive(Clone, Debug, Default)]
pub struct EnsureRequest {
    /// The image and the pod. If `pull` has a credential, the registry gets only this credential.
    pub pull: PullRequest,
    pub policy: PullPolicy,
    pub caller: Caller,
    pub service_account: Option<String>,
    /// The field of the pod that names the image, for events: `spec.containers{NAME}`.
    pub container: Arc<str>,
    /// The pod's pull secrets, tried before the node's own credentials.
    pub secrets: Vec<PullSecret>,
    /// The waiting pull with the highest priority starts first. A FIFO queue ignores the priority.
    pub priority: i32,
}

impl EnsureRequest {
    /// A request for no pod, with the node's credentials.
    pub fn new(image: impl Into<String>, policy: PullPolicy) -> Self {
        let pull = PullRequest { image: ImageSpec::new(image), ..PullRequest::default() };
        Self { pull, policy, ..Self::default() }
    }

    pub fn image(&self) -> &str {
        &self.pull.image.image
    }

    pub(super) fn is_for_a_container(&self) -> bool {
        self.caller.is_client() || !self.pull.pod.uid.is_empty() || !self.pull.pod.name.is_empty()
    }

    pub(super) fn subject(&self) -> EventSubject {
        EventSubject::Pod { pod: self.pull.pod.clone(), field_path: Arc::clone(&self.container) }
    }

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
    /// The handler whose store has the image, as the runtime reports it. Many runtimes have one store for all handlers.
    pub handler: String,
    /// The name in the request to the runtime: the image with its default tag.
    pub reference: String,
    pub origin: Origin,
    /// The kubelet's message about the image; empty after a pull.
    pub message: String,
}

impl Ensured {
    pub(super) fn new(key: &ImageKey, spec: ImageSpec, origin: Origin, message: String) -> Self {
        Self { id: key.id().clone(), handler: key.handler().to_owned(), reference: spec.image, origin, message }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    AlreadyPresent,
    Stale {
        /// The time since the registry last resolved the name.
        verified: Duration,
    },
    Pulled {
        /// How long the pull took, without the wait in the queue.
        took: Duration,
        /// The size that the store reports; zero if the store reports none.
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
