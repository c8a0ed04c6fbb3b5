//! The ports of native import: an engine fetches and unpacks an image, and its layers become a runtime's own.
//!
//! [`ImageImporter`] is the whole of it behind one call. [`LayerSink`] is the end of the pipeline: the runtime's own
//! stores, reached past CRI. After an import the runtime owns ordinary images and nothing refers to imagelet.

mod decide;
mod forward_reason;
mod runtime_info;
mod service;

use std::{fmt, path::PathBuf, sync::Arc};

use async_trait::async_trait;

pub use self::{
    decide::ImportMode,
    forward_reason::{ForwardReason, PullWay, RegistrySetting},
    runtime_info::{RegistrySettings, RuntimeConfiguration, RuntimeInfo, SnapshotterPlace},
    service::{ImportSite, ImportStanding, ImportingImages, OpenedSite, WayTaken},
};
use super::{Freed, Progress, PullRequest, RuntimeError, chain_ids};
use crate::image::{Digest, ImageId, Reference};

/// Pulls images into a runtime's own stores without the runtime's help.
#[async_trait]
pub trait ImageImporter: Send + Sync + fmt::Debug {
    /// Fetches an image and imports it. Returns once the runtime shows the image and the disk has it.
    ///
    /// Dropping the future gives the import up; what the runtime holds for it is released in the background.
    ///
    /// # Errors
    /// With the stage at which the import ended: until [`ImportStage::Recorded`] the runtime knows no part of the image.
    async fn import(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, ImportError>;

    /// What imports under way have reserved on the disk and not written yet.
    fn reserved(&self) -> Freed;
}

/// Looks whether what images are made of is still in a runtime's stores.
#[async_trait]
pub trait ImageBacking: Send + Sync + fmt::Debug {
    /// Whether containers can be made from an image: the chain of all its layers has a snapshot, or the runtime has all
    /// blobs to unpack the layers again.
    ///
    /// # Errors
    /// Where the runtime cannot be asked.
    async fn is_usable(&self, image: &ImageId, chain: &Digest) -> Result<bool, RuntimeError>;
}

/// An import that ended without an image.
#[derive(Debug)]
pub struct ImportError {
    /// How far the import came.
    pub stage: ImportStage,
    /// Why it ended.
    pub cause: RuntimeError,
}

/// How far an import came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportStage {
    /// A registry was asked, or layers were fetched and unpacked.
    Fetch,
    /// The runtime's stores refused a layer or a document; no image record exists.
    Handover,
    /// Image records may exist.
    Recorded,
}

impl ImportStage {
    /// An error that ended an import at this stage.
    pub fn failed(self, cause: RuntimeError) -> ImportError {
        ImportError { stage: self, cause }
    }
}

/// A runtime's own stores, as the end of a pull.
#[async_trait]
pub trait LayerSink: Send + Sync + fmt::Debug {
    /// Begins an import: from here on the runtime keeps what the import puts into it, and the layers that it has already.
    ///
    /// # Errors
    /// Where the runtime cannot be asked or refuses.
    async fn begin(&self, image: Arc<ImportedImage>) -> Result<Arc<dyn LayerImport>, RuntimeError>;
}

/// One import under way. Dropped before [`LayerImport::finish`], it is given up in the background.
#[async_trait]
pub trait LayerImport: Send + Sync + fmt::Debug {
    /// How many of the lowest layers the runtime had at the begin. They are held and need not be fetched.
    fn present(&self) -> usize;

    /// Whether the runtime has layer `index` on top of all below it by now, as another import may have brought it.
    /// A layer that it has is held from here on.
    async fn holds(&self, index: usize) -> Result<bool, RuntimeError>;

    /// Moves an unpacked layer into the runtime. Layers may come in any order and at the same time: a layer waits here for
    /// those below it. The folder of `tree` is empty or gone afterwards.
    ///
    /// # Errors
    /// Where the runtime or the disk refuses; the import is then of no further use.
    async fn take(&self, index: usize, tree: StagedTree) -> Result<Taken, RuntimeError>;

    /// Names the image: documents, then image records, then a look whether the runtime shows it. The caller has synced
    /// the layers before. Once begun it ends by itself, whether or not the future is dropped: a record that comes after
    /// the runtime has released the layers would name nothing.
    async fn finish(&self) -> Result<ImageId, ImportError>;

    /// Gives the import up and returns once the runtime has released what it held for it.
    async fn abandon(&self);
}

/// What became of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The runtime has it.
    Committed,
    /// A layer below it is gone from the runtime: the import has to begin anew.
    BaseGone,
}

/// An image as its registry describes it, every document verified against its digest.
#[derive(Debug)]
pub struct ImportedImage {
    /// The reference that was asked for.
    pub reference: Reference,
    /// What the reference names: an index, or the manifest itself.
    pub root: ImportedDocument,
    /// The manifest that was chosen for the platform; equal to `root` where that is no index.
    pub manifest: ImportedDocument,
    /// The image's configuration.
    pub config: ImportedDocument,
    /// The layers, lowest first.
    pub layers: Vec<ImportedLayer>,
    /// Digests of all manifests that the index lists, in its order; empty where `root` is no index.
    pub index_entries: Vec<Digest>,
}

impl ImportedImage {
    /// The name of each layer with all below it, lowest first.
    pub fn chains(&self) -> Vec<Digest> {
        chain_ids(self.layers.iter().map(|layer| &layer.diff_id))
    }
}

/// A document of an image.
#[derive(Clone)]
pub struct ImportedDocument {
    /// Digest of its bytes.
    pub digest: Digest,
    /// Its media type.
    pub media_type: String,
    /// As the registry sent it.
    pub bytes: Arc<[u8]>,
}

/// A layer of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedLayer {
    /// Digest of the compressed blob.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// Its media type.
    pub media_type: String,
    /// Digest of the uncompressed archive.
    pub diff_id: Digest,
}

/// A layer that is unpacked and verified, with whiteouts in overlay form.
#[derive(Debug)]
pub struct StagedTree {
    /// The folder that is the layer's root.
    pub folder: PathBuf,
    /// Folders that no entry of the archive names, as raw bytes below the root, parents first: a lower layer may know
    /// their metadata. Empty bytes mean the root.
    pub implicit: Vec<Vec<u8>>,
    /// The compressed blob, where it is kept.
    pub blob: Option<PathBuf>,
}

impl fmt::Debug for ImportedDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} [{} bytes]", self.media_type, self.digest, self.bytes.len())
    }
}
