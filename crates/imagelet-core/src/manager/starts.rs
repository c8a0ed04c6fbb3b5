//! What whoever starts containers shows and counts of images that are not there (`spec/pull.md §2.6`, `§2.9`, `§9.1`).

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{EnsureError, PodRole};
use crate::metrics::{Family, MetricKind, Metrics};

/// Most containers whose last failure is remembered.
const REASONS_MAX: usize = 1000;

static REQUESTED: Family = Family {
    name: "kubelet_image_volume_requested_total",
    help: "Number of requested image volumes.",
    kind: MetricKind::Counter,
    labels: &[],
};

static MOUNTED: Family = Family {
    name: "kubelet_image_volume_mounted_succeed_total",
    help: "Number of successful image volume mounts.",
    kind: MetricKind::Counter,
    labels: &[],
};

static NOT_MOUNTED: Family = Family {
    name: "kubelet_image_volume_mounted_errors_total",
    help: "Number of failed image volume mounts.",
    kind: MetricKind::Counter,
    labels: &[],
};

static FAILED: Family = Family {
    name: "kubelet_started_containers_errors_total",
    help: "Cumulative number of errors when starting containers",
    kind: MetricKind::Counter,
    labels: &["container_type", "code"],
};

/// What a runtime's message begins with when a mount itself failed.
const MOUNT_FAILED: &str = "ImageVolumeMountFailed";

/// Counts starts of containers.
#[derive(Debug)]
pub struct StartMeters {
    metrics: Arc<Metrics>,
}

impl StartMeters {
    /// Nothing counted yet.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        for family in [&REQUESTED, &MOUNTED, &NOT_MOUNTED, &FAILED] {
            metrics.declare(family);
        }
        Self { metrics }
    }

    /// Counts one try to start a container that mounts this many image volumes. `failure` is what the creation of the
    /// container failed with: one that failed for any reason but the mount counts as mounted.
    pub fn tried(&self, volumes: usize, failure: Option<&str>) {
        let is_mounted = !failure.is_some_and(|message| message.starts_with(MOUNT_FAILED));
        self.metrics.add(&REQUESTED, &[], volumes as f64);
        self.metrics.add(if is_mounted { &MOUNTED } else { &NOT_MOUNTED }, &[], volumes as f64);
    }

    /// Counts a start that failed, by the waiting reason. A volume is no container, and starts nothing.
    pub fn failed(&self, role: PodRole, reason: &str) {
        let kind = match role {
            PodRole::Container => "container",
            PodRole::Init => "init_container",
            PodRole::Ephemeral => "ephemeral_container",
            PodRole::Volume => return,
        };
        self.metrics.increment(&FAILED, &[kind, reason]);
    }
}

/// Why a container waits: what its status shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The reason.
    pub reason: String,
    /// The message.
    pub message: String,
}

impl From<&EnsureError> for Waiting {
    fn from(error: &EnsureError) -> Self {
        Self { reason: error.reason().into_owned(), message: error.message() }
    }
}

impl Waiting {
    /// What someone is told who asks for the log of a container that waits.
    pub fn log_refusal(&self, container: &str, pod: &str) -> String {
        let why = match self.reason.as_str() {
            "ErrImagePull" => "image can't be pulled",
            "ImagePullBackOff" => "trying and failing to pull image",
            reason => reason,
        };
        format!("container {container:?} in pod {pod:?} is waiting to start: {why}")
    }
}

/// Remembers of each container why it last did not start; of the last thousand that were told or asked for.
#[derive(Default)]
pub struct WaitingReasons {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    by_container: HashMap<String, (Waiting, u64)>,
    clock: u64,
}

impl WaitingReasons {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps why a container did not start.
    pub fn failed(&self, pod_uid: &str, container: &str, waiting: Waiting) {
        let mut kept = self.lock();
        let now = kept.tick();
        let key = key(pod_uid, container);
        if kept.by_container.len() >= REASONS_MAX && !kept.by_container.contains_key(&key) {
            let oldest = kept.by_container.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                kept.by_container.remove(&oldest);
            }
        }
        kept.by_container.insert(key, (waiting, now));
    }

    /// Forgets it: the container started.
    pub fn started(&self, pod_uid: &str, container: &str) {
        self.lock().by_container.remove(&key(pod_uid, container));
    }

    /// Why a container did not start the last time.
    pub fn get(&self, pod_uid: &str, container: &str) -> Option<Waiting> {
        let mut kept = self.lock();
        let now = kept.tick();
        let (waiting, used) = kept.by_container.get_mut(&key(pod_uid, container))?;
        *used = now;
        Some(waiting.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

fn key(pod_uid: &str, container: &str) -> String {
    format!("{pod_uid}_{container}")
}

impl fmt::Debug for WaitingReasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingReasons").field("kept", &self.lock().by_container.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(reason: &str) -> Waiting {
        Waiting { reason: reason.into(), message: "m".into() }
    }

    #[test]
    fn only_a_failed_mount_counts_as_one_and_a_volume_starts_nothing() {
        let metrics = Arc::new(Metrics::new());
        let meters = StartMeters::new(Arc::clone(&metrics));
        meters.tried(2, None);
        meters.tried(1, Some("ErrImagePull"));
        meters.tried(1, Some("ImageVolumeMountFailed: no"));
        meters.failed(PodRole::Init, "ErrImagePull");
        meters.failed(PodRole::Volume, "ErrImagePull");
        let expected = "# HELP kubelet_image_volume_mounted_errors_total Number of failed image volume mounts.\n\
            # TYPE kubelet_image_volume_mounted_errors_total counter\nkubelet_image_volume_mounted_errors_total 1\n\
            # HELP kubelet_image_volume_mounted_succeed_total Number of successful image volume mounts.\n\
            # TYPE kubelet_image_volume_mounted_succeed_total counter\nkubelet_image_volume_mounted_succeed_total 3\n\
            # HELP kubelet_image_volume_requested_total Number of requested image volumes.\n\
            # TYPE kubelet_image_volume_requested_total counter\nkubelet_image_volume_requested_total 4\n\
            # HELP kubelet_started_containers_errors_total Cumulative number of errors when starting containers\n\
            # TYPE kubelet_started_containers_errors_total counter\n\
            kubelet_started_containers_errors_total{container_type=\"init_container\",code=\"ErrImagePull\"} 1\n";
        assert_eq!(metrics.render(), expected);
    }

    #[test]
    fn who_asks_for_a_log_is_told_why_there_is_none() {
        for (reason, why) in [
            ("ErrImagePull", "image can't be pulled"),
            ("ImagePullBackOff", "trying and failing to pull image"),
            ("ErrImageNeverPull", "ErrImageNeverPull"),
        ] {
            let expected = format!("container \"c\" in pod \"p\" is waiting to start: {why}");
            assert_eq!(waiting(reason).log_refusal("c", "p"), expected);
        }
    }

    #[test]
    fn reasons_are_kept_until_a_start_and_the_least_asked_for_goes_first() {
        let reasons = WaitingReasons::new();
        reasons.failed("u", "c", waiting("ErrImagePull"));
        for container in 0..REASONS_MAX {
            reasons.failed("other", &container.to_string(), waiting("ErrImagePull"));
            assert_eq!(reasons.get("u", "c"), Some(waiting("ErrImagePull")));
        }
        assert_eq!(reasons.get("other", "0"), None);
        reasons.started("u", "c");
        assert_eq!(reasons.get("u", "c"), None);
    }
}
