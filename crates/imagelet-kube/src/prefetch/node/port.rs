//! The port of the agent to its node: what is present, pulls, and pins.

use std::{collections::BTreeSet, fmt, time::SystemTime};

use async_trait::async_trait;
use imagelet_core::{
    error::{ErrorClass, Stage},
    events::Event,
    hold::HoldPolicy,
    manager::EnsureRequest,
    ports::PullWatcher,
};

/// The image manager of a node, as far as prefetch needs it.
#[async_trait]
pub trait PrefetchNode: Send + Sync + fmt::Debug {
    /// Which of these images are absent: by the last pass, or without their layers now.
    async fn presence(&self, references: &BTreeSet<String>) -> ImagePresence;

    /// Pulls one image, where the request's policy asks for it, if the disk has space for it below its watermark. Dropping
    /// the future cancels the pull.
    async fn fetch(&self, request: EnsureRequest, watcher: PullWatcher) -> Result<(), FetchFailure>;

    /// What decides whether a pull of [`Self::fetch`] is slow, at this moment.
    fn conditions(&self) -> FetchConditions;

    /// Pins exactly these images for sets; the pins outlive a restart. Fails with a text for the log.
    async fn pin(&self, pins: &[SetPin]) -> Result<(), String>;

    fn record(&self, event: Event);
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchConditions {
    /// The rate below which a pull gives way to those that wait.
    pub policy: HoldPolicy,
    /// The pull waits for its turn, behind pulls of pods.
    pub is_queued: bool,
    /// A pull that has not reported anything yet will report its bytes; a runtime reports none.
    pub is_measured: bool,
}

/// The images that a pass did not find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePresence {
    /// When the pass ran; `None`: there was none yet.
    pub taken_at: Option<SystemTime>,
    pub absent: BTreeSet<String>,
}

impl ImagePresence {
    /// Whether an image that was fetched at this time is gone.
    pub(super) fn is_removed(&self, reference: &str, fetched_at: SystemTime) -> bool {
        self.taken_at.is_some_and(|taken_at| taken_at > fetched_at) && self.absent.contains(reference)
    }
}

/// An image that a set keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetPin {
    /// The image as the set names it; a valid reference.
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
