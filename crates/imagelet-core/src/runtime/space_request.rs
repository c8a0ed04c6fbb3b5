//! Who is asked for room before a pull is refused.

use std::fmt;

use async_trait::async_trait;

use crate::image::ByteSize;

/// Whoever can free disk space: the collector, under its usual rules.
#[async_trait]
pub trait MakeRoom: Send + Sync + fmt::Debug {
    /// Frees what is wanted as far as it can; removes nothing where that would not even free the least that helps.
    ///
    /// What is in use, pinned or handed out stays. `None`: nothing is collected for pulls here, or it failed, which is
    /// told in the log.
    async fn make_room(&self, wanted: RoomWanted) -> Option<RoomMade>;
}

/// How much room a pull wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomWanted {
    /// With this much more it is known to fit.
    pub bytes: ByteSize,
    /// With less than this it is refused, so that nothing need be removed for it.
    pub least: ByteSize,
}

/// What became of a wish for room: what really comes free where the store knows what images share, else the sizes that
/// images are listed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomMade {
    /// Bytes of the images that went.
    pub freed: ByteSize,
    /// Bytes of the images that could have gone as well.
    pub could_free: ByteSize,
}
