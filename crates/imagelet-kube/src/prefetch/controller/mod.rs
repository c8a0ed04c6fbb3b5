//! The controller: one process of the cluster that admits nodes in waves, counts nodes, and deletes finished sets.

mod cluster_view;
mod election;
mod summary;
mod waves;

use std::{
    collections::HashMap,
    future::pending,
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::metrics::{Family, MetricKind, Metrics, families};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::PartialObjectMeta,
    runtime::{
        reflector,
        watcher::{self, Event},
    },
};
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until},
};

use self::{
    cluster_view::{BusyNodes, ClusterView, PassPlan},
    election::Election,
    summary::SetAction,
};
use super::objects::{ImageSet, NodeImages, PREFETCH_GROUP, SetStatus, SharedSets};
use crate::{
    api_error::{code, text},
    client::{Answer, observed},
    watch::{backoff, follow},
};

/// Objects per page of a list. The whole received page is in memory while its objects are parsed.
const PAGE_OBJECTS: u32 = 100;
const FIELD_MANAGER: &str = "imagelet-controller";
/// The minimum time between two writes of one status. The API server sends each write to all agents.
const STATUS_EVERY: Duration = Duration::from_secs(10);
const PASS_EVERY: Duration = Duration::from_secs(2);
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_mins(2);
/// Maximum writes and deletions of one pass. The next pass continues with a new plan.
const WRITES_MAX: usize = 200;

families! {
    LEADER = "imagelet_controller_leader",
        "1 while this controller of prefetch holds the lease, else 0.", MetricKind::Gauge, &[];
    SETS = "imagelet_controller_sets",
        "Valid sets of both kinds that the leading controller knows.", MetricKind::Gauge, &[];
    REPORTS = "imagelet_controller_reports",
        "Reports of nodes that the leading controller knows.", MetricKind::Gauge, &[];
    WRITES = "imagelet_controller_writes_total",
        "Writes of the controller that the API server accepted: status, delete_set.", MetricKind::Counter, &["write"];
    ERRORS = "imagelet_controller_api_errors_total",
        "Requests of the controller to the API server that failed, by the HTTP status, or unreachable.",
        MetricKind::Counter, &["cause"];
}

pub fn controller_metric_families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().copied()
}

/// The controller of a cluster. Several may run; only the holder of the lease is active.
pub struct PrefetchController {
    client: Client,
    namespace: String,
    identity: String,
    metrics: Arc<Metrics>,
    report: watch::Sender<ControllerReport>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerReport {
    pub has_answer: bool,
    pub leads: bool,
    pub is_listed: bool,
}

impl PrefetchController {
    /// The lease is in `namespace`. `identity` is unique among all controllers, for example the pod's name.
    pub fn new(client: Client, namespace: &str, identity: &str, metrics: Arc<Metrics>) -> Self {
        for family in FAMILIES {
            metrics.declare(family);
        }
        let counted = Arc::clone(&metrics);
        let client = observed(client, move |answer| match answer {
            Answer::Rejected(status) => counted.increment(&ERRORS, &[status.as_str()]),
            Answer::Failed => counted.increment(&ERRORS, &["unreachable"]),
            Answer::Watching | Answer::Heard => {}
        });
        let (namespace, identity) = (namespace.to_owned(), identity.to_owned());
        Self { client, namespace, identity, metrics, report: watch::Sender::default() }
    }

    pub fn report(&self) -> ControllerReport {
        *self.report.borrow()
    }

    /// Waits for the lease and is active while it has the lease, until this future is dropped.
    pub async fn run(&self) {
        let mut election = Election::new(self.client.clone(), &self.namespace, &self.identity);
        loop {
            election.acquire(|| self.report.send_modify(|report| report.has_answer = true)).await;
            tracing::info!(identity = self.identity, "leading");
            self.leads(true);
            tokio::select! {
                () = election.hold() => {}
                () = Box::pin(self.lead()) => {}
            }
            self.leads(false);
            tracing::warn!(identity = self.identity, "lost the lease; another controller may lead");
        }
    }

    fn leads(&self, leads: bool) {
        self.report.send_replace(ControllerReport { has_answer: true, leads, is_listed: false });
        self.metrics.set(&LEADER, &[], f64::from(u8::from(leads)));
        self.count(0, 0);
    }

    fn count(&self, sets: usize, reports: usize) {
        self.metrics.set(&SETS, &[], sets as f64);
        self.metrics.set(&REPORTS, &[], reports as f64);
    }

    async fn lead(&self) {
        let ((nodes, mut of_nodes), (reports, mut of_reports)) = (reflector::store(), reflector::store());
        let view = ClusterView { sets: SharedSets::default(), reports, nodes, changed: Notify::new() };
        let take_node = |event: Event<PartialObjectMeta<Node>>| {
            let narrow = |node: &mut PartialObjectMeta<Node>| {
                (node.metadata.managed_fields, node.metadata.annotations) = (None, None);
            };
            of_nodes.apply_watcher_event(&event.modify(narrow));
            view.changed.notify_one();
        };
        let take_report = |event: Event<NodeImages>| {
            of_reports.apply_watcher_event(&event);
            view.changed.notify_one();
        };
        let config = || watcher::Config::default().page_size(PAGE_OBJECTS);
        tokio::join!(
            view.sets.follow(&self.client, &view.changed),
            follow("nodes of the cluster", &self.client, &(), config(), Arc::default(), take_node),
            follow("reports of the nodes", &self.client, &(), config(), Arc::default(), take_report),
            self.work(&view),
        );
    }

    async fn work(&self, view: &ClusterView) {
        let (mut busy, mut written, mut failures) = (BusyNodes::new(), HashMap::new(), 0);
        loop {
            let mut next = None;
            if let Some(plan) = view.plan(&mut busy, SystemTime::now(), Instant::now()) {
                self.report.send_modify(|report| report.is_listed = true);
                self.count(plan.sets_known, plan.reports_known);
                match self.act(plan, &mut written).await {
                    Ok(at) => (next, failures) = (at, 0),
                    Err(error) => {
                        if failures == 0 {
                            tracing::warn!(error = text(&error), "a request of the controller failed; it is repeated");
                        }
                        // A change of an object does not shorten this wait.
                        sleep(backoff(RETRY_FIRST, RETRY_MAX, failures)).await;
                        failures = failures.saturating_add(1);
                        continue;
                    }
                }
            }
            sleep(PASS_EVERY).await;
            let due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = view.changed.notified() => {}
                () = due => {}
            }
        }
    }

    async fn act(
        &self,
        plan: PassPlan,
        written: &mut HashMap<String, Instant>,
    ) -> Result<Option<Instant>, kube::Error> {
        let mut next = plan.next;
        let mut writes = 0;
        written.retain(|_, at| at.elapsed() < STATUS_EVERY);
        for (set, action) in plan.sets {
            if let Some(at) = written.get(&set.uid) {
                next = next.into_iter().chain([*at + STATUS_EVERY]).min();
                continue;
            }
            if writes == WRITES_MAX {
                next = Some(Instant::now());
                break;
            }
            writes += 1;
            match action {
                SetAction::Idle { .. } => {}
                SetAction::Write(status) => {
                    self.write_status(&set, &status).await?;
                    self.metrics.increment(&WRITES, &["status"]);
                    written.insert(set.uid, Instant::now());
                }
                SetAction::Delete => {
                    tracing::info!(set = %set.name, "deleting a set: its time after the end has passed");
                    // A set that was recreated with the same name must not be deleted.
                    let this = Preconditions { uid: Some(set.uid), ..Preconditions::default() };
                    let options = DeleteParams::default().preconditions(this);
                    unless_gone(set.name.api(&self.client).delete(&set.name.name, &options).await)?;
                    self.metrics.increment(&WRITES, &["delete_set"]);
                }
            }
        }
        Ok(next)
    }

    async fn write_status(&self, set: &ImageSet, status: &SetStatus) -> Result<(), kube::Error> {
        let name = &set.name;
        let object = json!({
            "apiVersion": PREFETCH_GROUP, "kind": name.scope.kind(), "metadata": {"name": name.name, "uid": set.uid},
            "status": status,
        });
        let manager = PatchParams::apply(FIELD_MANAGER).force();
        unless_gone(name.api(&self.client).patch_status(&name.name, &manager, &Patch::Apply(&object)).await)
    }
}

/// A deleted or recreated set is no error, because the watch soon reports the change.
fn unless_gone<T>(answer: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(error) if !matches!(code(&error), Some(404 | 409)) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
