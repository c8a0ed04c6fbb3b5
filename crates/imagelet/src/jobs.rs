//! What the daemon does by itself: each job one function that looks afresh, woken by the clock or by whoever asks.

use std::{sync::Arc, time::Duration};

use imagelet_core::gc::{GcGoal, GcPolicy, GcRequest};
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    failure::Failure,
    node::{LocalNode, collect},
    rest,
};

/// How often a collection that is switched off looks whether it still is.
const IDLE_PERIOD: Duration = Duration::from_mins(5);

/// How often the inventory looks whether it has something to write. With the 45 s it waits between writes, a crash loses
/// less than a minute.
const FLUSH_PERIOD: Duration = Duration::from_secs(10);

/// The running jobs; whoever holds this awaits them.
#[derive(Debug)]
pub(crate) struct Jobs {
    tasks: JoinSet<()>,
    wake: Arc<Notify>,
    stop: CancellationToken,
}

impl Jobs {
    /// Starts all jobs.
    pub(crate) fn start(node: &Arc<LocalNode>, stop: &CancellationToken) -> Self {
        let wake = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        let clock = |period| Clock { period, wake: Arc::clone(&wake), stop: stop.clone() };
        tasks.spawn(run(Arc::clone(node), clock(|node| node.settings().detection_period), |node| {
            Box::pin(async move { detect(&node).await })
        }));
        tasks.spawn(run(
            Arc::clone(node),
            clock(|node| node.settings().collection.period.unwrap_or(IDLE_PERIOD)),
            |node| Box::pin(async move { collect_if_needed(&node).await }),
        ));
        // Uses come in without a pass, too; written each 45 s at most.
        tasks.spawn(run(Arc::clone(node), clock(|_| FLUSH_PERIOD), |node| {
            Box::pin(async move { node.parts().inventory.flush_if_due().await })
        }));
        tasks.spawn(rest::give_memory_back(stop.clone()));
        Self { tasks, wake, stop: stop.clone() }
    }

    /// Wakes every job now: the configuration has changed.
    pub(crate) fn wake(&self) {
        self.wake.notify_waiters();
    }

    /// Ends the jobs and waits for them.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a job did not end well");
            }
        }
    }
}

struct Clock {
    /// Asked each time, so that a reload changes it.
    period: fn(&LocalNode) -> Duration,
    wake: Arc<Notify>,
    stop: CancellationToken,
}

type Pass = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a job at once and then by its clock, never twice at a time. A stop drops the pass that runs.
async fn run(node: Arc<LocalNode>, clock: Clock, job: fn(Arc<LocalNode>) -> Pass) {
    loop {
        let began = Instant::now();
        tokio::select! {
            () = job(Arc::clone(&node)) => {}
            () = clock.stop.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep_until(began + (clock.period)(&node)) => {}
            () = clock.wake.notified() => {}
            () = clock.stop.cancelled() => return,
        }
    }
}

/// Finds, dates and caches all images.
async fn detect(node: &LocalNode) {
    match node.parts().inventory.refresh(std::time::SystemTime::now()).await {
        Ok(snapshot) => {
            tracing::debug!(images = snapshot.entries.len(), containers = snapshot.containers, "took stock");
        }
        Err(error) => tracing::warn!(error = Failure::of(&error).to_string(), "could not take stock of the images"),
    }
}

/// Collects what the configuration wants collected.
async fn collect_if_needed(node: &LocalNode) {
    let settings = node.settings();
    if settings.collection.period.is_none() {
        return;
    }
    let gc = &settings.gc;
    let policy = match GcPolicy::new(i64::from(gc.high.get()), i64::from(gc.low.get()), gc.age_min, gc.age_max) {
        Ok(policy) if policy.is_off() => return,
        Ok(policy) => policy,
        Err(error) => {
            tracing::error!(%error, "the thresholds are no policy");
            return;
        }
    };
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: false };
    if let Err(failure) = collect(node, &request).await {
        tracing::warn!(error = failure.to_string(), "image collection failed");
    }
}
