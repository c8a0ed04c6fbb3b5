//! The parameters of a pull.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    credentials::Credential,
    events::PodIdentity,
    image::{ImageSpec, Platform},
};

#[derive(Clone, Debug, Default)]
pub struct PullRequest {
    /// The reference, with its tag or digest.
    pub image: ImageSpec,
    /// The credential for the registry. `None`: anonymous.
    pub credential: Option<Credential>,
    /// The credentials of other hosts with the registry's content. Each names its host. Not sent to a runtime.
    pub host_credentials: Vec<Credential>,
    pub pod: PodIdentity,
    /// The pod as encoded by the client's interface, for a runtime with the same interface. `None`: another interface.
    pub encoded_pod: Option<EncodedPod>,
    /// `None`: the platform of this node. CRI has no field for it.
    pub platform: Option<Platform>,
    pub patience: Patience,
}

/// A host that may serve a registry's content, for example a mirror. The host never gets the registry's credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryHost {
    /// As in [`PullHost::host`](crate::audit_log::PullHost::host).
    pub host: String,
    /// The repository on this host as a key of a docker configuration. With the default port, there are two forms.
    pub repositories: Vec<String>,
}

/// How long a pull retries before its registry serves content. Later, only the store's retry budget limits retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patience {
    /// An attempt that takes longer is not retried.
    pub attempt_max: Duration,
    /// The maximum for all retries.
    pub retries_max: Duration,
    /// The maximum if the registry requests a wait. The store's retry budget also applies.
    pub requested_max: Duration,
}

/// Permits the first backoff of a store (at most 200 ms), but not the first two (at least 450 ms).
const ONE_BACKOFF: Duration = Duration::from_millis(250);

impl Patience {
    /// For a client that retries itself, for example a kubelet: one retry, only after a quick failure, because other
    /// requests of the client may wait during the retry.
    pub const ONE_RETRY: Self = Self { attempt_max: ONE_BACKOFF, retries_max: ONE_BACKOFF, requested_max: ONE_BACKOFF };
    /// For a command. A registry that restarts is usually back in this time; a longer outage is reported soon.
    pub const FULL: Self =
        Self { attempt_max: Duration::MAX, retries_max: Duration::from_secs(10), requested_max: Duration::MAX };
}

impl Default for Patience {
    fn default() -> Self {
        Self::FULL
    }
}

/// The encoded configuration of a pod, forwarded without decoding. Prints only its length.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EncodedPod(Arc<[u8]>);

impl EncodedPod {
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for EncodedPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes]", self.0.len())
    }
}
