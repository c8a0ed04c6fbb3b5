//! The port of the agent to its node: the presence of images, pulls, and pins.

use std::{collections::BTreeSet, fmt, time::SystemTime};

use async_trait::async_trait;
use imagelet_core::{
    error::{ErrorClass, Stage},
    events::Event,
    hold::HoldPolicy,
    manager::EnsureRequest,
    ports::PullWatcher,
};

#[async_trait]
pub trait PrefetchNode: Send + Sync + fmt::Debug {
    /// Which of these images are absent: the last pass did not list them, or their layers are missing now.
    async fn presence(&self, references: &BTreeSet<String>) -> ImagePresence;

    /// Pulls an image if its policy requires this and the disk is below the watermark. Dropping the future cancels it.
    async fn fetch(&self, request: EnsureRequest, watcher: PullWatcher) -> Result<(), FetchFailure>;

    /// The current conditions that decide whether a pull of [`Self::fetch`] is slow.
    fn conditions(&self) -> FetchConditions;

    /// Pins exactly these images for sets. The pins survive a restart. The error is a text for the log.
    async fn pin(&self, pins: &[SetPin]) -> Result<(), String>;

    fn record(&self, event: Event);
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchConditions {
    pub policy: HoldPolicy,
    pub is_queued: bool,
    /// Whether a pull without a report so far will report its bytes. A pull by a runtime reports no bytes.
    pub is_measured: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePresence {
    /// The time of the pass, or `None` before the first pass.
    pub taken_at: Option<SystemTime>,
    pub absent: BTreeSet<String>,
}

impl ImagePresence {
    pub(super) fn is_removed(&self, reference: &str, fetched_at: SystemTime) -> bool {
        self.taken_at.is_some_and(|taken_at| taken_at > fetched_at) && self.absent.contains(reference)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetPin {
    /// The image as spelled in the set; a valid reference.
    pub reference: String,
    /// `ImageSet NAMESPACE/NAME` or `ClusterImageSet NAME`.
    pub owner: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchFailure {
    pub class: ErrorClass,
    pub stage: Stage,
    pub message: String,
}
