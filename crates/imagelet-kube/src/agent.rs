//! The agent of a node: keeps the leases of images in step with the pods that are bound to the node.

use std::{sync::Arc, time::SystemTime};

use imagelet_core::{
    inventory::Inventory,
    metrics::{Family, Metrics},
};

use tokio::sync::watch;

use crate::{
    access::ApiAccess,
    look_ahead::{self, LookAhead, LookAheadParts},
    watch::{FAMILIES, KnownPods, PodWatch, WatchHealth, WatchPace},
};

/// Every metric of the agent.
pub fn metric_families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.into_iter().chain(look_ahead::FAMILIES)
}

/// Follows the pods of one node, leases the images that they wait for, and fetches them ahead where that is wanted.
#[derive(Debug)]
pub struct NodeAgent {
    watch: PodWatch,
    inventory: Arc<Inventory>,
    metrics: Arc<Metrics>,
    look_ahead: Option<LookAhead>,
}

impl NodeAgent {
    /// An agent of this node, which begins with [`Self::run`]. From now until its first list of pods all images count as
    /// leased, for the time of a lease at most.
    pub fn new(access: ApiAccess, node: &str, inventory: Arc<Inventory>, metrics: Arc<Metrics>) -> Self {
        inventory.expect_pods(SystemTime::now());
        let health = Arc::new(WatchHealth::new(Arc::clone(&metrics)));
        let watch = PodWatch { access, node: node.to_owned(), pace: WatchPace::default(), health };
        Self { watch, inventory, metrics, look_ahead: None }
    }

    /// The same agent, which also fetches the images of bound pods before the kubelet requests them.
    #[must_use]
    pub fn looking_ahead(mut self, parts: LookAheadParts) -> Self {
        self.look_ahead = Some(LookAhead::new(parts, self.watch.access.clone(), Arc::clone(&self.metrics)));
        self
    }

    /// The same agent with other waits.
    #[cfg(test)]
    fn paced(mut self, pace: WatchPace) -> Self {
        self.watch.pace = pace;
        self
    }

    /// The state of the watch, for probes.
    pub fn health(&self) -> Arc<WatchHealth> {
        Arc::clone(&self.watch.health)
    }

    /// Follows the pods for as long as this future lives. After its end the last known leases stay.
    pub async fn run(&self) {
        let (sender, receiver) = watch::channel(Vec::new());
        let apply = |pods: &KnownPods| {
            self.inventory.lease_to_pods(&pods.waiting());
            sender.send_replace(pods.all());
        };
        match &self.look_ahead {
            None => self.watch.run(&apply).await,
            Some(look_ahead) => drop(tokio::join!(self.watch.run(&apply), look_ahead.run(receiver))),
        }
    }
}

#[cfg(test)]
mod tests;
