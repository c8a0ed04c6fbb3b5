//! When the disk works: during a pull so that its end is short, or after its answer.

use std::{sync::Arc, time::Duration};

use imagelet_core::runtime::RuntimeError;
use tokio_util::task::AbortOnDropHandle;

use super::{Engine, blocking};
use crate::store::{Durability, SyncView};

/// The disk is left alone until the answer of a pull in the background is out: whatever else that pull has to make
/// durable would wait behind the image. Pulls that end meanwhile sync_background together.
const SYNC_DELAY: Duration = Duration::from_millis(500);

/// The first early sync comes soon, or a small image would be over before it: with it, a pull of 6 MB takes an eighth less
/// time, and a large one no more.
const WRITE_BACK_FIRST: Duration = Duration::from_millis(50);

/// Time between two later ones. Four times as often made large images dearer and no image faster.
const WRITE_BACK_PERIOD: Duration = Duration::from_millis(600);

impl Engine {
    /// Makes everything durable that pulls have shown before it was; to be called before an orderly end.
    ///
    /// # Errors
    /// When the disk refuses. What was not durable is then dropped.
    pub async fn sync_background(&self) -> Result<(), RuntimeError> {
        let store = Arc::clone(&self.store);
        blocking(move || store.sync_background()).await
    }

    /// Lets the disk follow in the background. A call while that runs waits for it and finds nothing to do.
    pub(crate) fn sync_background_soon(&self) {
        if !self.store.is_unsettled() {
            return;
        }
        // The store may be closed meanwhile; then the next owner goes on.
        let store = Arc::downgrade(&self.store);
        tokio::spawn(async move {
            tokio::time::sleep(SYNC_DELAY).await;
            let settled = blocking(move || store.upgrade().map_or(Ok(()), |store| store.sync_background())).await;
            if let Err(error) = settled {
                tracing::error!(error = error.chain(), "pulled images are not durable");
            }
        });
    }

    /// Has the disk work while the processor does, instead of after it. Ends when dropped; what it does is only early:
    /// errors are reported through the views of the pulls.
    pub(crate) fn write_back(&self) -> AbortOnDropHandle<()> {
        // Not the store itself: its close must not wait for this.
        let (root, alone) = (self.store.root().to_owned(), Arc::clone(&self.writing_back));
        let in_background = self.config.durability == Durability::Background;
        AbortOnDropHandle::new(tokio::spawn(async move {
            let _alone = alone.lock().await;
            let mut wait = WRITE_BACK_FIRST;
            loop {
                tokio::time::sleep(std::mem::replace(&mut wait, WRITE_BACK_PERIOD)).await;
                if in_background {
                    return;
                }
                let root = root.clone();
                match tokio::task::spawn_blocking(move || SyncView::open(&root)?.sync()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "an early sync failed; the pull will say so"),
                    Err(error) => tracing::debug!(%error, "an early sync ended early"),
                }
            }
        }))
    }
}
