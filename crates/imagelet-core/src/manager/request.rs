//! What is asked of the manager, and what it answers.

use std::{
    fmt,
    num::NonZeroUsize,
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::puller::throttle::PullRate;
use crate::{
    audit_log::{Act, ActCode},
    credentials::{Credential, CredentialQuery, PullSecret},
    events::EventSubject,
    image::{ByteSize, ImageId, ImageKey, ImageSpec, Platform, Reference, ReferenceError},
    runtime::{EncodedPod, SandboxConfig},
};

/// Most of a failure's text that goes on record, in bytes; it comes from a registry or a runtime.
const REASON_LENGTH_MAX: usize = 2048;

/// How pulls are run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PullSettings {
    /// How many run at once.
    pub concurrency: Concurrency,
    /// How many may begin in a time; `None`: any.
    pub rate: Option<PullRate>,
    /// How long an image that failed is left alone at first.
    pub backoff_first: Duration,
    /// How long at most.
    pub backoff_max: Duration,
    /// How long a pull that runs goes on after the last who asked for it went away, for a newcomer to join. Zero: it ends
    /// at once.
    pub grace: Duration,
    /// Whose way is gone where the kubelet's has a weakness.
    pub compatibility: Compatibility,
}

impl Default for PullSettings {
    /// Any number at once and at any rate, with the kubelet's back-off (`docs/spec/pull.md §3.1`), and no grace.
    fn default() -> Self {
        Self {
            concurrency: Concurrency::Parallel { max: None },
            rate: None,
            backoff_first: Duration::from_secs(10),
            backoff_max: Duration::from_mins(5),
            grace: Duration::ZERO,
            compatibility: Compatibility::default(),
        }
    }
}

/// Whose way is gone where the kubelet's has a weakness (`docs/compatibility.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compatibility {
    /// The kubelet's, to the letter.
    Kubelet,
    /// The better one: stable reasons, errors that name the image, waiting in place of refusals.
    #[default]
    Imagelet,
}

impl Compatibility {
    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Imagelet => "imagelet",
        }
    }

    /// Whether the kubelet's way is gone.
    pub fn is_kubelet(self) -> bool {
        self == Self::Kubelet
    }
}

/// How many pulls run at once. With [`Compatibility::Kubelet`] whoever waits is served in the order of asking; else the
/// queue is fair, and a few small pulls may run beside slow ones that hold every slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// One.
    Serial,
    /// Several.
    Parallel {
        /// How many; `None`: no limit.
        max: Option<NonZeroUsize>,
    },
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PullPolicy {
    /// Each time.
    Always,
    /// When it is not here.
    IfNotPresent,
    /// Not at all.
    Never,
    /// A word that is none of these. The kubelet pulls without looking, as if the image were absent.
    Other(OtherPolicy),
}

/// A pull policy that nobody knows, cut to [`OtherPolicy::LENGTH_MAX`] bytes: it comes from outside and becomes a label.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OtherPolicy {
    text: [u8; Self::LENGTH_MAX],
    length: usize,
}

impl OtherPolicy {
    /// Longest text kept; the known policies are shorter.
    pub const LENGTH_MAX: usize = 24;

    fn new(text: &str) -> Self {
        let length = text.floor_char_boundary(Self::LENGTH_MAX);
        let mut kept = [0; Self::LENGTH_MAX];
        kept[..length].copy_from_slice(&text.as_bytes()[..length]);
        Self { text: kept, length }
    }

    /// The word.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..self.length]).expect("it was cut between characters")
    }
}

impl fmt::Debug for OtherPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// The text is no pull policy.
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
        text.parse().unwrap_or_else(|_| Self::Other(OtherPolicy::new(text)))
    }

    /// The name in a pod spec.
    pub fn name(&self) -> &str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
            Self::Other(word) => word.as_str(),
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

/// Which pod asks. All empty: none does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: Arc<str>,
}

/// Who asks, and so who decides when to ask and how often to try again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A pod: decided here.
    #[default]
    Pod,
    /// A command of an operator, for no pod. Neither a back-off nor an open circuit holds it back: it is attempted at
    /// once, and its outcome counts for the pods that wait for the same.
    Command,
    /// A client that has decided itself, as a kubelet that asks a runtime to pull: it has policies, records and a back-off
    /// of its own. It is never held back for its own failures, gets what is here only by a right that is on record, and
    /// shares a pull with whoever asks the same.
    Client {
        /// Whether the node's own credentials are shown where it brings none; else the registry is asked anonymously.
        own_credentials: bool,
        /// Whether its pulls wait for the slots and the rate of [`PullSettings`]; else the client has limits of its own, and
        /// some hundred of its pulls run at once.
        is_limited: bool,
    },
}

impl Caller {
    /// Whether it decides itself.
    pub fn is_client(self) -> bool {
        matches!(self, Self::Client { .. })
    }
}

/// That an image shall be there.
#[derive(Clone, Debug)]
pub struct EnsureRequest {
    /// The image as the user spelled it.
    pub image: String,
    /// When to pull it.
    pub policy: PullPolicy,
    /// Who asks.
    pub pod: PodIdentity,
    /// What else the asker's interface says of the pod, for a runtime that speaks the same.
    pub encoded_pod: Option<EncodedPod>,
    /// Who decides.
    pub caller: Caller,
    /// The name of the pod's service account; `None` where it has none.
    pub service_account: Option<String>,
    /// The field of the pod that names the image: `spec.containers{NAME}`; events carry it.
    pub container: Arc<str>,
    /// Whose store; empty is the default handler.
    pub runtime_handler: String,
    /// Hints to the runtime: the pod's annotations, sorted by name.
    pub annotations: Vec<(String, String)>,
    /// Exactly these, in order, and none else; pull secrets and the node's own are not asked. Empty: see `secrets`.
    pub credentials: Vec<Credential>,
    /// The pod's pull secrets, asked before the node's own credentials.
    pub secrets: Vec<PullSecret>,
    /// For which kind of machine; `None`: this one.
    pub platform: Option<Platform>,
    /// Whose turn it is first where pulls wait for one another: the higher goes first, as with a pod's priority.
    /// Zero unless somebody says so. Without effect where turns go by the order of asking.
    pub priority: i32,
}

impl EnsureRequest {
    /// Whether somebody may start a container from it, as opposed to a person who wants it on the node.
    pub(super) fn is_for_a_container(&self) -> bool {
        self.caller.is_client() || !self.pod.uid.is_empty() || !self.pod.name.is_empty()
    }

    /// A request by nobody in particular, with the node's credentials.
    pub fn new(image: impl Into<String>, policy: PullPolicy) -> Self {
        Self {
            image: image.into(),
            policy,
            pod: PodIdentity::default(),
            encoded_pod: None,
            caller: Caller::default(),
            service_account: None,
            container: Arc::default(),
            runtime_handler: String::new(),
            annotations: Vec::new(),
            credentials: Vec::new(),
            secrets: Vec::new(),
            platform: None,
            priority: 0,
        }
    }

    pub(crate) fn subject(&self) -> EventSubject {
        EventSubject::Pod {
            namespace: self.pod.namespace.clone(),
            name: self.pod.name.clone(),
            uid: self.pod.uid.clone(),
            field_path: self.container.clone(),
        }
    }

    /// The entry of the decision log for a pull of this request, without an image yet.
    pub(super) fn act(&self, canonical: &Reference, code: ActCode, took: Duration, mut why: String) -> Act {
        let by = match (self.pod.name.is_empty(), self.caller.is_client()) {
            (false, _) => format!("pod {}/{}", self.pod.namespace, self.pod.name),
            (true, true) => "CRI".to_owned(),
            (true, false) => "command".to_owned(),
        };
        why.truncate(why.floor_char_boundary(REASON_LENGTH_MAX));
        Act {
            at: SystemTime::now(),
            code,
            keys: Vec::new(),
            names: vec![canonical.to_string()],
            by,
            bytes: None,
            took_ms: u64::try_from(took.as_millis()).ok(),
            why,
        }
    }

    /// What a credential provider is asked.
    pub(crate) fn query(&self, repository: &str) -> CredentialQuery {
        CredentialQuery {
            repository: repository.to_owned(),
            namespace: self.pod.namespace.to_string(),
            pod_name: self.pod.name.to_string(),
            pod_uid: self.pod.uid.to_string(),
            service_account: self.service_account.clone(),
        }
    }

    pub(crate) fn sandbox(&self) -> Option<SandboxConfig> {
        let is_known = self.pod != PodIdentity::default() || self.encoded_pod.is_some();
        is_known.then(|| SandboxConfig {
            name: self.pod.name.to_string(),
            namespace: self.pod.namespace.to_string(),
            uid: self.pod.uid.to_string(),
            encoded: self.encoded_pod.clone(),
        })
    }
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// Its id.
    pub id: ImageId,
    /// In whose store it is, by what the runtime says of it: many keep one for all handlers, whichever it was pulled for.
    pub handler: String,
    /// The name the runtime was asked for: the image with its default tag.
    pub reference: String,
    /// How it came to be there.
    pub origin: Origin,
    /// What the kubelet says of it; empty after a pull.
    pub message: String,
}

impl Ensured {
    pub(super) fn new(key: &ImageKey, spec: ImageSpec, origin: Origin, message: String) -> Self {
        Self { id: key.id().clone(), handler: key.handler().to_owned(), reference: spec.image, origin, message }
    }
}

/// Where an ensured image came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was here, and the asker may use it.
    AlreadyPresent,
    /// It was here, its registry is away, and the asker may use it for as long as that was allowed.
    Stale {
        /// How long ago the registry last named it.
        verified: Duration,
    },
    /// It was fetched.
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
        assert_eq!(PullPolicy::as_written(&"ü".repeat(100)).name(), "ü".repeat(OtherPolicy::LENGTH_MAX / 2));
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
