//! The port to an embedded image store: operations that CRI's image service does not have.

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

/// What a sweep does with the remains of interrupted pulls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullRemains {
    /// Removes only outdated remains.
    Keep,
    /// Keeps only the remains of the last minutes, whose pulls are probably requested again.
    KeepYoung,
    Remove,
}

/// Operations that only an embedded store has. Reached through [`super::ImageService::local`].
#[async_trait]
pub trait LocalStore: Send + Sync + fmt::Debug {
    /// Estimates a pull; fetches only manifests, and does not change the store. `None`: there is no estimate. Fails as
    /// a pull that starts now would fail before its first layer.
    async fn estimate(&self, _request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        Ok(None)
    }

    /// Removes one name. With its last name, the image is removed too. A missing name is not an error.
    async fn untag(&self, _name: &str) -> Result<(), RuntimeError> {
        Err(unsupported())
    }

    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        Ok(None)
    }

    /// Finds a damaged image, which is not listed, by a name, an id or an id prefix.
    fn damaged(&self, _image: &str) -> Option<ImageId> {
        None
    }

    /// Removes the content that no image name and no running pull needs.
    async fn sweep(&self, _remains: PullRemains) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Makes earlier pulls durable before a normal exit. If the sync fails, the store drops non-durable content.
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

    /// Unmounts an image, and removes the data that was written to the mount. `force`: also removes the record of a
    /// mount that this mount namespace does not show.
    async fn unmount(&self, _directory: &Path, _force: bool) -> Result<MountedImage, RuntimeError> {
        Err(unsupported())
    }

    /// Checks every byte of all images or of one image. Damage is not an error. Marks new damage, except on a read-only
    /// file system. A marked image is not listed, also after a restart, until a repair or a pull restores it.
    async fn verify(&self, _image: Option<&str>, _progress: VerifyProgress) -> Result<VerifyReport, RuntimeError> {
        Err(unsupported())
    }

    /// Fetches the missing parts of a damaged image, and lists the image again. Tries the repositories of the image's
    /// names in order; the error is that of the last one. Fails if a mount still uses a damaged layer. A drop of the
    /// future changes nothing.
    async fn repair(
        &self,
        _id: &ImageId,
        _credentials: &Credentials<'_>,
        _progress: &Progress,
    ) -> Result<(), RuntimeError> {
        Err(unsupported())
    }

    /// Writes an image to an archive: an OCI layout with the exact bytes of its documents and compressed layers.
    /// Missing bytes are fetched from the repositories of the image's names. The archive appears only when complete.
    async fn export(
        &self,
        _request: &ExportRequest,
        _credentials: &Credentials<'_>,
        _progress: &Progress,
    ) -> Result<ExportedImage, RuntimeError> {
        Err(unsupported())
    }

    /// Reads the images of an archive (OCI layout or `docker save`) into the store, each image completely or not at
    /// all. The rules and limits of a pull apply. The failure of one image is in its [`ImportOutcome`].
    async fn import(&self, _request: &ImportRequest, _progress: &Progress) -> Result<Vec<ImportOutcome>, RuntimeError> {
        Err(unsupported())
    }

    /// Repairs the store's own files: writes the names again, and removes damaged blobs.
    async fn repair_store(&self, _report: &VerifyReport) -> Result<(), RuntimeError> {
        Err(unsupported())
    }
}

fn unsupported() -> RuntimeError {
    RuntimeError::unsupported("this store does not support the call")
}

/// The progress of a check: bytes read, and the approximate total.
pub type VerifyProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// The credentials for a repository, in the order in which they are tried.
pub type Credentials<'a> = dyn Fn(&str) -> Vec<Credential> + Send + Sync + 'a;

/// The estimated cost of a pull, from its manifests and the layers in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullEstimate {
    /// Digest of the manifest chosen for the platform.
    pub manifest: Digest,
    /// Compressed bytes of all distinct layers.
    pub bytes_total: ByteSize,
    /// Compressed bytes of the distinct missing layers.
    pub bytes_missing: ByteSize,
    /// Expected bytes of the missing layers on the disk, computed from the compression of each layer.
    pub bytes_unpacked: ByteSize,
    pub layers_missing: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArchivePlace {
    pub path: PathBuf,
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
    /// Digest of the image's index, or of its manifest if there is no index.
    pub digest: Digest,
    pub bytes: ByteSize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportRequest {
    pub place: ArchivePlace,
    /// The name for the only image in the archive, instead of the archive's names.
    pub name: Option<Reference>,
    /// The platform of the images to import. `None`: the platform of this machine.
    pub platform: Option<Platform>,
}

#[derive(Debug)]
pub struct ImportOutcome {
    /// The names of the image in the store. After a failure, the valid names in the archive.
    pub names: Vec<String>,
    /// The id of the image, and whether the image was present before.
    pub outcome: Result<(ImageId, bool), RuntimeError>,
}

/// The options of a mount. Default: read-only, nosuid and nodev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// The mount is writable. An unmount removes the written data.
    pub writable: bool,
    /// Set-id bits and file capabilities of the image take effect.
    pub suid: bool,
    /// Device nodes of the image can be opened.
    pub dev: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountedImage {
    pub id: String,
    pub directory: PathBuf,
    pub writable: bool,
    /// Whether the image is still mounted. After an unmount: at another path or in another mount namespace.
    pub remains: bool,
}
