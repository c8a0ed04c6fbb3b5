//! The port of native import: imagelet fetches and unpacks an image, and a runtime takes over the layers.

use std::{fmt, path::PathBuf, sync::Arc};

use async_trait::async_trait;

use imagelet_core::{
    error::RuntimeError,
    image::{Artifact, Digest, ImageId, Reference},
    ports::chain_ids,
};

use crate::registry::ImageDocument;

#[derive(Debug)]
pub struct ImportError {
    pub stage: ImportStage,
    pub cause: RuntimeError,
    /// The manifest is an artifact's.
    pub is_artifact: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportStage {
    /// The runtime cannot use the image; nothing was fetched.
    Unusable,
    /// Requests to the registry, downloads and unpacking.
    Fetch,
    /// The runtime's stores rejected a layer or a document; no image record exists.
    Handover,
    /// Image records may exist.
    Recorded,
}

impl ImportStage {
    pub fn failed(self, cause: RuntimeError) -> ImportError {
        ImportError { stage: self, cause, is_artifact: false }
    }
}

/// A runtime's own stores, as the target of a pull.
#[async_trait]
pub trait LayerSink: Send + Sync + fmt::Debug {
    /// Starts an import. From now on the runtime removes neither the imported layers nor the image's layers that it
    /// already has.
    async fn begin(&self, image: Arc<ImportedImage>) -> Result<Arc<dyn LayerImport>, RuntimeError>;

    /// Checks that a pod can mount an artifact that was imported.
    fn check_mounts_artifacts(&self) -> Result<(), RuntimeError>;

    /// The digests of the manifest and of the only layer of the image with this name. `None`: there is no such image.
    async fn named_artifact(&self, name: &str) -> Result<Option<(Digest, Digest)>, RuntimeError>;
}

/// A running import. A drop before [`LayerImport::finish`] cancels it in the background.
#[async_trait]
pub trait LayerImport: Send + Sync + fmt::Debug {
    /// How many layers, counted from the base, the runtime already has.
    fn present(&self) -> usize;

    /// Whether the runtime now has layer `index` on top of all layers below it, for example from a parallel import.
    async fn holds(&self, index: usize) -> Result<bool, RuntimeError>;

    /// Moves an unpacked layer into the runtime. Layers may arrive in any order and in parallel: a layer waits for the
    /// layers below it. The folder of `tree` is empty or removed afterwards.
    ///
    /// # Errors
    /// If the runtime or the disk fails; the import cannot continue.
    async fn take(&self, index: usize, tree: StagedTree) -> Result<Taken, RuntimeError>;

    /// Records the image: documents, image records, then a check that the runtime lists the image. The caller has
    /// synced the layers. `finish` completes even if its future is dropped: a record written after the runtime released
    /// the layers would have no content.
    async fn finish(&self) -> Result<ImageId, ImportError>;

    /// Cancels the import and returns once the runtime has released its resources.
    async fn abandon(&self);
}

/// The result of moving a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Committed,
    /// The runtime removed a layer below this layer; the import must restart.
    BaseGone,
}

/// An image as the registry describes it, or as it is made of an artifact. Every document is verified against its
/// digest.
#[derive(Debug)]
pub struct ImportedImage {
    pub reference: Reference,
    /// The names of the image records, besides the id: by tag, unless the pull is by digest, then by digest.
    pub names: Vec<String>,
    /// The artifact that the image is made of.
    pub artifact: Option<Artifact>,
    /// The document that the image records name: an index, or the manifest itself.
    pub root: ImageDocument,
    /// The manifest for the platform; equal to `root` if `root` is no index.
    pub manifest: ImageDocument,
    pub config: ImageDocument,
    /// The layers, lowest first.
    pub layers: Vec<ImportedLayer>,
    /// Digests of all manifests in the index, in its order; empty if `root` is no index.
    pub index_entries: Vec<Digest>,
}

impl ImportedImage {
    /// The chain id of each layer, lowest first.
    pub fn chains(&self) -> Vec<Digest> {
        chain_ids(self.layers.iter().map(|layer| &layer.diff_id))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedLayer {
    /// Digest of the compressed blob.
    pub digest: Digest,
    pub size: u64,
    /// Digest of the uncompressed archive.
    pub diff_id: Digest,
}

/// An unpacked and verified layer, with whiteouts in overlay form.
#[derive(Debug)]
pub struct StagedTree {
    pub folder: PathBuf,
    /// Folders without an entry in the archive, as raw bytes below the root, parents first. A lower layer may have
    /// their metadata. Empty bytes mean the root.
    pub implicit: Vec<Vec<u8>>,
    /// The compressed blob, if blobs are kept.
    pub blob: Option<PathBuf>,
}
