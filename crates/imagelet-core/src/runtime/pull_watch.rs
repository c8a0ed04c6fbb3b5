//! Whoever looks on while a store pulls, whoever asked for it.

use std::{fmt, sync::Arc};

use super::{Progress, PullEvent, PullRequest, RuntimeError};
use crate::image::ImageId;

/// Hears of every pull that a store is asked for. Must not block.
pub trait PullWatch: Send + Sync + fmt::Debug {
    /// One begins.
    fn begin(&self, request: &PullRequest) -> Arc<dyn PullSeen>;
}

/// One pull, looked at. Must not block.
pub trait PullSeen: Send + Sync {
    /// It is a step further.
    fn step(&self, event: &PullEvent);

    /// It is over. Called once.
    fn end(&self, end: PullEnd<'_>);
}

/// How a pull ended.
#[derive(Clone, Copy, Debug)]
pub enum PullEnd<'a> {
    /// The image is here.
    Pulled(&'a ImageId),
    /// It is not.
    Failed(&'a RuntimeError),
    /// Nobody wanted it any more.
    GivenUp,
}

/// A pull that is looked at until it ends, or is dropped.
pub(super) struct Looking(Option<Arc<dyn PullSeen>>);

impl Looking {
    pub(super) fn at(watch: &dyn PullWatch, request: &PullRequest) -> Self {
        Self(Some(watch.begin(request)))
    }

    /// The same progress, with whoever looks on told first.
    pub(super) fn heard(&self, progress: Progress) -> Progress {
        let Some(seen) = self.0.clone() else { return progress };
        Arc::new(move |event| {
            seen.step(&event);
            progress(event);
        })
    }

    pub(super) fn end(mut self, outcome: &Result<ImageId, RuntimeError>) {
        if let Some(seen) = self.0.take() {
            seen.end(match outcome {
                Ok(id) => PullEnd::Pulled(id),
                Err(error) => PullEnd::Failed(error),
            });
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(seen) = self.0.take() {
            seen.end(PullEnd::GivenUp);
        }
    }
}
