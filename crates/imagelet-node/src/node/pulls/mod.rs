//! The pulls of a node: one image, the images of a pod, and how far they are.

mod pods;
mod pull;
mod pull_progress;
mod status_rows;

pub(super) use pull_progress::ALL as FAMILIES;
pub use pull_progress::PullTracker;
pub(crate) use status_rows::{held_back, pulls_of, queue};
