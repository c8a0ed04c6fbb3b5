//! The pulls of a node: one image, the images of a pod, and how far they are.

mod pods;
mod pull;
mod pull_progress;
mod status_rows;

pub(crate) use pull_progress::progress_row;
pub(crate) use status_rows::{held_back, pulls_of, queue};
