//! The port by which a pull requests disk space before it is rejected.

use std::fmt;

use async_trait::async_trait;

use crate::image::ByteSize;

/// Frees disk space: the collector, under its usual rules.
#[async_trait]
pub trait MakeRoom: Send + Sync + fmt::Debug {
    /// Frees the requested space as far as possible; removes nothing where the least useful amount is unreachable.
    ///
    /// Images that are in use, pinned or leased stay. `None`: no collection for pulls, or a failure, which is logged.
    async fn make_room(&self, wanted: RoomWanted) -> Option<RoomMade>;
}

/// The disk space that a pull requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomWanted {
    /// With this much more, the pull certainly fits.
    pub bytes: ByteSize,
    /// With less than this the pull is rejected, so no image should be removed for it.
    pub least: ByteSize,
}

/// The result of a space request: real sizes where the store knows its shared layers, else the listed sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomMade {
    /// Bytes of removed images.
    pub freed: ByteSize,
    /// Bytes of further removable images.
    pub could_free: ByteSize,
}
