//! The port by which a pull requests disk space before the pull is rejected.

use std::fmt;

use async_trait::async_trait;

use crate::image::ByteSize;

/// Frees disk space. The implementation is the collector, under its usual rules.
#[async_trait]
pub trait MakeRoom: Send + Sync + fmt::Debug {
    /// Frees `wanted.now`, or nothing if `wanted.whole` cannot be freed. Images that are in use, pinned or leased stay.
    /// `None`: collection for pulls is off, or the collection failed, which is logged.
    async fn make_room(&self, wanted: RoomWanted) -> Option<RoomMade>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomWanted {
    /// The additional space for the whole pull. If this much cannot be freed, no image is removed.
    pub whole: ByteSize,
    /// The space that the pull needs now. The rest is requested when its bytes arrive.
    pub now: ByteSize,
}

/// The result of a space request. The sizes are exact if the store knows its shared layers, else as listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoomMade {
    pub freed: ByteSize,
    pub could_free: ByteSize,
    pub removed: Vec<RemovedImage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedImage {
    /// The names of the image, or its id if it has no name.
    pub names: Vec<String>,
    pub bytes: ByteSize,
}
