//! The input of a plan: everything it depends on, in one value.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use crate::gc::{
    policy::{GcGoal, GcPolicy},
    reason::{Idle, Reason},
};
use crate::{
    disks::DiskUse,
    image::{ByteSize, ImageId, ImageKey},
    inventory::ImageEntry,
    runtime::{Freed, LayerGraph},
};

/// Everything a plan depends on. Equal inputs give equal plans.
#[derive(Clone, Debug)]
pub(in crate::gc) struct PlanInput<'a> {
    pub(in crate::gc) policy: GcPolicy,
    pub(in crate::gc) goal: GcGoal,
    pub(in crate::gc) now: SystemTime,
    /// Start of gapless usage data.
    pub(in crate::gc) watched_since: SystemTime,
    /// The disk at the start of the collection; `None`: not measured.
    pub(in crate::gc) disk: Option<DiskUse>,
    /// Freed for space before this plan; not included in `disk`.
    pub(in crate::gc) freed: Freed,
    /// Freed by age before this plan.
    pub(in crate::gc) aged: Freed,
    pub(in crate::gc) entries: &'a [Arc<ImageEntry>],
    /// The keep-rule reason by index; empty without rules.
    pub(in crate::gc) ruled: &'a [Option<Reason>],
    /// Shared layers; `None`: unknown.
    pub(in crate::gc) layers: Option<&'a LayerGraph>,
    /// Images that this collection failed to remove, and why.
    pub(in crate::gc) spared: &'a BTreeMap<ImageKey, Reason>,
}

impl PlanInput<'_> {
    pub(in crate::gc) fn id(&self, place: usize) -> &ImageId {
        &self.entries[place].image.id
    }

    pub(in crate::gc) fn size(&self, place: usize) -> ByteSize {
        self.entries[place].image.size
    }

    pub(in crate::gc) fn idle(&self, place: usize) -> Idle {
        let entry = &self.entries[place];
        Idle::of(entry.last_used, entry.first_seen, self.now)
    }
}
