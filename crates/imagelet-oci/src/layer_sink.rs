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
    pub is_artifact: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportStage {
    /// The runtime cannot use the image; nothing was fetched.
    Unusable,
    /// A request to the registry, a download or the unpacking failed.
    Fetch,
    /// The runtime's stores rejected a layer or a document; no image record exists.
    Handover,
    /// The import failed so late that image records may exist.
    Recorded,
}

impl ImportStage {
    pub fn failed(self, cause: RuntimeError) -> ImportError {
        ImportError { stage: self, cause, is_artifact: false }
    }
}

/// The stores of a runtime, as the target of a pull.
#[async_trait]
pub trait LayerSink: Send + Sync + fmt::Debug {
    /// Starts an import. Until the import ends, the runtime removes no layer of the image.
    async fn begin(&self, image: Arc<ImportedImage>) -> Result<Arc<dyn LayerImport>, RuntimeError>;

    fn check_mounts_artifacts(&self) -> Result<(), RuntimeError>;

    /// The digests of the manifest and of the only layer of an image. `None` if no image has this name.
    async fn named_artifact(&self, name: &str) -> Result<Option<(Digest, Digest)>, RuntimeError>;
}

/// A running import. Dropping it before [`LayerImport::finish`] cancels the import in the background.
#[async_trait]
pub trait LayerImport: Send + Sync + fmt::Debug {
    /// The number of layers, counted from the base, that the runtime already has.
    fn present(&self) -> usize;

    /// Whether the runtime has layer `index` and all layers below it. A parallel import may have added them.
    async fn holds(&self, index: usize) -> Result<bool, RuntimeError>;

    /// Moves an unpacked layer into the runtime, after the layers below it. Calls may be parallel and in any order.
    /// Afterwards the folder of `tree` is empty or removed. After an error, the import cannot continue.
    async fn take(&self, index: usize, tree: StagedTree) -> Result<Taken, RuntimeError>;

    /// Writes the documents and the image records, then checks that the runtime lists the image. The caller has synced
    /// the layers. `finish` completes even if its future is dropped: an image record must not outlive its layers.
    async fn finish(&self) -> Result<ImageId, ImportError>;

    /// Cancels the import. Returns after the runtime has released its resources.
    async fn abandon(&self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Committed,
    /// The runtime removed a layer below this layer; the import must restart.
    BaseGone,
}

/// An image of a registry, or an image made of an artifact. Each document is verified against its digest.
#[derive(Debug)]
pub struct ImportedImage {
    pub reference: Reference,
    /// The names of the image records, in addition to the id: with a digest if the pull is by digest, else with a tag.
    pub names: Vec<String>,
    /// The artifact from which the image is made. `None` for an image of a registry.
    pub artifact: Option<Artifact>,
    /// The document that the image records name: an index, or the manifest itself.
    pub root: ImageDocument,
    /// The manifest for the platform; equal to `root` if `root` is no index.
    pub manifest: ImageDocument,
    pub config: ImageDocument,
    /// The layers, the lowest first.
    pub layers: Vec<ImportedLayer>,
    /// Digests of all manifests in the index, in its order; empty if `root` is no index.
    pub index_entries: Vec<Digest>,
}

impl ImportedImage {
    /// The chain ids of the layers, the lowest first.
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

/// An unpacked and verified layer whose whiteouts have the form of overlayfs.
#[derive(Debug)]
pub struct StagedTree {
    pub folder: PathBuf,
    /// Paths of folders without an entry in the archive, parents first: raw bytes below the root, and empty for the
    /// root. A lower layer may have the metadata of these folders.
    pub implicit: Vec<Vec<u8>>,
    /// The compressed blob, if blobs are kept.
    pub blob: Option<PathBuf>,
}
