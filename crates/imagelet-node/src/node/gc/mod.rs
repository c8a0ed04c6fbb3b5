//! Collections of a node: asked for, recorded, and made for a pull that lacks space.

mod collect;
mod gc_audit;

pub(crate) use collect::{SpaceByCollection, collect, reclaimable};
pub(super) use gc_audit::FAMILIES;
pub(crate) use gc_audit::act_now;
