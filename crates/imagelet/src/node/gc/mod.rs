//! Collections of a node: asked for, recorded, and made for a pull that lacks space.

mod collect;
mod collection_stats;
mod gc_audit;
mod pressure;

pub(crate) use collect::{SpaceByCollection, collect, reclaimable};
pub(super) use collection_stats::ALL as FAMILIES;
pub(crate) use collection_stats::CollectionStats;
pub(crate) use gc_audit::act_now;
pub(crate) use pressure::pressure;
