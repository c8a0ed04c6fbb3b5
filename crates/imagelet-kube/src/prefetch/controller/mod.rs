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

use http::Method;
use imagelet_core::metrics::{Family, Metrics};
use serde_json::json;
use tokio::time::Instant;

pub use self::meters::ControllerReport;
use self::{
    cluster_view::{ClusterView, PassMemory, PassPlan, SharedCache},
    election::Election,
    meters::{ControllerMeters, ControllerWrite},
    summary::SetAction,
};
use super::objects::{ImageSet, PREFETCH_GROUP, SetScope, SetStatus};
use crate::{
    access::ApiAccess,
    api_client::{ApiClient, Content, encoded},
    api_error::ApiError,
    watch::{Collection, ObjectWatch, WatchHealth, WatchPace, random},
};

const FIELD_MANAGER: &str = "imagelet-controller";
/// The shortest time between two writes of one status: each is sent to all agents.
const STATUS_EVERY: Duration = Duration::from_secs(10);
/// The shortest time between two passes.
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
    pace: WatchPace,
    meters: ControllerMeters,
}

impl PrefetchController {
    /// A controller whose lease is in this namespace. `identity` is its own among all controllers, as the name of its pod.
    pub fn new(access: ApiAccess, namespace: &str, identity: &str) -> Self {
        Self::with_client(ApiClient::new(access), namespace, identity)
    }

    /// A controller with this client.
    #[cfg(any(test, feature = "test-util"))]
    pub fn connected(client: ApiClient, namespace: &str, identity: &str) -> Self {
        Self::with_client(client, namespace, identity)
    }

    fn with_client(client: ApiClient, namespace: &str, identity: &str) -> Self {
        let (namespace, identity) = (namespace.to_owned(), identity.to_owned());
        let meters = ControllerMeters::new(Arc::new(Metrics::new()));
        Self { client, namespace, identity, pace: WatchPace::default(), meters }
    }

    /// The same controller, which counts in these metrics.
    #[must_use]
    pub fn measured(self, metrics: Arc<Metrics>) -> Self {
        let client = self.client.counting(Arc::clone(&metrics));
        Self { client, meters: ControllerMeters::new(metrics), ..self }
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
        let [of_namespaces, of_the_cluster] = SetScope::ALL.map(|scope| self.watch(scope.collection()));
        let reports = self.watch(Collection {
            name: "reports of the nodes",
            path: "/apis/imagelet.dev/v1alpha1/nodeimages",
            selector: String::new(),
            is_metadata: false,
        });
        let nodes = self.watch(Collection {
            name: "nodes of the cluster",
            path: "/api/v1/nodes",
            selector: String::new(),
            is_metadata: true,
        });
        tokio::join!(
            of_namespaces.run(view.namespaced.clone(), SharedCache::publish),
            of_the_cluster.run(view.of_cluster.clone(), SharedCache::publish),
            reports.run(view.reports.clone(), SharedCache::publish),
            nodes.run(view.nodes.clone(), SharedCache::publish),
            self.work(&view),
        );
    }

    fn watch(&self, collection: Collection) -> ObjectWatch {
        let health = Arc::new(WatchHealth::unmeasured());
        ObjectWatch { client: self.client.clone(), collection, pace: self.pace, health }
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
                tokio::time::sleep(backoff(failures)).await;
                failures = failures.saturating_add(1);
                continue;
            }
            failures = 0;
            tokio::time::sleep(PASS_EVERY).await;
            tokio::select! {
                () = view.changed() => {}
                () = sleep_for(wait) => {}
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
                    self.meters.wrote(ControllerWrite::Status);
                    written.insert(set.uid, Instant::now());
                }
                SetAction::Delete => {
                    tracing::info!(set = %set.name, "deleting a set: its time after the end has passed");
                    self.client.delete(&set.name.path(), &set.uid).await?;
                    self.meters.wrote(ControllerWrite::DeleteSet);
                }
            }
        }
        for (node, uid) in plan.orphans.into_iter().take(WRITES_MAX) {
            tracing::info!(node, "deleting the report of a node that is gone");
            let path = format!("/apis/{PREFETCH_GROUP}/nodeimages/{}", encoded(&node));
            self.client.delete(&path, &uid).await?;
            self.meters.wrote(ControllerWrite::DeleteReport);
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
        let path = format!("{}/status?fieldManager={FIELD_MANAGER}&force=true", set.name.path());
        match self.client.send::<serde::de::IgnoredAny>(Method::PATCH, &path, Content::Apply, &object).await {
            // The set was deleted, or another one has its name: the watch knows soon.
            Ok(_) | Err(ApiError::Rejected { code: 404 | 409, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

async fn sleep_for(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

fn backoff(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(2_u32.saturating_pow(failures)).min(RETRY_MAX).mul_f64(0.5 + 0.5 * random())
}

#[cfg(test)]
mod tests;
