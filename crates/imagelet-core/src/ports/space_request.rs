//! The port by which a pull requests disk space before it is rejected.

use std::fmt;

use async_trait::async_trait;

use crate::image::ByteSize;

/// Frees disk space: the collector, under its usual rules.
#[async_trait]
pub trait MakeRoom: Send + Sync + fmt::Debug {
    /// Frees the space that is needed now; removes nothing where the whole cannot be freed.
    ///
    /// Images that are in use, pinned or leased stay. `None`: no collection for pulls, or a failure, which is logged.
    async fn make_room(&self, wanted: RoomWanted) -> Option<RoomMade>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomWanted {
    /// With this much more, the whole pull fits. Where that is out of reach, no image is removed for it.
    pub whole: ByteSize,
    /// What the pull needs now; the rest is requested as its bytes arrive.
    pub now: ByteSize,
}

/// The result of a space request: real sizes where the store knows its shared layers, else the listed sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoomMade {
    pub freed: ByteSize,
    /// Bytes of further removable images.
    pub could_free: ByteSize,
    pub removed: Vec<RemovedImage>,
}

/// An image that was removed for a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedImage {
    /// Its names, or its id if it has none.
    pub names: Vec<String>,
    /// The bytes that its removal freed.
    pub bytes: ByteSize,
}
