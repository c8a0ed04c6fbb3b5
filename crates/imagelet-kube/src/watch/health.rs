//! Whether the objects of a watch are known, and how fresh that is: for probes and metrics.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use imagelet_core::metrics::{Family, MetricKind, Metrics};
use tokio::time::Instant;

static SYNCED: Family = Family {
    name: "imagelet_kubernetes_pods_synced",
    help: "1 while the watch of the node's pods follows the API server, else 0.",
    kind: MetricKind::Gauge,
    labels: &[],
};
static HEARD: Family = Family {
    name: "imagelet_kubernetes_pods_timestamp_seconds",
    help: "When the API server last answered about the node's pods.",
    kind: MetricKind::Gauge,
    labels: &[],
};
static RESTARTS: Family = Family {
    name: "imagelet_kubernetes_watch_restarts_total",
    help: "Watches of the node's pods that ended, by cause: closed by the server, expired, failed.",
    kind: MetricKind::Counter,
    labels: &["cause"],
};
static PODS: Family = Family {
    name: "imagelet_kubernetes_pods",
    help: "Pods that are bound to the node, without those that are finished or being deleted.",
    kind: MetricKind::Gauge,
    labels: &[],
};
static WAITING: Family = Family {
    name: "imagelet_kubernetes_pods_waiting",
    help: "Those of them with containers that do not exist yet: their images are leased.",
    kind: MetricKind::Gauge,
    labels: &[],
};

/// Every metric of the watch.
pub(crate) const FAMILIES: [&Family; 5] = [&SYNCED, &HEARD, &RESTARTS, &PODS, &WAITING];

/// Why a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchEnd {
    /// By the server, as each watch does after some minutes.
    Closed,
    /// The server no longer has the resource version.
    Expired,
    /// With this error.
    Failed(String),
}

impl WatchEnd {
    fn cause(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Expired => "expired",
            Self::Failed(_) => "failed",
        }
    }
}

/// The watch as others see it.
#[derive(Debug)]
pub struct WatchHealth {
    /// Only the watch of the node's pods has metrics.
    metrics: Option<Arc<Metrics>>,
    record: Mutex<WatchRecord>,
}

#[derive(Debug, Default)]
struct WatchRecord {
    is_listed: bool,
    in_sync: bool,
    heard_at: Option<Instant>,
    restarts: u64,
    pods: usize,
    waiting: usize,
    failure: Option<String>,
}

/// The watch at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchReport {
    /// The pods were listed once since the start.
    pub is_listed: bool,
    /// The watch follows the API server.
    pub in_sync: bool,
    /// Time since the last answer of the API server.
    pub age: Option<Duration>,
    /// Watches that ended, for whatever cause.
    pub restarts: u64,
    /// Pods that are bound to the node and not finished.
    pub pods: usize,
    /// Those with containers that do not exist yet.
    pub waiting: usize,
    /// The failure that lasts.
    pub failure: Option<String>,
}

impl WatchHealth {
    /// Of the watch of the node's pods.
    pub(crate) fn of_pods(metrics: Arc<Metrics>) -> Self {
        for family in FAMILIES {
            metrics.declare(family);
        }
        Self { metrics: Some(metrics), record: Mutex::default() }
    }

    /// Of another watch, without metrics.
    pub(crate) fn unmeasured() -> Self {
        Self { metrics: None, record: Mutex::default() }
    }

    fn set(&self, family: &'static Family, value: f64) {
        if let Some(metrics) = &self.metrics {
            metrics.set(family, &[], value);
        }
    }

    /// The watch at this moment.
    pub fn report(&self) -> WatchReport {
        let WatchRecord { is_listed, in_sync, heard_at, restarts, pods, waiting, ref failure } = *self.lock();
        let age = heard_at.map(|at| at.elapsed());
        WatchReport { is_listed, in_sync, age, restarts, pods, waiting, failure: failure.clone() }
    }

    /// The API server answered.
    pub(super) fn heard(&self) {
        self.lock().heard_at = Some(Instant::now());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.set(&HEARD, now.as_secs_f64());
    }

    /// The objects are known.
    pub(super) fn listed(&self) {
        self.lock().is_listed = true;
    }

    /// The pods of the node changed.
    pub(crate) fn counted(&self, pods: usize, waiting: usize) {
        let mut record = self.lock();
        (record.pods, record.waiting) = (pods, waiting);
        drop(record);
        self.set(&PODS, count(pods));
        self.set(&WAITING, count(waiting));
    }

    /// The watch follows the API server. Returns the failure that has ended.
    pub(super) fn synced(&self) -> Option<String> {
        let mut record = self.lock();
        record.in_sync = true;
        let ended = record.failure.take();
        drop(record);
        self.set(&SYNCED, 1.0);
        ended
    }

    /// A watch, or the attempt to start one, ended. Returns whether the failure is another one than before.
    pub(super) fn ended(&self, end: &WatchEnd) -> bool {
        if let Some(metrics) = &self.metrics {
            metrics.increment(&RESTARTS, &[end.cause()]);
        }
        let mut record = self.lock();
        record.restarts += 1;
        let WatchEnd::Failed(failure) = end else { return false };
        record.in_sync = false;
        let is_new = record.failure.as_ref() != Some(failure);
        record.failure = Some(failure.clone());
        drop(record);
        self.set(&SYNCED, 0.0);
        is_new
    }

    fn lock(&self) -> MutexGuard<'_, WatchRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(number: usize) -> f64 {
    number as f64
}
