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
    /// The credential for the registry. `None`: the pull is anonymous.
    pub credential: Option<Credential>,
    /// The credentials for other hosts that serve the image. Each names its host. A runtime does not get them.
    pub host_credentials: Vec<Credential>,
    pub pod: PodIdentity,
    /// The pod as the client encoded it, for a runtime with the same interface. `None`: the interfaces differ.
    pub encoded_pod: Option<EncodedPod>,
    /// The requested platform. `None`: the platform of this node. CRI has no field for a platform.
    pub platform: Option<Platform>,
    pub patience: Patience,
}

/// A host that may serve a registry's content, for example a mirror. The host never gets the registry's credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryHost {
    /// `HOST:PORT`, as in [`PullHost::host`](crate::audit_log::PullHost::host).
    pub host: String,
    /// The repository on this host, as keys of a docker configuration. A host with the default port has two keys.
    pub repositories: Vec<String>,
}

/// How long a pull retries before its registry serves content. Later, only the store's retry budget limits retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patience {
    /// A request that is older than this is not retried.
    pub attempt_max: Duration,
    /// The maximum time that all retries may take.
    pub retries_max: Duration,
    /// The maximum time that all retries may take if the registry requests a wait, as with `Retry-After`. The store's
    /// retry budget may end them earlier.
    pub requested_max: Duration,
}

/// The time for one retry: longer than the first backoff of a store (200 ms), shorter than the first two (450 ms).
const ONE_BACKOFF: Duration = Duration::from_millis(250);

impl Patience {
    /// For a client that retries itself, for example a kubelet: one retry, only after a quick failure, because other
    /// requests of the client may wait during the retry.
    pub const ONE_RETRY: Self = Self { attempt_max: ONE_BACKOFF, retries_max: ONE_BACKOFF, requested_max: ONE_BACKOFF };
    /// For a command: in 10 s of retries a registry has usually restarted, and a longer outage is reported soon.
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
