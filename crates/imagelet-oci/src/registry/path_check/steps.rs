//! The stages of a connection with the time of each, recorded for the task that wants to know.

use std::{cell::RefCell, future::Future, time::Duration};

use imagelet_core::runtime::Stage;
use tokio::time::Instant;

tokio::task_local! {
    static STEPS: RefCell<Vec<ConnectionStep>>;
}

/// A stage that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionStep {
    pub(crate) stage: Stage,
    /// Host and port, or the host alone.
    pub(crate) place: String,
    pub(crate) detail: String,
    pub(crate) took: Duration,
}

/// Runs a future, and returns the stages of all connections that were made in it.
pub(crate) async fn recording<F: Future>(future: F) -> (F::Output, Vec<ConnectionStep>) {
    let recorded = async {
        let output = future.await;
        (output, STEPS.with(RefCell::take))
    };
    STEPS.scope(RefCell::default(), recorded).await
}

/// Records a stage that began at `began` and succeeds now. Without [`recording`] it does nothing.
pub(crate) fn record(stage: Stage, began: Instant, place: impl FnOnce() -> String, detail: impl FnOnce() -> String) {
    // Outside of a recording there is no list.
    let _ = STEPS.try_with(|steps| {
        let step = ConnectionStep { stage, place: place(), detail: detail(), took: began.elapsed() };
        steps.borrow_mut().push(step);
    });
}
