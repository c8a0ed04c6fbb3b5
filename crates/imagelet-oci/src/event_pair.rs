//! Two events of a pull: one at the beginning of a wait or another state, and one at its end.

use imagelet_core::ports::{Progress, PullEvent};

/// A reported state of a pull. The drop reports its end.
pub(crate) struct EventPair {
    progress: Progress,
    end: Option<Box<PullEvent>>,
}

impl EventPair {
    pub(crate) fn begin(progress: Progress, begin: PullEvent, end: PullEvent) -> Self {
        progress(begin);
        Self { progress, end: Some(Box::new(end)) }
    }
}

impl Drop for EventPair {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            (self.progress)(*end);
        }
    }
}
