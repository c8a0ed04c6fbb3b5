//! Collections of a node: asked for, recorded, and made for a pull that lacks space.

mod collect;
mod collection_stats;
mod gc_audit;
mod pressure;
mod space_for_pull;

pub(crate) use collect::{collect, reclaimable};
pub(crate) use collection_stats::CollectionStats;
pub(crate) use pressure::{Pressure, pressure};
pub(crate) use space_for_pull::SpaceByCollection;

/// Every metric of collections.
pub(crate) fn metric_families() -> impl Iterator<Item = &'static imagelet_core::metrics::Family> {
    collection_stats::ALL.iter().copied().chain([&collect::COLLECTED])
}
