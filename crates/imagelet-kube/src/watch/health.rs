//! The health of a watch: whether its objects are known, and the time of the last contact. Probes and metrics use it.

use std::{
    sync::{Arc, Mutex},
    time::SystemTime,
};

use imagelet_core::{
    lock::locked,
    metrics::{Family, MetricKind, Metrics, families},
};
use tokio::time::Instant;

use crate::client::Answer;

families! {
    SYNCED = "imagelet_kubernetes_pods_synced",
        "1 while the watch of the node's pods follows the API server, else 0.", MetricKind::Gauge, &[];
    HEARD = "imagelet_kubernetes_pods_timestamp_seconds",
        "When the API server last answered about the node's pods.", MetricKind::Gauge, &[];
    RESTARTS = "imagelet_kubernetes_watch_restarts_total",
        "Watches of the node's pods that failed, by cause: expired, failed.", MetricKind::Counter, &["cause"];
    PODS = "imagelet_kubernetes_pods",
        "Pods that are bound to the node, without those that are finished or being deleted.", MetricKind::Gauge, &[];
    WAITING = "imagelet_kubernetes_pods_waiting",
        "Those of them with containers that do not exist yet: their images are leased.", MetricKind::Gauge, &[];
}

#[derive(Debug, Default)]
pub struct WatchHealth {
    /// Only the watch of the node's pods has metrics.
    metrics: Option<Arc<Metrics>>,
    report: Mutex<WatchReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchReport {
    pub is_listed: bool,
    /// Whether the watch is connected and receives changes.
    pub in_sync: bool,
    pub heard_at: Option<Instant>,
    pub restarts: u64,
    pub pods: usize,
    pub waiting: usize,
    pub failure: Option<String>,
}

impl WatchHealth {
    pub(crate) fn of_pods(metrics: Arc<Metrics>) -> Self {
        for family in FAMILIES {
            metrics.declare(family);
        }
        Self { metrics: Some(metrics), ..Self::default() }
    }

    fn set(&self, family: &'static Family, value: f64) {
        if let Some(metrics) = &self.metrics {
            metrics.set(family, &[], value);
        }
    }

    pub fn report(&self) -> WatchReport {
        locked(&self.report).clone()
    }

    /// Records the progress of a request. If the watch works again, returns the failure that has ended.
    pub(super) fn observe(&self, answer: Answer) -> Option<String> {
        let mut report = locked(&self.report);
        match answer {
            Answer::Watching => {
                report.in_sync = true;
                self.set(&SYNCED, 1.0);
                return report.failure.take();
            }
            Answer::Heard => {
                report.heard_at = Some(Instant::now());
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                self.set(&HEARD, now.as_secs_f64());
            }
            Answer::Rejected(_) | Answer::Failed => {}
        }
        None
    }

    pub(super) fn listed(&self) {
        locked(&self.report).is_listed = true;
    }

    pub(crate) fn counted(&self, pods: usize, waiting: usize) {
        let mut report = locked(&self.report);
        (report.pods, report.waiting) = (pods, waiting);
        self.set(&PODS, pods as f64);
        self.set(&WAITING, waiting as f64);
    }

    /// Records a failed watch or a failed start. An expired watch stays in sync. Returns whether the failure is new.
    pub(super) fn failed(&self, failure: String, is_expired: bool) -> bool {
        if let Some(metrics) = &self.metrics {
            metrics.increment(&RESTARTS, &[if is_expired { "expired" } else { "failed" }]);
        }
        let mut report = locked(&self.report);
        report.restarts += 1;
        if is_expired {
            return false;
        }
        report.in_sync = false;
        self.set(&SYNCED, 0.0);
        let before = report.failure.replace(failure);
        before != report.failure
    }
}
