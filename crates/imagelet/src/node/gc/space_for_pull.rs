//! Room for a pull, made by the collector under its usual rules.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use async_trait::async_trait;
use imagelet_core::{
    gc::{GcGoal, GcRequest},
    image::ByteSize,
    runtime::{MakeRoom, RoomMade, RoomWanted},
};

use super::collect::{collect, policy};
use crate::{config::CollectionMode, failure::Failure, node::local::LocalNode};

/// Collects on this node; knows it only weakly, because the node's own store asks.
pub(crate) struct SpaceByCollection(Weak<LocalNode>);

impl SpaceByCollection {
    /// For this node.
    pub(crate) fn new(node: &Arc<LocalNode>) -> Self {
        Self(Arc::downgrade(node))
    }
}

#[async_trait]
impl MakeRoom for SpaceByCollection {
    async fn make_room(&self, wanted: RoomWanted) -> Option<RoomMade> {
        let node = self.0.upgrade()?;
        let collection = &node.settings().collection;
        // In shadow mode no pull is promised space that is not made.
        if !collection.for_pulls || !node.parts.uses_known || collection.mode == CollectionMode::Shadow {
            return None;
        }
        let made = free(&node, wanted).await;
        made.inspect_err(|failure| tracing::warn!(error = failure.to_string(), "could not make room for a pull")).ok()
    }
}

/// First asks what could go: images are not given up for a pull that is refused all the same.
async fn free(node: &LocalNode, wanted: RoomWanted) -> Result<RoomMade, Failure> {
    let policy = policy(&node.settings()).map_err(|error| Failure::of(&error))?;
    let ask = |bytes, dry_run| GcRequest { policy, goal: GcGoal::Free(bytes), dry_run };
    let planned = collect(node, &ask(wanted.bytes, true), "pull").await?;
    let could_free = planned.could_free;
    if could_free == ByteSize::ZERO || could_free < wanted.least {
        return Ok(RoomMade { freed: ByteSize::ZERO, could_free });
    }
    let freed = collect(node, &ask(wanted.bytes.min(could_free), false), "pull").await?.freed.bytes;
    tracing::info!(wanted = wanted.bytes.0, freed = freed.0, "made room for a pull");
    Ok(RoomMade { freed, could_free: could_free.saturating_sub(freed) })
}

impl fmt::Debug for SpaceByCollection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpaceByCollection")
    }
}
