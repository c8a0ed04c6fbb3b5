//! The one seam: what can be asked of a store of images.

use std::{fmt, path::PathBuf, sync::Arc, time::SystemTime};

use async_trait::async_trait;

use super::{Freed, ImageDetails, LayerGraph, Listing, PullEstimate, PullWay, RuntimeError};
use crate::{
    credentials::Credential,
    image::{ByteSize, Digest, Image, ImageId, ImageSpec, Platform},
};

/// A store of images: a runtime seen through CRI, the embedded engine, or a fake.
///
/// Promises every implementation keeps, and the conformance suite of `testing` checks:
/// what was pulled is listed at once and what was removed is gone at once; one image has one id, the same in every
/// answer; an absent image is no error for `status` and `remove`; a failed or dropped pull leaves no image.
#[async_trait]
pub trait ImageService: Send + Sync + fmt::Debug {
    /// Lists images, each once. With a filter: the image that `status` would find for it, or none.
    ///
    /// A list that somebody else holds stays as it is: a store that keeps one makes another when something changes.
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError>;

    /// A number that grows before what `list` answers changes: as long as it is the same, so is the whole list. `None`:
    /// this store cannot tell.
    fn edition(&self) -> Option<u64> {
        None
    }

    /// Finds one image by reference, id, or unique prefix of its id. `None`: absent.
    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError>;

    /// Finds one image as `status` does, with all that the store knows of it.
    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        Ok(self.status(spec).await?.map(ImageDetails::bare))
    }

    /// Fetches an image, whether or not it is here, and answers once it is durable.
    ///
    /// Dropping the future gives the pull up and leaves nothing half done behind. Progress may be called from any
    /// thread and must not block.
    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError>;

    /// Tells what such a pull would still cost, without fetching more than manifests. `None`: this store cannot tell,
    /// as CRI cannot.
    ///
    /// It leaves nothing behind. An answer is the same `manifest` that a pull at the same moment would report, and
    /// misses nothing once that pull is done.
    ///
    /// # Errors
    /// Where a pull at the same moment would fail before its first layer, for the same reason.
    async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        let _ = request;
        Ok(None)
    }

    /// Removes an image with all its names. Absent is success.
    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError>;

    /// Takes one name away; the image goes with its last. Absent is success.
    ///
    /// # Errors
    /// [`super::RuntimeErrorKind::Unsupported`] where the store knows no such call, as CRI does not.
    async fn untag(&self, name: &str) -> Result<(), RuntimeError> {
        Err(RuntimeError::unsupported(format!("this runtime cannot remove the name `{name}` alone")))
    }

    /// How much the images, and the containers' writable layers, take where.
    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError>;

    /// What pulls under way have been promised of the disk and not written yet.
    fn reserved(&self) -> Freed {
        Freed::default()
    }

    /// Which images share which parts, and what each part takes. `None`: this store cannot tell.
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        Ok(None)
    }
}

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

/// The file systems images and containers live on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFilesystems {
    /// Where images are.
    pub images: Vec<FilesystemUsage>,
    /// Where writable layers are; the same entry when that is the same place.
    pub containers: Vec<FilesystemUsage>,
}

/// What one of them holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// When this was measured.
    pub measured_at: SystemTime,
    /// A directory on it.
    pub mountpoint: PathBuf,
    /// Bytes that images (or writable layers) take.
    pub used: ByteSize,
    /// Inodes that they take, where known.
    pub inodes_used: Option<u64>,
}
