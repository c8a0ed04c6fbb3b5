//! The agent of a node. It leases the images of the pods that are bound to the node, and ends the pulls of ended pods.

use std::{sync::Arc, time::SystemTime};

use futures_util::future::OptionFuture;
use imagelet_core::{
    events::LogEvents,
    inventory::Inventory,
    manager::{ImageManager, PodStarts},
    metrics::{Family, Metrics},
};
use kube::{Client, runtime::watcher};
use tokio::sync::watch;

use crate::{
    look_ahead::{self, LookAhead, LookAheadParts},
    node_events::send_node_events,
    pods::{self, BoundPod, KnownPods, PodObject, PodsReceiver, StartTracker},
    progress_events::send_pod_events,
    watch::{FAMILIES, WatchHealth, follow},
};

/// Pods per page of a list. A pod may have 1 MB, and the whole received page is in memory while its pods are parsed.
const PAGE_PODS: u32 = 20;

pub fn metric_families() -> impl Iterator<Item = &'static Family> {
    [FAMILIES, look_ahead::FAMILIES, pods::FAMILIES].into_iter().flatten().copied()
}

#[derive(Debug)]
pub struct NodeAgentParts {
    pub node: String,
    pub inventory: Arc<Inventory>,
    pub manager: Arc<ImageManager>,
    pub metrics: Arc<Metrics>,
    pub starts: Arc<PodStarts>,
    pub look_ahead: Option<LookAheadParts>,
    pub events: Option<Arc<LogEvents>>,
    pub progress_events: bool,
}

pub struct NodeAgent {
    client: Client,
    health: Arc<WatchHealth>,
    parts: NodeAgentParts,
    /// This receiver is only cloned and never read, so that each clone reports the first list as a change.
    pods: (watch::Sender<Vec<Arc<BoundPod>>>, PodsReceiver),
}

impl NodeAgent {
    /// Creates the agent of a node; [`Self::run`] starts it. From now until the first list of pods, all images are
    /// leased, at most for the duration of a lease.
    pub fn new(client: Client, parts: NodeAgentParts) -> Self {
        parts.inventory.leases.expect_pods(SystemTime::now());
        let health = Arc::new(WatchHealth::of_pods(Arc::clone(&parts.metrics)));
        Self { client, health, parts, pods: watch::channel(Vec::new()) }
    }

    pub(crate) fn pods(&self) -> PodsReceiver {
        self.pods.1.clone()
    }

    pub fn health(&self) -> Arc<WatchHealth> {
        Arc::clone(&self.health)
    }

    /// Watches the pods until this future is dropped. The last leases of the pods then stay.
    pub async fn run(&self) {
        let NodeAgentParts { node, inventory, manager, metrics, starts, look_ahead, events, progress_events } =
            &self.parts;
        let ahead = async {
            if let Some(parts) = look_ahead {
                LookAhead::new(parts.clone(), self.client.clone(), Arc::clone(metrics)).run(self.pods()).await;
            }
        };
        let reporting = events.as_ref().map(|events| send_node_events(&self.client, node, events));
        let progress = progress_events.then(|| send_pod_events(&self.client, node, manager));
        let (reporting, progress) = (OptionFuture::from(reporting), OptionFuture::from(progress));
        let mut pods = KnownPods::new(StartTracker::new(Arc::clone(metrics), Arc::clone(starts)));
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}")).page_size(PAGE_PODS);
        let health = Arc::clone(&self.health);
        let watching = follow::<PodObject>("pods of the node", &self.client, &(), config, health, |event| {
            if pods.take(event) {
                let changes = pods.take_changes();
                let all = pods.all();
                self.health.counted(all.len(), changes.waiting.len());
                inventory.lease_to_pods(&changes.waiting);
                manager.pods_changed(changes);
                self.pods.0.send_replace(all);
            }
        });
        Box::pin(async { tokio::join!(watching, ahead, reporting, progress) }).await;
    }
}

#[cfg(test)]
mod tests;
