//! The daemon's periodic jobs: each is one function, run by a timer and after a change of the configuration.

use std::{sync::Arc, time::Duration};

use imagelet_core::gc::{GcGoal, GcPolicy, GcRequest};
use imagelet_kube::{PrefetchAgent, PrefetchNode as _};
use tokio::{
    sync::{Mutex, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use crate::{
    config::{KubernetesSettings, Settings},
    failure::Failure,
    node::{Collection, FolderWatch, Images, LocalNode, import_arrivals},
};

/// How often the timer checks the settings while periodic collection is disabled.
const IDLE_PERIOD: Duration = Duration::from_mins(5);

/// How often the inventory checks for unwritten changes. Writes are mostly 45 s apart, so a crash loses less than 60 s.
const FLUSH_PERIOD: Duration = Duration::from_secs(10);

const SCAN_PERIOD: Duration = Duration::from_secs(2);
const SAMPLE_PERIOD: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct Jobs {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Jobs {
    pub(crate) fn start(node: &Arc<LocalNode>, stop: &CancellationToken) -> Self {
        let mut jobs = Self { tasks: JoinSet::new(), stop: stop.clone() };
        jobs.repeat(
            node,
            |settings| settings.images.detection_period,
            |node| async move { detect(&node.pulls.images).await },
        );
        let period = |settings: &Settings| settings.collection.period.unwrap_or(IDLE_PERIOD);
        jobs.repeat(node, period, |node| async move { collect_if_needed(&node.collection).await });
        // The inventory also records uses of images between passes, so a separate job writes it.
        jobs.repeat(node, |_| FLUSH_PERIOD, |node| async move { node.pulls.images.inventory.flush_if_due().await });
        jobs.repeat(node, |_| SAMPLE_PERIOD, |node| async move { node.collection.sample_disk().await });
        let watch = Arc::new(Mutex::new(FolderWatch::default()));
        jobs.repeat(
            node,
            |_| SCAN_PERIOD,
            move |node| {
                let watch = Arc::clone(&watch);
                async move { import_arrivals(&node.pulls.images, &mut *watch.lock().await).await }
            },
        );
        if let Some(agent) = node.status.agent.clone() {
            jobs.spawn(async move { agent.run().await });
        }
        if let Some(KubernetesSettings { access, node: name, .. }) = &node.pulls.images.settings().node.kubernetes {
            let target = Arc::new(node.pulls.clone());
            let agent = PrefetchAgent::new(access.client(), name, target);
            let agent = match &node.status.agent {
                Some(of_pods) => agent.with_pods_of(of_pods),
                None => agent,
            };
            jobs.spawn(async move { agent.run().await });
        } else if !node.pulls.images.place.is_read_only {
            // Without a cluster there are no image sets, so their pins are released.
            let target = node.pulls.clone();
            jobs.tasks.spawn(async move {
                if let Err(error) = target.pin(&[]).await {
                    tracing::warn!(error, "could not release the pins of sets");
                }
            });
        }
        jobs
    }

    /// Starts a periodic job. The period is read from the current settings, so a reload changes it.
    fn repeat<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        node: &Arc<LocalNode>,
        period: fn(&Settings) -> Duration,
        job: impl Fn(Arc<LocalNode>) -> F + Send + Sync + 'static,
    ) {
        let (node, settings) = (Arc::clone(node), node.pulls.images.settings.subscribe());
        self.spawn(async move { run(settings, |settings| period(settings), || job(Arc::clone(&node))).await });
    }

    /// A stop of the daemon drops the task at any await.
    fn spawn(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(work).await.unwrap_or_default() });
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a job did not end well");
            }
        }
    }
}

/// Runs a job at once, and again after each change of the settings or, like the kubelet, one period after its end.
async fn run<T, F>(mut settings: watch::Receiver<T>, period: impl Fn(&T) -> Duration, job: impl Fn() -> F)
where
    F: Future<Output = ()>,
{
    loop {
        job().await;
        let period = period(&settings.borrow());
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            _ = settings.changed() => drop(settings.borrow_and_update()),
        }
    }
}

async fn detect(images: &Images) {
    match images.inventory.refresh(std::time::SystemTime::now()).await {
        Ok(snapshot) => {
            tracing::debug!(
                images = snapshot.entries.len(),
                containers = snapshot.containers,
                "refreshed the inventory"
            );
            images.adopt(&snapshot).await;
        }
        Err(error) => tracing::info!(err = Failure::of(&error).to_string(), "Failed to monitor images"),
    }
}

/// The policy of the periodic collection. `None`: it is disabled. The detection of images always runs.
fn collects_by(settings: &Settings) -> Option<GcPolicy> {
    settings.collection.period?;
    if settings.collection.policy.is_off() {
        tracing::debug!("ImageGCHighThresholdPercent is set 100 and ImageMaximumGCAge is 0, Disable image GC");
        return None;
    }
    Some(settings.collection.policy)
}

async fn collect_if_needed(collection: &Collection) {
    let Some(policy) = collects_by(&collection.images.settings()) else { return };
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: false };
    let failure = match collection.collect(&request, "timer").await {
        Ok(report) => report.failure(),
        Err(failure) => Some(failure.to_string()),
    };
    if collection.is_shadow() {
        // Shadow mode removes no image. A failure is in the record of the collection and is not logged.
        return;
    }
    let message = collection.ended(failure.as_deref().map_or(Ok(()), Err));
    match message.level {
        Level::ERROR => tracing::error!(err = failure, "{}", message.text),
        Level::INFO => tracing::info!("{}", message.text),
        _ => tracing::debug!("{}", message.text),
    }
    collection.record_events(message.event);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use imagelet_vectors::vectors;

    use super::*;
    use crate::config::{Environment, Sources};

    #[tokio::test(start_paused = true)]
    async fn a_job_runs_at_once_and_then_a_period_after_each_end() {
        let begun: Arc<Mutex<Vec<u64>>> = Arc::default();
        let (noted, origin) = (Arc::clone(&begun), tokio::time::Instant::now());
        let mut jobs = Jobs { tasks: JoinSet::new(), stop: CancellationToken::new() };
        let job = move || {
            let noted = Arc::clone(&noted);
            async move {
                noted.lock().expect("nobody panicked").push(origin.elapsed().as_secs());
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        };
        let (_sender, settings) = watch::channel(Duration::from_secs(5));
        jobs.spawn(async move { run(settings, |period| *period, job).await });
        tokio::time::sleep(Duration::from_secs(20)).await;
        jobs.stop().await;
        assert_eq!(*begun.lock().expect("nobody panicked"), [0, 8, 16]);
    }

    #[test]
    fn the_vectors_of_the_loop_say_which_jobs_there_are() {
        let mut compared = 0;
        for case in vectors("gc-loop-events.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            let Some(high) = input["image_gc_high_threshold_percent"].as_i64() else { continue };
            let mut sources = Sources::new(Environment { root: true, ..Environment::default() });
            sources.add_flag("--test", "imageGCHighThresholdPercent", high);
            let age = imagelet_core::text::GoDuration(input["image_maximum_gc_age"].as_i64().expect("an age"));
            sources.add_flag("--test", "imageMaximumGCAge", age.to_string());
            let settings = sources.settings().expect("it holds");
            assert_eq!(expected["image_gc_loop_started"], collects_by(&settings).is_some(), "{}", case["name"]);
            // One pass does both here, and has a period whatever is collected.
            let detects = !settings.images.detection_period.is_zero();
            assert_eq!(expected["detect_loop_started"], detects, "{}", case["name"]);
            assert_eq!(expected["cache_loop_started"], detects, "{}", case["name"]);
            compared += 1;
        }
        assert_eq!(compared, 3);
    }
}
