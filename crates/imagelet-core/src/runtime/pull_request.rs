//! The parameters of a pull, its progress events, and the port of an observer of all pulls of a store.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{PullRoute, RemovedImage, RuntimeError};
use crate::{
    audit_log::PullHost,
    credentials::Credential,
    hold::PullWait,
    image::{ByteSize, Digest, ImageId, ImageSpec, Platform},
};

#[derive(Clone, Debug, Default)]
pub struct PullRequest {
    /// The reference, with its tag or digest.
    pub image: ImageSpec,
    /// The credential for the registry; `None` means anonymous.
    pub credential: Option<Credential>,
    /// The own credentials of other hosts that serve the registry's content; each names its host. A runtime gets none.
    pub host_credentials: Vec<Credential>,
    pub sandbox: Option<SandboxConfig>,
    /// `None`: the platform of this node. CRI has no field for it.
    pub platform: Option<Platform>,
    /// How long it retries at a registry that serves nothing.
    pub patience: Patience,
}

/// A host that may serve the content of a registry in its place: a mirror, or another location. It is shown its own credential
/// and none of the registry's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryHost {
    /// As in [`PullHost::host`].
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxConfig {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// The pod as the client's interface encodes it, for a runtime with the same interface. `None`: another interface.
    pub encoded: Option<EncodedPod>,
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

pub type Progress = Arc<dyn Fn(PullEvent) + Send + Sync>;

pub fn no_progress() -> Progress {
    Arc::new(|_| {})
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullEvent {
    /// The way into a runtime, where there is a choice; sent again where an import becomes a forward.
    Route(PullRoute),
    /// The manifest is known.
    Resolved {
        /// The manifest chosen for the platform.
        manifest: Digest,
        /// Digest and compressed size of each layer, in manifest order.
        layers: Vec<(Digest, ByteSize)>,
    },
    Layer {
        digest: Digest,
        state: LayerState,
    },
    /// All layers are present; the store syncs and names the image.
    Committing,
    /// An image was removed, because the disk had no space for the pull.
    Removed(RemovedImage),
    /// What each host of the registry sent in an attempt that is over, also one that failed.
    Hosts(Vec<PullHost>),
    /// A request of the pull is sent at a later time; other requests of the pull may go on.
    Retry {
        /// The host that gets the request.
        host: String,
        at: Instant,
        /// The host has requested the wait; otherwise it has failed.
        is_requested: bool,
    },
    /// A layer waits for something that other pulls hold, or (`None`) no longer.
    Waits {
        layer: Digest,
        wait: Option<PullWait>,
    },
    /// Something that the pull does all the same, and that its caller should know, such as a key without effect.
    Warning {
        /// The warning, in one line.
        text: String,
    },
    /// A host has a request of the pull and has not begun its answer for a while, or (`false`) no longer.
    Head {
        /// Host and port.
        host: String,
        /// Whether the answer is waited for.
        is_awaited: bool,
    },
    /// A request for a token is over.
    Token {
        service: String,
        /// When the request began; it ends with this event.
        began: Instant,
        /// Whether the service sent a token.
        is_granted: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// Present before the pull; nothing is fetched.
    Present,
    /// The download is running.
    Fetching {
        /// Compressed bytes received so far.
        received: ByteSize,
    },
    /// Fetched, verified and unpacked.
    Done,
}

/// Is notified of every pull. Must not block.
pub trait PullObserver: Send + Sync + fmt::Debug {
    /// A pull begins. Returns its number for the other calls.
    fn begin(&self, request: &PullRequest) -> u64;

    /// The pull made progress.
    fn step(&self, pull: u64, event: &PullEvent);

    /// The pull ended. Called once.
    fn end(&self, pull: u64, end: PullEnd<'_>);
}

/// The end of a pull.
#[derive(Clone, Copy, Debug)]
pub enum PullEnd<'a> {
    /// The image is present.
    Pulled,
    /// The pull failed.
    Failed(&'a RuntimeError),
    /// Its future was dropped.
    Cancelled,
}

/// Observes a pull until it ends or is dropped.
pub(super) struct ObservedPull {
    observer: Arc<dyn PullObserver>,
    pull: u64,
    is_over: bool,
}

impl ObservedPull {
    pub(super) fn begin(observer: &Arc<dyn PullObserver>, request: &PullRequest) -> Self {
        Self { observer: Arc::clone(observer), pull: observer.begin(request), is_over: false }
    }

    /// Notifies the observer before `progress`.
    pub(super) fn progress(&self, progress: Progress) -> Progress {
        let (observer, pull) = (Arc::clone(&self.observer), self.pull);
        Arc::new(move |event| {
            observer.step(pull, &event);
            progress(event);
        })
    }

    pub(super) fn end(mut self, outcome: &Result<ImageId, RuntimeError>) {
        self.is_over = true;
        self.observer.end(self.pull, outcome.as_ref().map_or_else(PullEnd::Failed, |_| PullEnd::Pulled));
    }
}

impl Drop for ObservedPull {
    fn drop(&mut self) {
        if !self.is_over {
            self.observer.end(self.pull, PullEnd::Cancelled);
        }
    }
}
