//! Frees space for a pull through the collector, under its usual rules.

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

use super::collect::collect;
use crate::{config::CollectionMode, failure::Failure, node::local::LocalNode};

/// Collects on this node. Holds a weak reference, because the node owns the store that calls this.
pub(crate) struct SpaceByCollection(Weak<LocalNode>);

impl SpaceByCollection {
    pub(crate) fn new(node: &Arc<LocalNode>) -> Self {
        Self(Arc::downgrade(node))
    }
}

#[async_trait]
impl MakeRoom for SpaceByCollection {
    async fn make_room(&self, wanted: RoomWanted) -> Option<RoomMade> {
        let node = self.0.upgrade()?;
        let collection = &node.settings().collection;
        // In shadow mode no pull is promised space that is not freed.
        if !collection.for_pulls || !node.parts.uses_known || collection.mode == CollectionMode::Shadow {
            return None;
        }
        let made = free(&node, wanted).await;
        made.inspect_err(|failure| tracing::warn!(error = failure.to_string(), "could not make room for a pull")).ok()
    }
}

/// Plans first: no image is removed for a pull that is rejected anyway.
async fn free(node: &LocalNode, wanted: RoomWanted) -> Result<RoomMade, Failure> {
    let policy = node.settings().gc;
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
