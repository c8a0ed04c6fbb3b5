//! The agent of a node: keeps the leases of images in step with the pods that are bound to the node.

use std::{sync::Arc, time::SystemTime};

use imagelet_core::{
    inventory::Inventory,
    metrics::{Family, Metrics},
};

use crate::{
    access::ApiAccess,
    api_client::ApiClient,
    pods::KnownPods,
    watch::{Collection, FAMILIES, ObjectWatch, WatchHealth, WatchPace},
};

/// Every metric of the agent.
pub fn metric_families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.into_iter()
}

/// Follows the pods of one node, and leases the images that they wait for.
#[derive(Debug)]
pub struct NodeAgent {
    watch: ObjectWatch,
    inventory: Arc<Inventory>,
}

impl NodeAgent {
    /// An agent of this node, which begins with [`Self::run`]. From now until its first list of pods all images count as
    /// leased, for the time of a lease at most.
    pub fn new(access: ApiAccess, node: &str, inventory: Arc<Inventory>, metrics: Arc<Metrics>) -> Self {
        inventory.expect_pods(SystemTime::now());
        let collection = Collection {
            name: "pods of the node",
            path: "/api/v1/pods",
            selector: format!("spec.nodeName={node}"),
            is_metadata: false,
        };
        let health = Arc::new(WatchHealth::of_pods(metrics));
        let watch = ObjectWatch { client: ApiClient::new(access), collection, pace: WatchPace::default(), health };
        Self { watch, inventory }
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
        let apply = |pods: &KnownPods| {
            let waiting = pods.waiting();
            self.watch.health.counted(pods.len(), waiting.len());
            self.inventory.lease_to_pods(&waiting);
        };
        self.watch.run(KnownPods::default(), apply).await;
    }
}

#[cfg(test)]
mod tests;
