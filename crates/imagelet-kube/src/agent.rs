//! The agent of a node: keeps the leases of images in step with the pods that are bound to the node.

use std::{sync::Arc, time::SystemTime};

use imagelet_core::{
    events::LogEvents,
    inventory::Inventory,
    manager::PodStarts,
    metrics::{Family, Metrics},
};
use kube::{Client, runtime::watcher};
use tokio::sync::watch;

use crate::{
    look_ahead::{self, LookAhead, LookAheadParts},
    node_events::NodeEvents,
    pods::{self, KnownPods, PodObject, StartTracker},
    watch::{FAMILIES, WatchHealth, follow},
};

/// Pods of one page of a list, each of which may have a megabyte: a page is in memory as it was received while its pods are read.
const PAGE_PODS: u32 = 20;

pub fn metric_families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.into_iter().chain(look_ahead::FAMILIES).chain(pods::FAMILIES)
}

/// Follows the pods of one node, leases the images that they wait for, and fetches them ahead where that is wanted.
pub struct NodeAgent {
    client: Client,
    health: Arc<WatchHealth>,
    node: String,
    inventory: Arc<Inventory>,
    metrics: Arc<Metrics>,
    look_ahead: Option<LookAhead>,
    events: Option<NodeEvents>,
    starts: Option<Arc<PodStarts>>,
}

impl NodeAgent {
    /// An agent of this node, which begins with [`Self::run`]. From now until its first list of pods all images count as
    /// leased, for the time of a lease at most.
    pub fn new(client: Client, node: &str, inventory: Arc<Inventory>, metrics: Arc<Metrics>) -> Self {
        inventory.leases.expect_pods(SystemTime::now());
        let health = Arc::new(WatchHealth::of_pods(Arc::clone(&metrics)));
        Self { client, health, node: node.to_owned(), inventory, metrics, look_ahead: None, events: None, starts: None }
    }

    /// The same agent, which also fetches the images of bound pods before the kubelet requests them.
    #[must_use]
    pub fn looking_ahead(mut self, parts: LookAheadParts) -> Self {
        self.look_ahead = Some(LookAhead::new(parts, self.client.clone(), Arc::clone(&self.metrics)));
        self
    }

    /// The same agent, which also sends warnings about the node to the cluster.
    #[must_use]
    pub fn reporting(mut self, events: Arc<LogEvents>) -> Self {
        self.events = Some(NodeEvents::new(self.client.clone(), &self.node, events));
        self
    }

    /// The same agent, which also measures the start of pods, whose pulls these are.
    #[must_use]
    pub fn measuring(mut self, starts: Arc<PodStarts>) -> Self {
        self.starts = Some(starts);
        self
    }

    pub fn health(&self) -> Arc<WatchHealth> {
        Arc::clone(&self.health)
    }

    /// Follows the pods for as long as this future lives. After its end the last known leases stay.
    pub async fn run(&self) {
        let (sender, receiver) = watch::channel(Vec::new());
        let ahead = async {
            if let Some(look_ahead) = &self.look_ahead {
                look_ahead.run(receiver).await;
            }
        };
        let reporting = async {
            if let Some(events) = &self.events {
                events.run().await;
            }
        };
        let tracker = |starts: &Arc<PodStarts>| StartTracker::new(Arc::clone(&self.metrics), Arc::clone(starts));
        let mut pods = self.starts.as_ref().map(tracker).map_or_else(KnownPods::default, KnownPods::measured);
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node)).page_size(PAGE_PODS);
        let watching = follow::<PodObject>("pods of the node", &self.client, &(), config, &self.health, |event| {
            if pods.take(event) {
                let waiting = pods.waiting();
                self.health.counted(pods.len(), waiting.len());
                self.inventory.lease_to_pods(&waiting);
                sender.send_replace(pods.all());
            }
        });
        tokio::join!(watching, ahead, reporting);
    }
}

#[cfg(test)]
mod tests;
