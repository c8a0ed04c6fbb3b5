//! A node whose services run in this process: its images, pulls and collections, and the state of the process.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{manager::PodStarts, metrics::Metrics};
use imagelet_kube::NodeAgent;
use imagelet_runtime::ImportingImages;

use super::{Collection, Pulls};
use crate::{config::Settings, failure::Failure};

/// How long a command waits for a runtime's image list before the process exits.
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
    /// The agent that follows the pods of the node. `None`: a command, or a daemon without a cluster.
    pub agent: Option<Arc<NodeAgent>>,
    pub imports: Option<Arc<ImportingImages>>,
    /// The confinement of the threads that unpack layers. `None`: a runtime unpacks the layers.
    pub unpacking: Option<String>,
    /// The parallelism of a pull, and the machine that determines it.
    pub sizes: String,
    pub started_at: SystemTime,
}

impl LocalNode {
    /// Replaces the settings. The next run of a periodic job uses the new thresholds, ages and periods.
    pub(crate) fn apply(&self, settings: Settings) {
        let inventory = &self.pulls.images.inventory;
        self.collection.gc.set_rules(settings.collection.rules.clone());
        inventory.protect_sandbox_images(settings.images.sandbox_images.clone());
        inventory.leases.start(settings.collection.lease_for, SystemTime::now());
        self.pulls.images.settings.send_replace(Arc::new(settings));
    }

    pub async fn close(&self) {
        let images = &self.pulls.images;
        if images.place.is_read_only {
            return;
        }
        // A pass over the images records the last pull. A runtime may be slow, so its pass runs only after a pull.
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
        // The flush is the last step, because the disk may take long and the process may be killed meanwhile.
        if let Some(store) = images.local()
            && let Err(error) = store.flush().await
        {
            tracing::error!(error = error.chain(), "pulled images are not durable");
        }
    }
}
