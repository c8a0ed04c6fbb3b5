//! What a pull is asked for, and the progress it reports.

use std::{fmt, sync::Arc};

use super::PullWay;
use crate::{
    credentials::Credential,
    image::{ByteSize, Digest, ImageSpec, Platform},
};

/// What to fetch, for whom.
#[derive(Clone, Debug, Default)]
pub struct PullRequest {
    /// The reference, with its tag or digest.
    pub image: ImageSpec,
    /// Shown to the registry; `None` asks anonymously.
    pub credential: Option<Credential>,
    /// The pod on whose behalf, where there is one.
    pub sandbox: Option<SandboxConfig>,
    /// `None`: the machine this runs on. CRI cannot carry it.
    pub platform: Option<Platform>,
}

/// Who a pull is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxConfig {
    /// The pod's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
    /// All that the asker's interface said of it, for a runtime that speaks the same. `None`: the asker spoke another.
    pub encoded: Option<EncodedPod>,
}

/// A pod's configuration as an interface encodes it: carried on, and read by nobody here. Prints its length alone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EncodedPod(Arc<[u8]>);

impl EncodedPod {
    /// Takes it as it is.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// As it was taken.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for EncodedPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes]", self.0.len())
    }
}

/// Where a pull reports how far it is.
pub type Progress = Arc<dyn Fn(PullEvent) + Send + Sync>;

/// A progress sink that listens to nothing.
pub fn no_progress() -> Progress {
    Arc::new(|_| {})
}

/// A step of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullEvent {
    /// How the image comes into a runtime, where there is a choice; again where an import becomes a forward.
    Way(PullWay),
    /// The manifest is known: what will be fetched, in manifest order.
    Resolved {
        /// Digest of the manifest chosen for the platform.
        manifest: Digest,
        /// Digest and compressed size of each layer.
        layers: Vec<(Digest, ByteSize)>,
    },
    /// A layer went on.
    Layer {
        /// Which.
        digest: Digest,
        /// Where it stands.
        state: LayerState,
    },
    /// All layers are here; they are being made durable and named.
    Committing,
}

/// Where a layer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// It was here before; no byte of it is fetched.
    Present,
    /// This many compressed bytes came in over the network.
    Fetching {
        /// Bytes received so far.
        received: ByteSize,
    },
    /// It is fetched, verified and unpacked.
    Done,
}
