//! The pulls of a node: one image, the images of a pod, and how far they are.

mod imports;
mod pods;
mod pull;
mod pull_progress;
mod starts;
mod waiting;

pub(crate) use pull_progress::PullTracker;
pub(crate) use waiting::WaitingRows;
