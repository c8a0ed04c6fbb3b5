//! Durability of pulls: early write-back, which makes the end of a pull short, and the sync after a background pull.

use std::{sync::Arc, time::Duration};

use tokio_util::task::AbortOnDropHandle;

use super::{Engine, blocking};
use crate::store::{Durability, SyncView};

/// The delay of the sync after a background pull returns: other durable writes of that pull would wait for the image's
/// sync. Pulls that end meanwhile share one sync.
const SYNC_DELAY: Duration = Duration::from_millis(500);

/// The first early sync starts before the end of a small image: it saves an eighth of the time of a 6 MB pull, and
/// costs a large pull nothing.
const WRITE_BACK_FIRST: Duration = Duration::from_millis(50);

/// The period of later early syncs. A quarter of this period slowed large images and sped up no image.
const WRITE_BACK_PERIOD: Duration = Duration::from_millis(600);

impl Engine {
    /// Starts a background sync. A concurrent call waits for this sync and finds nothing to do.
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

    /// Writes back early, in parallel with the processor's work. Ends on drop. The pulls' views receive the errors.
    pub(crate) fn write_back(&self) -> Option<AbortOnDropHandle<()>> {
        // The task has only the path: closing the store must not wait for the task.
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
