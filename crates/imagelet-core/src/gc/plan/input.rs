//! Everything a plan depends on, in one value.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use crate::gc::{
    disk::DiskUse,
    policy::{GcGoal, GcPolicy},
    reason::{Idle, Reason},
};
use crate::{
    image::{ImageId, ImageKey},
    inventory::ImageEntry,
    runtime::{Freed, LayerGraph},
};

/// Everything a plan depends on. Equal inputs give equal plans.
#[derive(Clone, Debug)]
pub(in crate::gc) struct PlanInput<'a> {
    pub(in crate::gc) policy: GcPolicy,
    pub(in crate::gc) goal: GcGoal,
    /// When the collection began.
    pub(in crate::gc) now: SystemTime,
    /// Since when uses are known without a gap.
    pub(in crate::gc) watched_since: SystemTime,
    /// The disk when the collection began; `None`: not measured.
    pub(in crate::gc) disk: Option<DiskUse>,
    /// What this collection has freed for space before this plan was made; `disk` does not show it.
    pub(in crate::gc) freed: Freed,
    /// The same by age.
    pub(in crate::gc) aged: Freed,
    /// All images, ascending by key.
    pub(in crate::gc) entries: &'a [Arc<ImageEntry>],
    /// By place: why a keep rule holds the image. Empty where there are no rules.
    pub(in crate::gc) ruled: &'a [Option<Reason>],
    /// What the images share; `None`: not known.
    pub(in crate::gc) layers: Option<&'a LayerGraph>,
    /// Images that this collection has tried to remove, and why they stay.
    pub(in crate::gc) spared: &'a BTreeMap<ImageKey, Reason>,
}

impl PlanInput<'_> {
    pub(in crate::gc) fn id(&self, place: usize) -> &ImageId {
        &self.entries[place].image.id
    }

    /// How long the image was not used.
    pub(in crate::gc) fn idle(&self, place: usize) -> Idle {
        let entry = &self.entries[place];
        Idle::of(entry.last_used, entry.first_seen, self.now)
    }
}
