//! The pulls of a node: one image, the images of a pod, and how far they are.

mod imports;
mod pods;
mod pull;
mod pull_progress;
mod startup_latency;
mod waiting_reasons;

pub(super) use pull_progress::ALL as FAMILIES;
pub(crate) use pull_progress::PullTracker;
pub(crate) use waiting_reasons::WaitingRows;
