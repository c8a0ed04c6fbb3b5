//! The port to an image store in this process: calls beyond CRI's image service.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{LayerGraph, Progress, PullRequest, VerifyReport};
use crate::error::RuntimeError;
use crate::{
    credentials::Credential,
    image::{ByteSize, Digest, ImageId, ImageSpec, Platform, Reference},
};

/// The calls of a store in this process. Reached through [`super::ImageService::local`].
#[async_trait]
pub trait LocalStore: Send + Sync + fmt::Debug {
    /// Estimates a pull; fetches manifests only. `None`: not known.
    ///
    /// It leaves nothing behind. The `manifest` is that of a pull at the same moment, and after that pull nothing is
    /// missing.
    ///
    /// # Errors
    /// Where a pull at the same moment would fail before its first layer, with the same reason.
    async fn estimate(&self, _request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        Ok(None)
    }

    /// Removes one name, and the image with its last name; a missing name counts as success.
    async fn untag(&self, _name: &str) -> Result<(), RuntimeError> {
        Err(unsupported())
    }

    /// The parts that images share, and their sizes. `None`: not known.
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        Ok(None)
    }

    /// The damaged and therefore unlisted image of a name, an id or an id prefix.
    fn damaged(&self, _image: &str) -> Option<ImageId> {
        None
    }

    /// Removes the content that no name reaches, and with `unfinished` what pulls that broke off left.
    async fn sweep(&self, _unfinished: bool) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Makes earlier pulls durable; for an orderly end.
    ///
    /// # Errors
    /// When the disk refuses; content that was not durable is then dropped.
    async fn flush(&self) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn mount(
        &self,
        _image: &ImageSpec,
        _directory: &Path,
        _options: MountOptions,
    ) -> Result<MountedImage, RuntimeError> {
        Err(unsupported())
    }

    /// Unmounts, and removes what was written. `force` drops the note of a mount that this mount namespace does not
    /// show.
    async fn unmount(&self, _directory: &Path, _force: bool) -> Result<MountedImage, RuntimeError> {
        Err(unsupported())
    }

    /// Checks all images or one: every document, layer and kept blob, byte for byte.
    ///
    /// New damage is marked, except on a read-only file system: the image is not listed, across restarts, until a
    /// repair or a pull restores it. Dropping the future ends the check.
    ///
    /// # Errors
    /// When the image does not exist, or the check itself fails. Damage is not an error.
    async fn verify(&self, _image: Option<&str>, _progress: VerifyProgress) -> Result<VerifyReport, RuntimeError> {
        Err(unsupported())
    }

    /// Fetches the missing parts of a damaged image from the repositories of its names, each in turn, and shows it
    /// again. Dropping the future changes nothing.
    ///
    /// # Errors
    /// When no repository serves the missing parts (with the error of the last one), when a mount still shows a damaged
    /// layer, or when the disk refuses.
    async fn repair(
        &self,
        _id: &ImageId,
        _credentials: &Credentials<'_>,
        _progress: &Progress,
    ) -> Result<(), RuntimeError> {
        Err(unsupported())
    }

    /// Writes an image to an archive: an OCI layout with the exact bytes of its documents and compressed layers. What the
    /// store does not keep comes from the repositories of its names. The archive appears whole or not at all.
    ///
    /// # Errors
    /// When the image is absent, when neither the store nor a registry has a part of it, or when the disk refuses.
    async fn export(
        &self,
        _request: &ExportRequest,
        _credentials: &Credentials<'_>,
        _progress: &Progress,
    ) -> Result<ExportedImage, RuntimeError> {
        Err(unsupported())
    }

    /// Reads the images of an archive (OCI layout or `docker save`) into the store, each as a whole or not at all, under
    /// the rules and limits of a pull. Images and layers that are present are not unpacked again.
    ///
    /// # Errors
    /// When the archive cannot be read. The failure of one image is in its row.
    async fn import(&self, _request: &ImportRequest, _progress: &Progress) -> Result<Vec<ImportOutcome>, RuntimeError> {
        Err(unsupported())
    }

    /// Repairs the store's own files: writes the names again, removes damaged blobs.
    async fn repair_store(&self, _report: &VerifyReport) -> Result<(), RuntimeError> {
        Err(unsupported())
    }
}

fn unsupported() -> RuntimeError {
    RuntimeError::unsupported("this store does not support the call")
}

/// Progress of a check: bytes read, and their approximate total.
pub type VerifyProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// The credentials for a repository, in the order of their use.
pub type Credentials<'a> = dyn Fn(&str) -> Vec<Credential> + Send + Sync + 'a;

/// The estimated cost of a pull, from its manifests and the layers in the store.
///
/// Until the pull, a tag may move, and other pulls and collections may add or remove layers. The queue orders small
/// pulls before large ones by [`Self::bytes_missing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullEstimate {
    /// Digest of the manifest chosen for the platform.
    pub manifest: Digest,
    /// Compressed bytes of all distinct layers.
    pub bytes_total: ByteSize,
    /// Compressed bytes of the distinct missing layers.
    pub bytes_missing: ByteSize,
    /// Expected bytes of the missing layers on the disk, from the compression of each.
    pub bytes_unpacked: ByteSize,
    pub layers_missing: usize,
}

/// The place of an archive of images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArchivePlace {
    /// The tar file, or the folder with an OCI layout.
    pub path: PathBuf,
    /// Whether it is a folder.
    pub is_folder: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRequest {
    /// A name, an id or an id prefix.
    pub image: String,
    pub place: ArchivePlace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedImage {
    pub id: ImageId,
    /// Digest of its index, or of its manifest where there is no index.
    pub digest: Digest,
    /// Size of all blobs in the archive.
    pub bytes: ByteSize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportRequest {
    pub place: ArchivePlace,
    /// The name of its only image, instead of those in the archive.
    pub name: Option<Reference>,
    /// `None`: this machine.
    pub platform: Option<Platform>,
}

/// An image of an archive, after its import.
#[derive(Debug)]
pub struct ImportOutcome {
    /// Its names in the store, or as far as the archive has valid ones.
    pub names: Vec<String>,
    /// Its id, and whether it was present before.
    pub outcome: Result<(ImageId, bool), RuntimeError>,
}

/// Options of a mount. The default is read-only, nosuid and nodev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Writable; an unmount removes what was written.
    pub writable: bool,
    /// Set-id bits and capabilities of the image's files apply.
    pub suid: bool,
    /// The image's device nodes can be opened.
    pub dev: bool,
}

/// A mounted image, or one after its unmount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountedImage {
    /// The image's id.
    pub id: String,
    /// The mount point.
    pub directory: PathBuf,
    /// Whether it is writable; an unmount removes what was written.
    pub writable: bool,
    /// Whether a mount is left; after an unmount, at another place or in another mount namespace.
    pub remains: bool,
}
