//! Removes images that nobody needs, to make room or because they are old (`docs/spec/gc.md §6-§8`).
//!
//! `plan.rs` decides, `collect.rs` acts: each removal is preceded by asking afresh whether the image is still free, and
//! the disk is looked at again at the end. `kubelet/` does the same in the kubelet's way, for who wants that. **Invariant:** an image goes only if a listing that just succeeded shows no
//! user of it.

mod choice;
mod collect;
mod disk;
mod facts;
mod input;
mod journal;
mod keeping;
mod kept;
mod kubelet;
mod labels;
mod ordered;
mod plan;
mod policy;
mod possible;
mod reason;
pub mod reclaim;
mod round;
mod rules;
mod runs;
mod shadow;
mod shortage;
mod tags;
mod text;
mod time;
mod verdicts;
pub mod worth;

#[cfg(test)]
mod between_tests;
#[cfg(test)]
mod layers_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod records_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vector_tests;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use self::labels::Labels;
pub use self::{
    choice::Shortage,
    disk::{DiskProbe, DiskUse, StatVfs},
    facts::{ImageFacts, Images},
    input::PlanInput,
    journal::Asked,
    kept::Kept,
    ordered::{OrderError, UsedImages},
    plan::{Plan, Step, plan},
    policy::{AgeCounts, GcOrder, GcPolicy, GcPolicyError, GcWay, InodeMarks, ReliefMarks},
    reason::{Idle, Reason},
    rules::{GcRules, KEEP_RULES_MAX, Keep, KeepRule, KeepRuleError, KeepRuleText, LAST_TAGS_MAX},
    runs::{GcRuns, RunLevel, RunTold},
    shadow::{Shadow, ShadowCounts},
    shortage::ShortOutcome,
    verdicts::{Decisions, GcDecision},
};
use crate::{
    audit_log::AuditLog,
    image::{ByteSize, ImageId, ImageKey},
    inventory::{Inventory, InventoryError},
    runtime::{Certainty, Freed, RuntimeError, RuntimeManager},
};

/// Collects images. One collection runs at a time; the others wait their turn.
#[derive(Debug)]
pub struct ImageGc {
    runtime: RuntimeManager,
    inventory: Arc<Inventory>,
    probe: Arc<dyn DiskProbe>,
    turn: tokio::sync::Mutex<()>,
    shortages: shortage::Shortages,
    rules: Mutex<Arc<GcRules>>,
    labels: Labels,
    decisions: Option<Arc<AuditLog>>,
}

/// What to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcRequest {
    /// Thresholds and ages.
    pub policy: GcPolicy,
    /// How far to go.
    pub goal: GcGoal,
    /// Decide and tell, remove nothing.
    pub dry_run: bool,
}

/// How far a collection goes. None of them takes an image in use, pinned, or younger than the policy's minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GcGoal {
    /// What is too old; then, if the disk is above the high threshold, down to the low one.
    Threshold,
    /// This many bytes, whatever the disk.
    Free(ByteSize),
    /// Everything unused.
    AllUnused,
}

/// What a collection did, and why. In a dry run: what it would have done.
#[derive(Debug)]
pub struct GcReport {
    /// The disk at the start; all zero where it could not be looked at and the goal does not need it.
    pub disk_before: DiskUse,
    /// The disk at the end; `None` where nothing was removed or it could not be looked at.
    pub disk_after: Option<DiskUse>,
    /// How much was to be freed; `None` where no room was wanted, or everything unused was.
    pub goal_bytes: Option<ByteSize>,
    /// Every image by key, and what became of it.
    pub decisions: Decisions,
    /// The removals tried, in order; none in a dry run.
    pub removed: Vec<GcRemoval>,
    /// The sizes of the removed images as the runtime lists them. Layers shared with others count although they stay.
    pub claimed: ByteSize,
    /// What the removals free by what is known of shared layers; see `certainty`. In the kubelet's way, which does not
    /// ask for layers on its own, the sizes as listed where no command asked.
    pub freed: Freed,
    /// What would be free if all that may go went.
    pub could_free: ByteSize,
    /// How sure `freed` and `could_free` are.
    pub certainty: Certainty,
    /// How much more is available on the disk than before; `None` where nothing was removed or measured.
    ///
    /// May lag behind where the runtime frees later, and includes what others wrote and removed meanwhile.
    pub measured: Option<ByteSize>,
    /// What went wrong although the collection went on, in order.
    pub failures: Vec<GcError>,
    /// Events to record on the node.
    pub events: Vec<GcEvent>,
    /// What was planned and from what, in order: more than one where something stood against a removal, none in the
    /// kubelet's way.
    pub planned: Vec<Arc<Planned>>,
    /// Ids of all images that are there after it, for whoever forgets what belongs to absent ones; `None` in a dry run
    /// or where they could not be listed, when nothing may be forgotten.
    pub present: Option<Vec<ImageId>>,
    /// In the kubelet's way: the ids it hands to its hooks, where it runs them, which is after a space phase without a
    /// failure. They are those it looked at and kept, and not all that are there: whoever forgets what belongs to absent
    /// images goes by `present`.
    pub hook: Option<Vec<ImageId>>,
}

impl GcReport {
    /// What the collection failed with, as one text: what the kubelet would have returned. `None`: it succeeded.
    pub fn failure(&self) -> Option<String> {
        // That nothing more can go is a state, told by an event of its own, and no failure of each run that sees it.
        let failures = self.failures.iter().filter(|error| !matches!(error, GcError::OutOfReach { .. }));
        let texts: Vec<String> = failures.map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| text::aggregate(&texts))
    }
}

/// A plan with all it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// From what.
    pub input: PlanInput,
    /// What.
    pub plan: Plan,
}

/// Stay or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcVerdict {
    /// It stays.
    Keep,
    /// It goes; [`GcReport::removed`] tells whether it went.
    Remove {
        /// What it goes for.
        phase: GcPhase,
    },
}

/// What an image goes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GcPhase {
    /// It was unused for too long.
    Age,
    /// Room is wanted.
    Space,
    /// All unused images were to go.
    All,
}

impl GcPhase {
    /// The word in metrics; the kubelet counts the removal of all unused images as `space`, too.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Space | Self::All => "space",
        }
    }
}

impl fmt::Display for GcPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Age => "age",
            Self::Space => "space",
            Self::All => "all",
        })
    }
}

/// One removal that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcRemoval {
    /// Which image.
    pub key: ImageKey,
    /// Its names, as [`crate::image::Image::names`] has them.
    pub names: Vec<String>,
    /// What for.
    pub phase: GcPhase,
    /// How it went.
    pub outcome: GcOutcome,
}

/// How a removal went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GcOutcome {
    /// The image is gone.
    Removed {
        /// What the runtime said it took.
        claimed: ByteSize,
    },
    /// The runtime did not remove it.
    Failed {
        /// What it said.
        error: String,
    },
}

/// A warning for the node's event list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcEvent {
    /// The word alerts match on.
    pub reason: &'static str,
    /// The text, to the kubelet's letter.
    pub message: String,
}

/// Why a collection failed, or a part of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GcError {
    /// The inventory could not be taken.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// The runtime does not tell where its images are.
    #[error(transparent)]
    Filesystem(RuntimeError),
    /// It tells of no place at all.
    #[error("imageFs information is unavailable")]
    NoImageFilesystem,
    /// The disk could not be looked at. The kubelet's text, so the cause is in it.
    #[error("get filesystem info: Failed to get the info of the filesystem with mountpoint: {cause}")]
    Probe {
        /// What the system said.
        cause: std::io::Error,
    },
    /// A disk without room, or one not visible from here.
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    /// Removals of old images failed.
    #[error("wanted to free images older than {}, encountered errors in image deletion: {errors}", text::duration_text(*age_max))]
    AgeRemovals {
        /// How old.
        age_max: Duration,
        /// All their texts.
        errors: String,
    },
    /// Removals for space failed.
    #[error("wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {errors}")]
    SpaceRemovals {
        /// Bytes wanted.
        wanted: i64,
        /// Bytes freed all the same.
        freed: u64,
        /// All their texts.
        errors: String,
    },
    /// All that could go went, and the disk is still too full.
    #[error(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {} used). Failed to free \
         sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used \
         by active images, logs, volumes, or other data.",
        text::size_text(capacity.0)
    )]
    NotEnough {
        /// How full the disk was before.
        used_percent: u8,
        /// How large it is.
        capacity: ByteSize,
        /// What went.
        freed: u64,
    },
    /// All that may go together is not enough.
    #[error("{}", shortage::message(*used_percent, *capacity, *outcome, shortage, *certainty))]
    OutOfReach {
        /// How full the disk was before.
        used_percent: u8,
        /// How large it is.
        capacity: ByteSize,
        /// What went all the same.
        outcome: ShortOutcome,
        /// What holds the space now.
        shortage: Shortage,
        /// How sure that is.
        certainty: Certainty,
    },
    /// No containers are listed where there were some: nothing is removed on such an answer.
    #[error("the runtime lists no containers where it listed some before; removed nothing on that answer")]
    ContainersVanished,
    /// What is in use could not be asked again before a removal.
    #[error("could not ask what is in use before removing an image")]
    Recheck(#[source] InventoryError),
}

impl GcError {
    /// The event the kubelet records for it.
    pub fn event(&self) -> Option<GcEvent> {
        let reason = match self {
            Self::NoCapacity => "InvalidDiskCapacity",
            Self::NotEnough { .. } | Self::OutOfReach { .. } => "FreeDiskSpaceFailed",
            _ => return None,
        };
        Some(GcEvent { reason, message: self.to_string() })
    }
}

fn invalid_id_event(key: &ImageKey) -> GcEvent {
    GcEvent { reason: "InvalidImageID", message: format!("ImageID is not valid, skipping, image: {key}") }
}

impl ImageGc {
    /// A collector of this runtime's images, by what this inventory knows of them.
    pub fn new(runtime: RuntimeManager, inventory: Arc<Inventory>) -> Self {
        Self {
            runtime,
            inventory,
            probe: Arc::new(StatVfs),
            turn: tokio::sync::Mutex::new(()),
            shortages: shortage::Shortages::default(),
            rules: Mutex::default(),
            labels: Labels::default(),
            decisions: None,
        }
    }

    /// The same, putting on record that an image is about to be removed: a process that ends before its collection does
    /// must not leave an image gone and nobody who did it.
    #[must_use]
    pub fn with_decisions(self, decisions: Arc<AuditLog>) -> Self {
        Self { decisions: Some(decisions), ..self }
    }

    /// The same, looking at disks otherwise than through the operating system.
    #[must_use]
    pub fn with_probe(self, probe: Arc<dyn DiskProbe>) -> Self {
        Self { probe, ..self }
    }

    /// What stays because an operator said so, from the next collection on. Rules that pin are pins of the inventory.
    pub fn set_rules(&self, rules: GcRules) {
        self.inventory.set_configured_pins(rules.keep.iter().filter_map(KeepRule::pin).cloned().collect());
        let mut current = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if **current != rules {
            *current = Arc::new(rules);
            self.labels.forget();
        }
    }

    fn rules(&self) -> Arc<GcRules> {
        Arc::clone(&self.rules.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
