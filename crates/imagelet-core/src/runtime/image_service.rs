//! The one seam: what can be asked of a store of images.

use std::{fmt, path::PathBuf, time::SystemTime};

use async_trait::async_trait;

use super::{
    Freed, ImageDetails, Listing, LocalStore, RuntimeError,
    pull_request::{Progress, PullRequest},
};
use crate::image::{ByteSize, Image, ImageId, ImageSpec};

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

    /// Removes an image with all its names. Absent is success.
    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError>;

    /// How much the images, and the containers' writable layers, take where.
    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError>;

    /// What the store offers beyond these calls, where it is in this process. `None`: a runtime behind a socket.
    fn local(&self) -> Option<&dyn LocalStore> {
        None
    }

    /// What pulls under way have been promised of the disk and not written yet.
    fn reserved(&self) -> Freed {
        Freed::default()
    }
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
