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
    /// The credential for the registry; `None` means anonymous.
    pub credential: Option<Credential>,
    /// The own credentials of other hosts that serve the registry's content; each names its host. A runtime gets none.
    pub host_credentials: Vec<Credential>,
    pub pod: PodIdentity,
    /// The pod as the client's interface encodes it, for a runtime with the same interface. `None`: another interface.
    pub encoded_pod: Option<EncodedPod>,
    /// `None`: the platform of this node. CRI has no field for it.
    pub platform: Option<Platform>,
    /// How long it retries at a registry that serves nothing.
    pub patience: Patience,
}

/// A host that may serve the content of a registry in its place: a mirror, or another location. It is shown its own credential
/// and none of the registry's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryHost {
    /// As in [`PullHost::host`](crate::audit_log::PullHost::host).
    pub host: String,
    /// The repository there, as keys of a docker configuration name it; with the default port also in another form.
    pub repositories: Vec<String>,
}

/// How long a pull retries while its registry has served nothing; then it has the whole retry budget of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patience {
    /// An attempt that takes longer is not repeated.
    pub attempt_max: Duration,
    /// Over all retries.
    pub retries_max: Duration,
    /// The same where the registry requests a wait; the store's retry budget holds, too.
    pub requested_max: Duration,
}

/// The first backoff of a store is at most 200 ms, and the first two are at least 450 ms.
const ONE_BACKOFF: Duration = Duration::from_millis(250);

impl Patience {
    /// Of a client that repeats its request by itself, and whose other requests may wait meanwhile, as a kubelet: one retry,
    /// where the first attempt failed quickly.
    pub const ONE_RETRY: Self = Self { attempt_max: ONE_BACKOFF, retries_max: ONE_BACKOFF, requested_max: ONE_BACKOFF };
    /// Of a command: a registry that restarts is back by then; one that is away for longer is reported soon.
    pub const FULL: Self =
        Self { attempt_max: Duration::MAX, retries_max: Duration::from_secs(10), requested_max: Duration::MAX };
}

impl Default for Patience {
    fn default() -> Self {
        Self::FULL
    }
}

/// A pod's encoded configuration, passed through unread. Prints its length only.
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
