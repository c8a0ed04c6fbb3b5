//! Prunes the pull records of images that are absent after a collection.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use super::{ImageGc, policy::GcRequest, report::GcReport};
use crate::{
    error::error_chain,
    image::ImageId,
    inventory::ImageEntry,
    records::{Absent, PruneMark, PullRecords},
};

#[derive(Debug)]
pub(super) struct Pruning {
    pub(super) records: Arc<PullRecords>,
    /// On: the first empty image list is trusted, as for the embedded store. Off: only a second empty list is trusted.
    pub(super) trusts_empty_list: bool,
    pub(super) found_none: AtomicBool,
}

impl Pruning {
    /// Whether the image list is trusted. `left` images are listed, and the collection removed `removed` images. A
    /// runtime that has just started may list no image, so only a second empty list is trusted. If records were pruned
    /// too early, every pod could use the images.
    fn trusts(&self, left: usize, removed: usize) -> bool {
        let found_none_before = self.found_none.swap(left == 0, Ordering::Relaxed);
        self.trusts_empty_list || left > 0 || removed > 0 || found_none_before
    }
}

impl ImageGc {
    pub(super) async fn prune_records(&self, request: &GcRequest, report: &GcReport, mark: Option<PruneMark>) {
        let (Some(pruning), Some(mark), Some(present)) = (&self.pruning, mark, &report.present) else { return };
        let is_due = if request.policy.rules.prunes_by_present {
            pruning.trusts(present.len(), report.removed().count())
        } else {
            report.hook.is_some()
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

    /// Records which of the listed images are preloaded. The mark must be older than the listing.
    pub(super) async fn remember_preloaded(&self, listed: &[Arc<ImageEntry>], mark: PruneMark) {
        let Some(pruning) = &self.pruning else { return };
        let (records, listed) = (Arc::clone(&pruning.records), listed.to_vec());
        let remember = move || records.remember_preloaded(listed.iter().map(|entry| &*entry.image), &mark);
        match tokio::task::spawn_blocking(remember).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = error_chain(&error), "could not remember the preloaded images"),
            Err(error) => tracing::error!(%error, "could not remember the preloaded images"),
        }
    }

    /// Resolves the intents of interrupted pulls: images that these pulls fetched require credentials from now on.
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
        let resolve = move || records.resolve_open_intents(&images, SystemTime::now(), Absent::RemovedAfterChecks);
        match tokio::task::spawn_blocking(resolve).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(error = error_chain(&error), "could not resolve interrupted pulls"),
            Err(error) => tracing::error!(%error, "could not resolve interrupted pulls"),
        }
    }
}
