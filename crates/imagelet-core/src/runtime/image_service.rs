//! The port to an image store.

use std::{fmt, path::PathBuf, time::SystemTime};

use async_trait::async_trait;

use super::{
    Freed, ImageDetails, Listing, LocalStore, RuntimeError,
    pull_request::{Progress, PullRequest},
};
use crate::image::{ByteSize, Image, ImageId, ImageSpec};

/// An image store: a runtime behind CRI, the embedded engine, or a fake.
///
/// Every implementation keeps these promises, which the conformance suite of `testing` checks: a pulled image is listed
/// at once, a removed one is not; an image has the same id in every response; a missing image is no error for `status`
/// and `remove`; a failed or dropped pull leaves no image.
#[async_trait]
pub trait ImageService: Send + Sync + fmt::Debug {
    /// Lists images, each once. With a filter: the image that `status` would find for it, or none.
    ///
    /// A returned list is immutable: a store with a cached list builds a new one for a change.
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError>;

    /// Finds one image by reference, id, or unique prefix of its id. `None`: absent.
    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError>;

    /// Finds one image as `status` does, with all its details.
    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        Ok(self.status(spec).await?.map(ImageDetails::bare))
    }

    /// Fetches an image, present or not, and returns once it is durable.
    ///
    /// Dropping the future cancels the pull and leaves no partial image. Progress may be called from any thread and
    /// must not block.
    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError>;

    /// Removes an image with all its names; a missing image counts as success.
    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError>;

    /// The usage of the images and of the containers' writable layers, by file system.
    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError>;

    /// The further calls of a store in this process. `None`: a runtime behind a socket.
    fn local(&self) -> Option<&dyn LocalStore> {
        None
    }
}

/// The file systems of images and of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFilesystems {
    /// The file systems of images.
    pub images: Vec<FilesystemUsage>,
    /// The file systems of writable layers; the same entry for a common one.
    pub containers: Vec<FilesystemUsage>,
    /// Disk space that running pulls have reserved and not yet written.
    pub reserved: Freed,
}

/// The usage of one file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// The time of the measurement.
    pub measured_at: SystemTime,
    /// A directory on it.
    pub mountpoint: PathBuf,
    /// Bytes used by images (or writable layers).
    pub used: ByteSize,
    /// Inodes used by them, where known.
    pub inodes_used: Option<u64>,
}
