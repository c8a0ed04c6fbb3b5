//! The report of a collection, for its callers and for the audit log: decisions, totals, failures and the kubelet's
//! event texts.

use std::{sync::Arc, time::SystemTime};

use super::{
    plan::{Shortfall, size_text},
    reason::{GcPhase, Reason},
};
use crate::{
    audit_log::{Decision, Outcome, OutcomeResult, Run, RunHead},
    disks::DiskUse,
    image::{ByteSize, ImageId, ImageKey},
    inventory::{ImageEntry, InventoryError},
    runtime::{Certainty, Freed, RuntimeError},
    text::aggregate,
};

/// The results of a collection, or the predicted results of a dry run.
#[derive(Debug, Default)]
pub struct GcReport {
    /// The disk at the start; all zero where not measured and not needed by the goal.
    pub disk_before: DiskUse,
    /// The disk at the end; `None` without removals or without a measurement.
    pub disk_after: Option<DiskUse>,
    /// Bytes to free; `None` where no space or everything unused was wanted.
    pub goal_bytes: Option<ByteSize>,
    /// One decision per image: planned removals in order, then the others by key.
    pub decisions: Vec<GcDecision>,
    /// Listed sizes of the removed images, which include shared layers that stay.
    pub claimed: ByteSize,
    /// Bytes freed according to known shared layers; see `certainty`.
    pub freed: Freed,
    /// Bytes that all candidates would free.
    pub could_free: ByteSize,
    /// The certainty of `freed` and `could_free`.
    pub certainty: Certainty,
    /// Gain of available bytes on the disk, including concurrent writes and removals; `None` without removals or a
    /// measurement. May lag where the runtime frees asynchronously.
    pub measured: Option<ByteSize>,
    /// Errors that did not end the collection, in order.
    pub failures: Vec<GcError>,
    /// Events to record on the node.
    pub events: Vec<GcEvent>,
    /// Ids of all present images; `None` in a dry run or after a failed listing.
    pub present: Option<Vec<ImageId>>,
    /// The kubelet's policy: the ids for its hooks after a space phase without failure. They are the images it
    /// considered and kept, not all present ones.
    pub hook: Option<Vec<ImageId>>,
}

impl GcReport {
    /// The error text that the kubelet would return; `None` after a success.
    pub fn failure(&self) -> Option<String> {
        // An exhausted collection is a state with its own event, not a failure of each run.
        let failures = self.failures.iter().filter(|error| !matches!(error, GcError::OutOfReach { .. }));
        let texts: Vec<String> = failures.map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| aggregate(&texts))
    }

    /// The removed images, in order.
    pub fn removed(&self) -> impl Iterator<Item = &GcDecision> {
        self.decisions.iter().filter(|it| it.outcome == GcOutcome::Removed)
    }

    /// The removed images, or the selected ones of a dry run.
    pub fn chosen(&self) -> impl Iterator<Item = &GcDecision> {
        self.decisions.iter().filter(|it| matches!(it.outcome, GcOutcome::Removed | GcOutcome::Chosen))
    }
}

/// The decision on one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcDecision {
    /// The inventory's entry.
    pub entry: Arc<ImageEntry>,
    /// The outcome.
    pub outcome: GcOutcome,
    /// The reason of the outcome.
    pub reason: Reason,
    /// The purpose of the planned removal; `None`: no removal was planned.
    pub phase: Option<GcPhase>,
    /// Bytes freed after the previous removals.
    pub frees: ByteSize,
}

impl GcDecision {
    /// The image's key.
    pub fn key(&self) -> ImageKey {
        self.entry.key()
    }
}

/// The outcome of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GcOutcome {
    /// Not selected.
    Kept,
    /// Selected, but a later check prevented the removal.
    Spared,
    /// Dry run: selected.
    Chosen,
    /// Removed.
    Removed,
    /// The removal failed, with this error of the runtime.
    Failed(String),
}

/// A warning event on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcEvent {
    /// The event reason that alerts match.
    pub reason: &'static str,
    /// The kubelet's exact text.
    pub message: String,
}

/// Why a collection failed in whole or in part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GcError {
    /// The inventory could not be refreshed.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// The runtime does not report where its images are.
    #[error(transparent)]
    Filesystem(RuntimeError),
    /// The runtime reports no image file system.
    #[error("imageFs information is unavailable")]
    NoImageFilesystem,
    /// The disk could not be measured. The kubelet's text includes the cause.
    #[error("get filesystem info: Failed to get the info of the filesystem with mountpoint: {0}")]
    Probe(std::io::Error),
    /// A disk without capacity, or an invisible one.
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    /// Removals of old images or for space failed, in the kubelet's words.
    #[error("{0}")]
    Removals(String),
    /// The kubelet's policy: the disk is still too full after all possible removals.
    #[error(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {} used). Failed to free \
         sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used \
         by active images, logs, volumes, or other data.",
        size_text(capacity.0)
    )]
    NotEnough {
        /// Disk usage at the start.
        used_percent: u8,
        /// Disk capacity.
        capacity: ByteSize,
        /// Bytes freed.
        freed: u64,
    },
    /// All candidates together do not free enough.
    #[error("{text}")]
    OutOfReach {
        /// What holds the space.
        shortfall: Shortfall,
        /// The text of the event. It begins like the kubelet's, which alerts match.
        text: String,
    },
    /// The runtime lists no containers after it listed some; the list is not trusted.
    #[error("the runtime lists no containers where it listed some before; removed nothing on that answer")]
    ContainersVanished,
    /// The users could not be checked again before a removal.
    #[error("could not ask what is in use before removing an image")]
    Recheck(#[source] InventoryError),
}

impl GcError {
    /// The kubelet's event for this error.
    pub fn event(&self) -> Option<GcEvent> {
        let reason = match self {
            Self::NoCapacity => "InvalidDiskCapacity",
            Self::NotEnough { .. } | Self::OutOfReach { .. } => "FreeDiskSpaceFailed",
            _ => return None,
        };
        Some(GcEvent { reason, message: self.to_string() })
    }

    /// Whether the goal was missed without an error.
    pub fn is_shortfall(&self) -> bool {
        matches!(self, Self::NotEnough { .. } | Self::OutOfReach { .. })
    }
}

/// Limit of recorded failures per collection, and of bytes per text from outside.
const FAILURES_MAX: usize = 16;
const TEXT_LENGTH_MAX: usize = 1024;

/// The trigger of a collection, and whether it runs in shadow mode.
#[derive(Clone, Debug)]
pub struct RunTrigger {
    /// `timer`, `command`, `pull`.
    pub by: String,
    /// The collection only reports what it would remove.
    pub shadow: bool,
}

impl GcReport {
    /// The record of a collection between these two times.
    pub fn to_audit(&self, asked: &RunTrigger, (at, until): (SystemTime, SystemTime)) -> Run {
        Run {
            head: RunHead {
                at,
                until,
                by: asked.by.clone(),
                shadow: asked.shadow,
                claimed: self.claimed.0,
                measured: self.measured.map(|bytes| bytes.0),
                failures: self.failures.iter().take(FAILURES_MAX).map(|error| cut(&error.to_string())).collect(),
            },
            decisions: self.decisions.iter().map(decision).collect(),
            gone: Vec::new(),
            outcomes: self.decisions.iter().filter_map(outcome).collect(),
            left_out: 0,
        }
    }
}

fn outcome(decision: &GcDecision) -> Option<Outcome> {
    let result = match &decision.outcome {
        GcOutcome::Kept | GcOutcome::Chosen => return None,
        GcOutcome::Removed => OutcomeResult::Removed(decision.entry.image.size.0),
        GcOutcome::Failed(error) => OutcomeResult::Failed(cut(error)),
        GcOutcome::Spared => {
            OutcomeResult::Spared { code: decision.reason.code().into(), text: cut(&decision.reason.to_string()) }
        }
    };
    Some(Outcome { key: decision.key().to_string(), names: decision.entry.image.names().to_vec(), result })
}

fn decision(decided: &GcDecision) -> Decision {
    Decision {
        key: decided.key().to_string(),
        names: decided.entry.image.names().to_vec(),
        size: decided.entry.image.size.0,
        // A failed attempt is recorded with its reason, too.
        goes: !matches!(decided.outcome, GcOutcome::Kept | GcOutcome::Spared),
        code: decided.reason.code().into(),
        inputs: decided.reason.inputs(),
        text: cut(&decided.reason.to_string()),
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_LENGTH_MAX)].to_owned()
}
