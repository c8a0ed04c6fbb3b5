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
use serde_json::json;
use tokio::time::Instant;

pub use self::meters::ControllerReport;
use self::{
    cluster_view::{ClusterView, PassMemory, PassPlan},
    election::Election,
    meters::ControllerMeters,
    summary::SetAction,
};
use super::objects::{ImageSet, PREFETCH_GROUP, SetScope, SetStatus};
use crate::{
    api_client::{ApiClient, encoded},
    api_error::ApiError,
    watch::{Collection, ObjectWatch, SharedCache, backoff, random},
};

const FIELD_MANAGER: &str = "imagelet-controller";
/// The shortest time between two writes of one status: each is sent to all agents.
const STATUS_EVERY: Duration = Duration::from_secs(10);
const PASS_EVERY: Duration = Duration::from_secs(2);
/// The first wait after a pass with a failed request; it doubles with each failed pass in a row.
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_mins(2);
/// Most writes and deletions of one pass; the next pass continues.
const WRITES_MAX: usize = 200;

/// Every metric of the controller.
pub fn controller_metric_families() -> impl Iterator<Item = &'static Family> {
    meters::FAMILIES.into_iter()
}

/// The controller of a cluster. Several may run; the holder of the lease acts.
#[derive(Debug)]
pub struct PrefetchController {
    client: ApiClient,
    namespace: String,
    identity: String,
    meters: ControllerMeters,
}

impl PrefetchController {
    /// A controller whose lease is in this namespace. `identity` is its own among all controllers, as the name of its pod.
    pub fn new(client: ApiClient, namespace: &str, identity: &str, metrics: Arc<Metrics>) -> Self {
        let client = client.counting(Arc::clone(&metrics));
        let (namespace, identity) = (namespace.to_owned(), identity.to_owned());
        Self { client, namespace, identity, meters: ControllerMeters::new(metrics) }
    }

    /// The state at this moment, for probes.
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
        let view = ClusterView::new();
        let watch = |collection| ObjectWatch::unmeasured(&self.client, collection);
        let [of_namespaces, of_the_cluster] = SetScope::ALL.map(|scope| watch(scope.collection()));
        let reports = watch(Collection::of("reports of the nodes", "/apis/imagelet.dev/v1alpha1/nodeimages"));
        let nodes = watch(Collection { is_metadata: true, ..Collection::of("nodes of the cluster", "/api/v1/nodes") });
        tokio::join!(
            of_namespaces.run(view.namespaced.clone(), SharedCache::publish),
            of_the_cluster.run(view.of_cluster.clone(), SharedCache::publish),
            reports.run(view.reports.clone(), SharedCache::publish),
            nodes.run(view.nodes.clone(), SharedCache::publish),
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
                            tracing::warn!(error = error.chain(), "a request of the controller failed; it is repeated");
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
                () = view.changed() => {}
                () = tokio::time::sleep(wait.unwrap_or(Duration::MAX)) => {}
            }
        }
    }

    /// Writes and deletes. Returns the time until a write that was put off.
    async fn act(&self, plan: PassPlan, written: &mut BTreeMap<String, Instant>) -> Result<Option<Duration>, ApiError> {
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
                    self.client.delete(&set.name.path(), &set.uid).await?;
                    self.meters.wrote("delete_set");
                }
            }
        }
        for (node, uid) in plan.orphans.into_iter().take(WRITES_MAX) {
            tracing::info!(node, "deleting the report of a node that is gone");
            let path = format!("/apis/{PREFETCH_GROUP}/nodeimages/{}", encoded(&node));
            self.client.delete(&path, &uid).await?;
            self.meters.wrote("delete_report");
        }
        Ok(due)
    }

    async fn write_status(&self, set: &ImageSet, status: &SetStatus) -> Result<(), ApiError> {
        let mut metadata = json!({"name": set.name.name, "uid": set.uid});
        if set.name.scope == SetScope::Namespace {
            metadata["namespace"] = set.name.namespace.as_str().into();
        }
        let object = json!({
            "apiVersion": PREFETCH_GROUP, "kind": set.name.scope.kind(), "metadata": metadata, "status": status,
        });
        match self.client.apply(&format!("{}/status", set.name.path()), FIELD_MANAGER, &object).await {
            // The set was deleted, or another one has its name: the watch knows soon.
            Ok(()) | Err(ApiError::Rejected { code: 404 | 409, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
