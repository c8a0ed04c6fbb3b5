//! Prunes the pull records of images that are absent after a collection.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use super::{
    ImageGc,
    policy::{GcRequest, GcWay},
    report::GcReport,
};
use crate::{
    image::ImageId,
    records::{PruneMark, PullRecords},
    runtime::error_chain,
};

/// The pull records that collections prune.
#[derive(Debug)]
pub(super) struct Pruning {
    pub(super) records: Arc<PullRecords>,
    /// An empty list of images is trusted at once, as that of the node's own store.
    pub(super) trusts_empty_list: bool,
    /// The last collection found no image at all.
    found_none: AtomicBool,
}

impl Pruning {
    pub(super) fn new(records: Arc<PullRecords>, trusts_empty_list: bool) -> Self {
        Self { records, trusts_empty_list, found_none: AtomicBool::new(false) }
    }

    /// Whether this number of images left is to be trusted: a runtime that lists none although none was removed, as one
    /// that has just been started might, is trusted from the second collection on. Without its record an image that comes
    /// back would count as one that was always there, and be open to all.
    fn trusts(&self, left: usize, removed: usize) -> bool {
        let found_none_before = self.found_none.swap(left == 0, Ordering::Relaxed);
        self.trusts_empty_list || left > 0 || removed > 0 || found_none_before
    }
}

impl ImageGc {
    /// Removes the records, older than the mark, of images that the collection left absent.
    pub(super) async fn prune_records(&self, request: &GcRequest, report: &GcReport, mark: Option<PruneMark>) {
        let (Some(pruning), Some(mark), Some(present)) = (&self.pruning, mark, &report.present) else { return };
        // The kubelet prunes in its hooks, and goes by less than what is present.
        let is_due = match request.policy.way() {
            GcWay::Imagelet => pruning.trusts(present.len(), report.removed().count()),
            GcWay::Kubelet => report.hook.is_some(),
        };
        if !is_due {
            return;
        }
        let present: BTreeSet<ImageId> = present.iter().cloned().collect();
        let records = Arc::clone(&pruning.records);
        match tokio::task::spawn_blocking(move || records.prune(&present, &mark)).await {
            Ok((pruned, failures)) => {
                for error in failures {
                    tracing::warn!(error = error_chain(&error), "could not remove the pull record of an absent image");
                }
                if pruned > 0 {
                    tracing::info!(pruned, "removed the pull records of absent images");
                }
            }
            Err(error) => tracing::error!(%error, "could not prune pull records"),
        }
        self.resolve_open_intents().await;
    }

    /// Looks for what interrupted pulls have fetched: it asks for credentials from now on.
    async fn resolve_open_intents(&self) {
        let Some(pruning) = self.pruning.as_ref().filter(|pruning| pruning.records.has_open_intents()) else { return };
        let images = match self.runtime.list(None).await {
            Ok(images) => images,
            Err(error) => {
                tracing::warn!(error = error.chain(), "could not compare interrupted pulls with the images");
                return;
            }
        };
        let records = Arc::clone(&pruning.records);
        match tokio::task::spawn_blocking(move || records.resolve_open_intents(&images, SystemTime::now())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(error = error_chain(&error), "could not resolve interrupted pulls"),
            Err(error) => tracing::error!(%error, "could not resolve interrupted pulls"),
        }
    }
}
