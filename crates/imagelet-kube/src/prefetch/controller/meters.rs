//! What the controller counts, and its state for probes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use imagelet_core::metrics::{Family, MetricKind, Metrics};

use crate::client::Answer;

static LEADER: Family = Family {
    name: "imagelet_controller_leader",
    help: "1 while this controller of prefetch holds the lease, else 0.",
    kind: MetricKind::Gauge,
    labels: &[],
};
static SETS: Family = Family {
    name: "imagelet_controller_sets",
    help: "Valid sets of both kinds that the leading controller knows.",
    kind: MetricKind::Gauge,
    labels: &[],
};
static REPORTS: Family = Family {
    name: "imagelet_controller_reports",
    help: "Reports of nodes that the leading controller knows.",
    kind: MetricKind::Gauge,
    labels: &[],
};
static WRITES: Family = Family {
    name: "imagelet_controller_writes_total",
    help: "Writes of the controller that the API server accepted: status, delete_set, delete_report.",
    kind: MetricKind::Counter,
    labels: &["write"],
};

static ERRORS: Family = Family {
    name: "imagelet_controller_api_errors_total",
    help: "Requests of the controller to the API server that failed, by the HTTP status, or unreachable.",
    kind: MetricKind::Counter,
    labels: &["cause"],
};

pub(crate) const FAMILIES: [&Family; 5] = [&LEADER, &SETS, &REPORTS, &WRITES, &ERRORS];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerReport {
    /// The API server has answered about the lease.
    pub has_answer: bool,
    /// This process holds the lease.
    pub leads: bool,
    /// It knows all sets, reports and nodes.
    pub is_listed: bool,
}

#[derive(Debug)]
pub(super) struct ControllerMeters {
    metrics: Arc<Metrics>,
    report: Mutex<ControllerReport>,
}

impl ControllerMeters {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        for family in FAMILIES {
            metrics.declare(family);
        }
        Self { metrics, report: Mutex::default() }
    }

    pub(super) fn report(&self) -> ControllerReport {
        *self.lock()
    }

    pub(super) fn answered(&self) {
        self.lock().has_answer = true;
    }

    /// Counts failed requests in these metrics.
    pub(super) fn observer(metrics: Arc<Metrics>) -> impl Fn(Answer) + Clone + Send + Sync + 'static {
        move |answer| match answer {
            Answer::Rejected(status) => metrics.increment(&ERRORS, &[status.as_str()]),
            Answer::Failed => metrics.increment(&ERRORS, &["unreachable"]),
            Answer::Watching | Answer::Heard => {}
        }
    }

    /// The time as the leader begins or ends.
    pub(super) fn leads(&self, leads: bool) {
        *self.lock() = ControllerReport { has_answer: true, leads, is_listed: false };
        self.metrics.set(&LEADER, &[], f64::from(u8::from(leads)));
        self.metrics.set(&SETS, &[], 0.0);
        self.metrics.set(&REPORTS, &[], 0.0);
    }

    pub(super) fn listed(&self, sets: usize, reports: usize) {
        self.lock().is_listed = true;
        self.metrics.set(&SETS, &[], sets as f64);
        self.metrics.set(&REPORTS, &[], reports as f64);
    }

    /// The controller wrote something besides its lease: `status`, `delete_set` or `delete_report`.
    pub(super) fn wrote(&self, write: &str) {
        self.metrics.increment(&WRITES, &[write]);
    }

    fn lock(&self) -> MutexGuard<'_, ControllerReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
