//! The port of an observer of all pulls of a store, whichever caller started them.

use std::{fmt, sync::Arc};

use super::{Progress, PullEvent, PullRequest, RuntimeError};
use crate::image::ImageId;

/// Is notified of every pull. Must not block.
pub trait PullObserver: Send + Sync + fmt::Debug {
    /// A pull begins. Returns its number for the other calls.
    fn begin(&self, request: &PullRequest) -> u64;

    fn step(&self, pull: u64, event: &PullEvent);

    /// The pull ended. Called once.
    fn end(&self, pull: u64, end: PullEnd<'_>);
}

#[derive(Clone, Copy, Debug)]
pub enum PullEnd<'a> {
    Pulled,
    Failed(&'a RuntimeError),
    /// Its future was dropped.
    Cancelled,
}

/// Observes a pull until it ends or is dropped.
pub(super) struct ObservedPull {
    observer: Arc<dyn PullObserver>,
    pull: u64,
    is_over: bool,
}

impl ObservedPull {
    pub(super) fn begin(observer: &Arc<dyn PullObserver>, request: &PullRequest) -> Self {
        Self { observer: Arc::clone(observer), pull: observer.begin(request), is_over: false }
    }

    /// Notifies the observer before `progress`.
    pub(super) fn progress(&self, progress: Progress) -> Progress {
        let (observer, pull) = (Arc::clone(&self.observer), self.pull);
        Arc::new(move |event| {
            observer.step(pull, &event);
            progress(event);
        })
    }

    pub(super) fn end(mut self, outcome: &Result<ImageId, RuntimeError>) {
        self.is_over = true;
        self.observer.end(self.pull, outcome.as_ref().map_or_else(PullEnd::Failed, |_| PullEnd::Pulled));
    }
}

impl Drop for ObservedPull {
    fn drop(&mut self) {
        if !self.is_over {
            self.observer.end(self.pull, PullEnd::Cancelled);
        }
    }
}
