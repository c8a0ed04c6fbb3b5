//! What a collection did, and why: the decision on each image, the totals, the failures and the kubelet's event texts.

use std::{sync::Arc, time::Duration};

use super::{
    disk::DiskUse,
    plan::{self, ShortOutcome, Shortfall, size_text},
    reason::{GcPhase, Reason},
};
use crate::{
    image::{ByteSize, ImageId, ImageKey},
    inventory::{ImageEntry, InventoryError},
    runtime::{Certainty, Freed, RuntimeError},
    text::{aggregate, duration_text},
};

/// What a collection did, and why. In a dry run: what it would have done.
#[derive(Debug)]
pub struct GcReport {
    /// The disk at the start; all zero where it could not be measured and the goal does not need it.
    pub disk_before: DiskUse,
    /// The disk at the end; `None` where nothing was removed or it could not be measured.
    pub disk_after: Option<DiskUse>,
    /// How much was to be freed; `None` where no space was wanted, or everything unused was.
    pub goal_bytes: Option<ByteSize>,
    /// One for each image: those that were to go, in order; then those that stay, by key.
    pub decisions: Vec<GcDecision>,
    /// The sizes of the removed images as the runtime lists them. Layers shared with others count although they stay.
    pub claimed: ByteSize,
    /// What the removals free by what is known of shared layers; see `certainty`.
    pub freed: Freed,
    /// What would be free if everything that may go went.
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
    /// Ids of all images that are there after it; `None` in a dry run or where they could not be listed.
    pub present: Option<Vec<ImageId>>,
    /// In the kubelet's policy: the ids that it hands to its hooks, after a space phase without a failure. They are
    /// those it looked at and kept, and not all that are there.
    pub hook: Option<Vec<ImageId>>,
}

impl GcReport {
    /// What the collection failed with, as one text: what the kubelet would have returned. `None`: it succeeded.
    pub fn failure(&self) -> Option<String> {
        // That nothing more can go is a state with an event of its own, and no failure of each run that sees it.
        let failures = self.failures.iter().filter(|error| !matches!(error, GcError::OutOfReach { .. }));
        let texts: Vec<String> = failures.map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| aggregate(&texts))
    }

    /// The images that were removed, in order.
    pub fn removed(&self) -> impl Iterator<Item = &GcDecision> {
        self.decisions.iter().filter(|it| it.outcome == GcOutcome::Removed)
    }

    /// The images that went, or in a dry run would go.
    pub fn chosen(&self) -> impl Iterator<Item = &GcDecision> {
        self.decisions.iter().filter(|it| matches!(it.outcome, GcOutcome::Removed | GcOutcome::Chosen))
    }
}

/// What became of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcDecision {
    /// The image as the inventory knew it.
    pub entry: Arc<ImageEntry>,
    /// What became of it.
    pub outcome: GcOutcome,
    /// Why.
    pub reason: Reason,
    /// What it was to go for; `None`: it was to stay.
    pub phase: Option<GcPhase>,
    /// What its removal frees after those before it.
    pub frees: ByteSize,
}

impl GcDecision {
    /// Which image.
    pub fn key(&self) -> ImageKey {
        self.entry.key()
    }
}

/// What became of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GcOutcome {
    /// It stays.
    Kept,
    /// It was to go, and stays; the reason says what stood against it.
    Spared,
    /// Dry run: it would go.
    Chosen,
    /// It is gone.
    Removed,
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

impl GcEvent {
    /// The kubelet's event for an image that is listed without an id.
    pub(super) fn invalid_id(key: &ImageKey) -> Self {
        Self { reason: "InvalidImageID", message: format!("ImageID is not valid, skipping, image: {key}") }
    }
}

/// Why a collection failed, or a part of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GcError {
    /// The inventory could not be taken.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// The runtime does not report where its images are.
    #[error(transparent)]
    Filesystem(RuntimeError),
    /// It reports no place at all.
    #[error("imageFs information is unavailable")]
    NoImageFilesystem,
    /// The disk could not be measured. The kubelet's text, so the cause is in it.
    #[error("get filesystem info: Failed to get the info of the filesystem with mountpoint: {cause}")]
    Probe {
        /// What the system said.
        cause: std::io::Error,
    },
    /// A disk without capacity, or one not visible from here.
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    /// Removals of old images failed.
    #[error("wanted to free images older than {}, encountered errors in image deletion: {errors}", duration_text(*age_max))]
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
    /// The kubelet's policy: all that could go went, and the disk is still too full.
    #[error(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {} used). Failed to free \
         sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used \
         by active images, logs, volumes, or other data.",
        size_text(capacity.0)
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
    #[error("{}", plan::message(*used_percent, *capacity, *outcome, shortfall, *certainty))]
    OutOfReach {
        /// How full the disk was before.
        used_percent: u8,
        /// How large it is.
        capacity: ByteSize,
        /// What went all the same.
        outcome: ShortOutcome,
        /// What holds the space now.
        shortfall: Shortfall,
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

    /// Whether the goal was not reached although nothing went wrong.
    pub fn is_shortfall(&self) -> bool {
        matches!(self, Self::NotEnough { .. } | Self::OutOfReach { .. })
    }
}
