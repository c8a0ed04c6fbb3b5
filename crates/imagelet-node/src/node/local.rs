//! A node whose services run in this process: its images, pulls and collections, and the state of the process.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{manager::PodStarts, metrics::Metrics};
use imagelet_kube::NodeAgent;
use imagelet_runtime::ImportingImages;

use super::{Collection, Images, Pulls};
use crate::{config::Settings, failure::Failure};

/// How long a command waits for a runtime's image list before it exits.
const LAST_PASS_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct LocalNode {
    pub pulls: Pulls,
    pub collection: Arc<Collection>,
    pub status: NodeStatus,
}

#[derive(Debug)]
pub struct NodeStatus {
    pub metrics: Arc<Metrics>,
    pub pod_starts: Arc<PodStarts>,
    /// Follows the pods of the node; only in a daemon with a cluster.
    pub agent: Option<Arc<NodeAgent>>,
    pub imports: Option<Arc<ImportingImages>>,
    /// The sandbox of the threads that unpack layers; `None` for a runtime.
    pub unpacking: Option<String>,
    /// How much of a pull runs at once.
    pub sizes: String,
    pub started_at: SystemTime,
}

impl LocalNode {
    /// Applies settings. Thresholds, ages and periods apply from the next pass on.
    pub(crate) fn apply(&self, settings: Settings) {
        let inventory = &self.pulls.images.inventory;
        self.collection.gc.set_rules(settings.collection.rules.clone());
        inventory.protect_sandbox_images(settings.images.sandbox_images.clone());
        inventory.leases.start(settings.collection.lease_for, SystemTime::now());
        self.pulls.images.settings.send_replace(Arc::new(settings));
    }

    /// Writes the state that is not on disk yet. A daemon also writes periodically.
    pub async fn close(&self) {
        let images = &self.pulls.images;
        if images.place.is_read_only {
            return;
        }
        // A list also records the last pull. An embedded store lists at once; a runtime is listed only after a pull.
        if images.local().is_some() || images.inventory.awaits_pass() {
            match tokio::time::timeout(LAST_PASS_MAX, images.refresh()).await {
                Ok(Ok(_)) => {}
                Ok(Err(failure)) => tracing::warn!(error = failure.to_string(), "could not list the images"),
                Err(_) => tracing::warn!("the runtime takes too long to list its images"),
            }
        }
        let (inventory, log) = (Arc::clone(&images.inventory), Arc::clone(&images.log));
        let written = tokio::task::spawn_blocking(move || {
            let flushed = inventory.flush();
            log.flush();
            flushed
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = Failure::of(&error).to_string(), "the last uses are not on disk"),
            Err(error) => tracing::error!(%error, "the last uses and decisions are not on disk"),
        }
        // Last, because the disk may take long, and the process may be killed.
        if let Some(store) = images.local()
            && let Err(error) = store.flush().await
        {
            tracing::error!(error = error.chain(), "pulled images are not durable");
        }
    }
}

/// A service of a node, on which commands run.
pub trait NodeService: Send + Sync {
    fn of(node: &LocalNode) -> &Self;
}

impl NodeService for Images {
    fn of(node: &LocalNode) -> &Self {
        &node.pulls.images
    }
}

impl NodeService for Pulls {
    fn of(node: &LocalNode) -> &Self {
        &node.pulls
    }
}

impl NodeService for Collection {
    fn of(node: &LocalNode) -> &Self {
        &node.collection
    }
}

impl NodeService for LocalNode {
    fn of(node: &LocalNode) -> &Self {
        node
    }
}
