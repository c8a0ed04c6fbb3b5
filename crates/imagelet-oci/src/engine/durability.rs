//! Durability of pulls: early write-back so that their end is short, and the sync after a background pull.

use std::{sync::Arc, time::Duration};

use tokio_util::task::AbortOnDropHandle;

use super::{Engine, blocking};
use crate::store::{Durability, SyncView};

/// Delay of the sync after a background pull returns: other durable writes of that pull would wait behind the image.
/// Pulls that end meanwhile share one sync.
const SYNC_DELAY: Duration = Duration::from_millis(500);

/// The first early sync comes before the end of a small image: it saves a 6 MB pull an eighth of its time, and costs a
/// large one nothing.
const WRITE_BACK_FIRST: Duration = Duration::from_millis(50);

/// Period of later ones. A quarter of it slowed large images and sped up none.
const WRITE_BACK_PERIOD: Duration = Duration::from_millis(600);

impl Engine {
    /// Starts a background sync. A concurrent call waits for it and finds nothing to do.
    pub(crate) fn sync_background_soon(&self) {
        if !self.store.is_unsettled() {
            return;
        }
        // The store may be closed meanwhile; then the next owner continues.
        let store = Arc::downgrade(&self.store);
        tokio::spawn(async move {
            tokio::time::sleep(SYNC_DELAY).await;
            let synced = blocking(move || store.upgrade().map_or(Ok(()), |store| store.sync_background())).await;
            if let Err(error) = synced {
                tracing::error!(error = error.chain(), "pulled images are not durable");
            }
        });
    }

    /// Writes back early, in parallel with the processor's work; ends on drop. Errors arrive through the pulls' views.
    pub(crate) fn write_back(&self) -> Option<AbortOnDropHandle<()>> {
        // Not the store itself: its close must not wait for this.
        let (root, alone) = (self.store.root().to_owned(), Arc::clone(&self.writing_back));
        let task = async move {
            let _alone = alone.lock().await;
            let mut wait = WRITE_BACK_FIRST;
            loop {
                tokio::time::sleep(std::mem::replace(&mut wait, WRITE_BACK_PERIOD)).await;
                let root = root.clone();
                match tokio::task::spawn_blocking(move || SyncView::open(&root)?.sync()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "an early sync failed; the pull reports it"),
                    Err(error) => tracing::debug!(%error, "an early sync ended early"),
                }
            }
        };
        (self.config.durability == Durability::Commit).then(|| AbortOnDropHandle::new(tokio::spawn(task)))
    }
}
