//! Everything a plan depends on, in one value that can be written down and planned from again.

use std::{collections::BTreeMap, time::SystemTime};

use serde::{Deserialize, Serialize};

use super::{DiskUse, GcGoal, GcPolicy, GcRules, Images, Reason};
use crate::{
    image::ImageKey,
    inventory::ReuseTable,
    runtime::{Freed, LayerGraph},
};

/// Everything a plan depends on. Equal inputs give equal plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanInput {
    /// Thresholds, ages, order.
    pub policy: GcPolicy,
    /// How far to go.
    pub goal: GcGoal,
    /// When the collection began.
    pub now: SystemTime,
    /// Since when uses are known without a gap.
    pub watched_since: SystemTime,
    /// The disk when the collection began; `None` where it could not be looked at.
    pub disk: Option<DiskUse>,
    /// What this collection has freed for room before this plan was made, as it is counted; `disk` does not show it.
    pub freed: Freed,
    /// The same, for age.
    pub aged: Freed,
    /// How the node's images fared so far, which tells the chance that one is used again.
    #[serde(default)]
    pub reuse: ReuseTable,
    /// All images, in the order of their keys.
    pub images: Images,
    /// What stays because an operator said so.
    #[serde(default, skip_serializing_if = "GcRules::is_empty")]
    pub rules: GcRules,
    /// What the images share; `None` where nobody can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerGraph>,
    /// Images this collection tried or meant to take and did not, and why: they stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spared: BTreeMap<ImageKey, Reason>,
}
