//! Durability of pulls: early syncs, which make the end of a pull short, and the sync after a background pull.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Engine, blocking};
use crate::{
    store::{Durability, SyncView},
    unpack::UnpackBudget,
};

/// The delay before a background sync. Pulls that end within it share the sync. Their own durable writes come before.
const SYNC_DELAY: Duration = Duration::from_millis(500);

/// The delay of the first early sync, so short that a small image profits. The sync saves an eighth of the time of a 6
/// MB pull, and costs a large pull nothing.
const FIRST_SYNC: Duration = Duration::from_millis(50);

/// The longest pause between two early syncs. A quarter of it slowed large images and sped up none.
const LONGEST_PAUSE: Duration = Duration::from_millis(600);

/// The pause while the disk is behind the pulls. Each sync writes the folders that grow once more, and that time is
/// missing for data. The layers keep the disk busy.
const PAUSE_BEHIND: Duration = Duration::from_secs(2);

/// The pause after an early sync; `None` if the disk is behind the pulls. `synced` is the duration of this sync, and
/// `produced` the time in which pulls wrote its data. Each pause is twice the previous pause: a slow disk is noticed
/// early, even if the first sync found nothing to write. On a disk with a high but constant latency, the pauses stay.
fn pause(produced: Duration, synced: Duration, previous: Duration) -> Option<Duration> {
    (synced <= produced).then(|| (previous * 2).min(LONGEST_PAUSE))
}

impl Engine {
    pub(crate) fn sync_background_soon(&self) {
        if !self.store.is_unsettled() {
            return;
        }
        // If the store is closed before this sync, its next owner syncs.
        let store = Arc::downgrade(&self.store);
        tokio::spawn(async move {
            tokio::time::sleep(SYNC_DELAY).await;
            let synced = blocking(move || store.upgrade().map_or(Ok(()), |store| store.sync_background())).await;
            if let Err(error) = synced {
                tracing::error!(error = error.chain(), "pulled images are not durable");
            }
        });
    }

    /// Syncs early, in parallel with the unpacking, until the handle is dropped. The pulls' views receive the errors.
    pub(crate) fn sync_early(&self) -> Option<AbortOnDropHandle<()>> {
        // The task does not have the store, so that the store can be closed.
        let (root, alone) = (self.store.root().to_owned(), Arc::clone(&self.syncing_early));
        let budget = Arc::clone(&self.budget);
        let task = async move {
            let _alone = alone.lock().await;
            sync_periodically(&root, &budget).await;
        };
        (self.config.durability == Durability::Commit).then(|| AbortOnDropHandle::new(tokio::spawn(task)))
    }
}

async fn sync_periodically(root: &Path, budget: &UnpackBudget) {
    let (mut since, mut wait, mut previous) = (Instant::now(), FIRST_SYNC, FIRST_SYNC);
    loop {
        tokio::time::sleep(wait).await;
        let (root, begun) = (root.to_owned(), Instant::now());
        let synced = tokio::task::spawn_blocking(move || SyncView::open(&root)?.sync()).await;
        wait = match synced.unwrap_or_else(|error| Err(error.into())) {
            Ok(()) => {
                let next = pause(begun - since, begun.elapsed(), previous);
                budget.set_disk_behind(next.is_none());
                previous = next.unwrap_or(previous);
                next.unwrap_or(PAUSE_BEHIND)
            }
            Err(error) => {
                tracing::debug!(%error, "an early sync failed; the pull reports it");
                LONGEST_PAUSE
            }
        };
        since = begun;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_unless_the_disk_is_behind_the_pulls() {
        let millis = Duration::from_millis;
        for (produced, synced, previous, expected) in [
            (50, 5, 50, Some(100)),
            (105, 5, 100, Some(200)),
            (50, 80, 50, None),
            (80, 200, 200, None),
            (200, 150, 200, Some(400)),
            (40, 40, 400, Some(600)),
            (700, 120, 600, Some(600)),
        ] {
            let pause = pause(millis(produced), millis(synced), millis(previous));
            assert_eq!(pause, expected.map(millis), "{synced} ms for {produced} ms after a pause of {previous} ms");
        }
    }
}
