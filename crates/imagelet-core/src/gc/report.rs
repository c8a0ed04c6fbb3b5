//! The report of a collection: decisions, totals, failures and the kubelet's event texts.

use std::sync::Arc;

use super::{
    plan::{Shortfall, size_text},
    policy::GcPhase,
};
use crate::{
    audit_log::{Act, ActCode, ActDetails},
    disks::DiskUse,
    error::RuntimeError,
    image::{ByteSize, ImageId, ImageKey},
    inventory::{ImageEntry, InventoryError, Reason},
    ports::{Certainty, Freed},
    text::{PlainError, aggregate},
};

#[derive(Debug, Default)]
pub struct GcReport {
    /// The disk at the start of the collection. All fields are zero if the disk could not be measured.
    pub disk_before: DiskUse,
    pub disk_after: Option<DiskUse>,
    pub sizes: GcSizes,
    /// One decision per image: planned removals in order, then the other images by key.
    pub decisions: Vec<GcDecision>,
    pub failures: Vec<GcError>,
    pub events: Vec<GcEvent>,
    /// The ids of all images at the end of the collection. `None`: a dry run, or the listing failed.
    pub present: Option<Vec<ImageId>>,
    /// For the kubelet's hooks: the images that a successful collection for space considered and kept.
    pub hook: Option<Vec<ImageId>>,
}

#[derive(Debug, Default)]
pub struct GcSizes {
    /// The bytes to free. `None`: no space was needed, or the goal was to remove all unused images.
    pub goal: Option<ByteSize>,
    /// The sum of the listed sizes of the removed images, including shared layers that stay on the disk.
    pub claimed: ByteSize,
    /// The freed amount, calculated from the layers of the removed images. `certainty` is its reliability.
    pub freed: Freed,
    pub could_free: ByteSize,
    pub certainty: Certainty,
    /// The increase of available bytes on the disk, including writes and removals of other programs. `None`: no image
    /// was removed, or the disk could not be measured. If the runtime frees space later, the value is too low.
    pub measured: Option<ByteSize>,
}

impl GcReport {
    pub fn failure(&self) -> Option<String> {
        // An unreachable goal is no failure. It has its own event.
        let failures = self.failures.iter().filter(|error| !matches!(error, GcError::OutOfReach { .. }));
        let texts: Vec<String> = failures.map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| aggregate(&texts))
    }

    pub fn removed(&self) -> impl Iterator<Item = &GcDecision> {
        self.decisions.iter().filter(|it| it.outcome == GcOutcome::Removed)
    }

    pub fn chosen(&self) -> impl Iterator<Item = &GcDecision> {
        self.decisions.iter().filter(|it| matches!(it.outcome, GcOutcome::Removed | GcOutcome::Chosen))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcDecision {
    pub entry: Arc<ImageEntry>,
    pub outcome: GcOutcome,
    pub reason: Reason,
    pub phase: Option<GcPhase>,
    pub frees: ByteSize,
}

impl GcDecision {
    pub fn key(&self) -> ImageKey {
        self.entry.key()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GcOutcome {
    /// The image stays. If `phase` is set, the image was selected, but a later check prevented the removal.
    Kept,
    Chosen,
    Removed,
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcEvent {
    pub reason: &'static str,
    pub message: String,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GcError {
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    #[error(transparent)]
    Filesystem(RuntimeError),
    #[error(transparent)]
    Disk(#[from] PlainError),
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    #[error("{0}")]
    Removals(String),
    #[error(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {} used). Failed to free \
         sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used \
         by active images, logs, volumes, or other data.",
        size_text(capacity.0)
    )]
    NotEnough { used_percent: u8, capacity: ByteSize, freed: u64 },
    /// `text` begins like the kubelet's event text, because alerts match that beginning.
    #[error("{text}")]
    OutOfReach { shortfall: Shortfall, text: String },
    #[error("could not ask what is in use before removing an image")]
    Recheck(#[source] InventoryError),
}

impl GcError {
    pub fn event(&self) -> Option<GcEvent> {
        let reason = match self {
            Self::NoCapacity => "InvalidDiskCapacity",
            Self::NotEnough { .. } | Self::OutOfReach { .. } => "FreeDiskSpaceFailed",
            _ => return None,
        };
        Some(GcEvent { reason, message: self.to_string() })
    }

    pub fn is_shortfall(&self) -> bool {
        matches!(self, Self::NotEnough { .. } | Self::OutOfReach { .. })
    }
}

const TEXT_LENGTH_MAX: usize = 1024;

impl GcDecision {
    /// The audit record of a removal or a prevented removal. `by` is the trigger of the collection. `None`: no record.
    pub(super) fn act(&self, by: &str) -> Option<Act> {
        let (code, why) = match &self.outcome {
            GcOutcome::Chosen => return None,
            GcOutcome::Kept if self.phase.is_none() => return None,
            // No record if the collection ended before the step, or if another program removed the image.
            GcOutcome::Kept if matches!(self.reason, Reason::Aborted(_) | Reason::Gone) => return None,
            GcOutcome::Removed => (ActCode::Removed, self.reason.to_string()),
            GcOutcome::Kept => (ActCode::Refused, self.reason.to_string()),
            GcOutcome::Failed(error) => (ActCode::Refused, error.clone()),
        };
        let bytes = (code == ActCode::Removed).then_some(self.entry.image.size.0);
        let reason = self.reason.code().to_owned();
        let details = ActDetails { bytes, reason, why: cut(&why), ..ActDetails::default() };
        let keys = vec![self.key().to_string()];
        Some(Act { keys, details, ..Act::new(code, self.entry.image.names().to_vec(), by) })
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_LENGTH_MAX)].to_owned()
}
