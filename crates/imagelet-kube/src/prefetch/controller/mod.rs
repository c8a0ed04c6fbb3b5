//! The controller: one process of the cluster that admits nodes in waves, counts, and deletes what is finished.

mod cluster_view;
mod election;
mod meters;
mod summary;
mod waves;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::metrics::{Family, Metrics};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::{
        reflector,
        watcher::{self, Event},
    },
};
use serde_json::json;
use tokio::{sync::Notify, time::Instant};

pub use self::meters::ControllerReport;
use self::{
    cluster_view::{ClusterView, PassMemory, PassPlan},
    election::Election,
    meters::ControllerMeters,
    summary::SetAction,
};
use super::{
    commands::delete,
    objects::{ImageSet, NodeImages, PREFETCH_GROUP, SetScope, SetStatus, SharedSets},
};
use crate::{
    api_error::{code, text},
    client::observed,
    watch::{WatchHealth, backoff, follow, random},
};

/// Objects of one page of a list: a page is in memory as it was received while its objects are read.
const PAGE_OBJECTS: u32 = 100;
const FIELD_MANAGER: &str = "imagelet-controller";
/// The shortest time between two writes of one status: each is sent to all agents.
const STATUS_EVERY: Duration = Duration::from_secs(10);
const PASS_EVERY: Duration = Duration::from_secs(2);
/// The first wait after a pass with a failed request; it doubles with each failed pass in a row.
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_mins(2);
/// Most writes and deletions of one pass; the next pass continues.
const WRITES_MAX: usize = 200;

pub fn controller_metric_families() -> impl Iterator<Item = &'static Family> {
    meters::FAMILIES.into_iter()
}

/// The controller of a cluster. Several may run; the holder of the lease acts.
pub struct PrefetchController {
    client: Client,
    namespace: String,
    identity: String,
    meters: ControllerMeters,
}

impl PrefetchController {
    /// A controller whose lease is in this namespace. `identity` is its own among all controllers, as the name of its pod.
    pub fn new(client: Client, namespace: &str, identity: &str, metrics: Arc<Metrics>) -> Self {
        let client = observed(client, ControllerMeters::observer(Arc::clone(&metrics)));
        let (namespace, identity) = (namespace.to_owned(), identity.to_owned());
        Self { client, namespace, identity, meters: ControllerMeters::new(metrics) }
    }

    pub fn report(&self) -> ControllerReport {
        self.meters.report()
    }

    /// Acts whenever it holds the lease, for as long as this future lives.
    pub async fn run(&self) {
        let mut election = Election::new(self.client.clone(), &self.namespace, &self.identity);
        loop {
            election.acquire(|| self.meters.answered()).await;
            tracing::info!(identity = self.identity, "leading");
            self.meters.leads(true);
            tokio::select! {
                () = election.hold() => {}
                () = Box::pin(self.lead()) => {}
            }
            self.meters.leads(false);
            tracing::warn!(identity = self.identity, "lost the lease; another controller may lead");
        }
    }

    /// Acts for as long as this future lives.
    async fn lead(&self) {
        let ((nodes, mut of_nodes), (reports, mut of_reports)) = (reflector::store(), reflector::store());
        let view = ClusterView { sets: SharedSets::new(), reports, nodes, changed: Notify::new() };
        let take_node = |event: Event<PartialObjectMeta<Node>>| {
            // Labels alone count.
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
        let health = [0, 1].map(|_| Arc::new(WatchHealth::unmeasured()));
        let config = || watcher::Config::default().page_size(PAGE_OBJECTS);
        tokio::join!(
            view.sets.follow(&self.client, &view.changed),
            follow("nodes of the cluster", &self.client, &(), config(), &health[0], take_node),
            follow("reports of the nodes", &self.client, &(), config(), &health[1], take_report),
            self.work(&view),
        );
    }

    async fn work(&self, view: &ClusterView) {
        let (mut memory, mut written) = (PassMemory::default(), BTreeMap::new());
        let mut failures = 0;
        loop {
            let plan = view.plan(&mut memory, SystemTime::now(), Instant::now());
            let (mut wait, mut is_failed) = (None, false);
            if let Some(plan) = plan {
                self.meters.listed(plan.sets_known, plan.reports_known);
                wait = plan.wait;
                match self.act(plan, &mut written).await {
                    Ok(due) => wait = [wait, due].into_iter().flatten().min(),
                    Err(error) => {
                        is_failed = true;
                        if failures == 0 {
                            tracing::warn!(error = text(&error), "a request of the controller failed; it is repeated");
                        }
                    }
                }
            }
            if is_failed {
                // Nothing that changes meanwhile shortens the wait.
                tokio::time::sleep(backoff(RETRY_FIRST, RETRY_MAX, failures, random())).await;
                failures = failures.saturating_add(1);
                continue;
            }
            failures = 0;
            tokio::time::sleep(PASS_EVERY).await;
            tokio::select! {
                () = view.changed.notified() => {}
                () = tokio::time::sleep(wait.unwrap_or(Duration::MAX)) => {}
            }
        }
    }

    /// Writes and deletes. Returns the time until a write that was put off.
    async fn act(
        &self,
        plan: PassPlan,
        written: &mut BTreeMap<String, Instant>,
    ) -> Result<Option<Duration>, kube::Error> {
        let now = Instant::now();
        let mut due: Option<Duration> = None;
        let mut put_off = |wait: Duration| due = Some(due.map_or(wait, |due| due.min(wait)));
        written.retain(|_, at| now.saturating_duration_since(*at) < STATUS_EVERY);
        let mut writes = 0;
        for (set, action) in plan.sets {
            if let Some(at) = written.get(&set.uid) {
                put_off(STATUS_EVERY.saturating_sub(now.saturating_duration_since(*at)));
                continue;
            }
            if writes >= WRITES_MAX {
                put_off(PASS_EVERY);
                break;
            }
            writes += 1;
            match action {
                SetAction::Idle { .. } => {}
                SetAction::Write(status) => {
                    self.write_status(&set, &status).await?;
                    self.meters.wrote("status");
                    written.insert(set.uid, Instant::now());
                }
                SetAction::Delete => {
                    tracing::info!(set = %set.name, "deleting a set: its time after the end has passed");
                    delete(&set.name.api(&self.client), &set.name.name, set.uid).await?;
                    self.meters.wrote("delete_set");
                }
            }
        }
        for (node, uid) in plan.orphans.into_iter().take(WRITES_MAX) {
            tracing::info!(node, "deleting the report of a node that is gone");
            delete(&Api::<NodeImages>::all(self.client.clone()), &node, uid).await?;
            self.meters.wrote("delete_report");
        }
        Ok(due)
    }

    async fn write_status(&self, set: &ImageSet, status: &SetStatus) -> Result<(), kube::Error> {
        let mut metadata = json!({"name": set.name.name, "uid": set.uid});
        if set.name.scope == SetScope::Namespace {
            metadata["namespace"] = set.name.namespace.as_str().into();
        }
        let object = json!({
            "apiVersion": PREFETCH_GROUP, "kind": set.name.scope.kind(), "metadata": metadata, "status": status,
        });
        let (api, manager) = (set.name.api(&self.client), PatchParams::apply(FIELD_MANAGER).force());
        match api.patch_status(&set.name.name, &manager, &Patch::Apply(&object)).await {
            // The set was deleted, or another one has its name: the watch knows soon.
            Err(error) if !matches!(code(&error), Some(404 | 409)) => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
