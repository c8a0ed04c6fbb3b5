//! Records the stages of connections, with the time of each, for the current task.

use std::{cell::RefCell, fmt::Display, future::Future, time::Duration};

use imagelet_core::error::{RuntimeError, Stage};
use tokio::time::Instant;

tokio::task_local! {
    static STEPS: RefCell<Vec<PathStep>>;
}

#[derive(Debug)]
pub struct PathStep {
    /// The step: `configuration`, `mirrors`, `platform`, or the word of a [`Stage`].
    pub name: &'static str,
    /// Host and port of the registry or mirror, or only the host. Empty for a step of the node.
    pub host: String,
    pub detail: String,
    pub took: Duration,
    /// Why the step failed, or `None` if it succeeded.
    pub error: Option<RuntimeError>,
}

/// Runs a future. Also returns the stages of all connections that the future made.
pub(crate) async fn recording<F: Future>(future: F) -> (F::Output, Vec<PathStep>) {
    let recorded = async {
        let output = future.await;
        (output, STEPS.with(RefCell::take))
    };
    STEPS.scope(RefCell::default(), recorded).await
}

/// Records a stage that began at `began` and succeeds now. Outside of [`recording`], it does nothing.
pub(crate) fn record(stage: Stage, began: Instant, host: &dyn Display, detail: String) {
    let step = PathStep { name: stage.name(), host: host.to_string(), detail, took: began.elapsed(), error: None };
    let _ = STEPS.try_with(|steps| steps.borrow_mut().push(step));
}
