//! Durability of pulls: early syncs, which make the end of a pull short, and the sync after a background pull.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Engine, blocking};
use crate::store::{Durability, SyncView};

/// The delay before a background sync. Pulls that end within it share the sync. Their own durable writes come before.
const SYNC_DELAY: Duration = Duration::from_millis(500);

/// The delay of the first early sync, so short that a small image profits. The sync saves an eighth of the time of a 6
/// MB pull, and costs a large pull nothing.
const FIRST_SYNC: Duration = Duration::from_millis(50);

/// The longest pause between two early syncs. A quarter of it slowed large images and sped up none.
const LONGEST_PAUSE: Duration = Duration::from_millis(600);

/// The pause after an early sync. `synced` is the duration of this sync, and `produced` the time in which pulls wrote
/// its data. While a disk falls behind the pulls, each sync takes longer than the previous sync, so the next sync
/// follows at once. Otherwise each pause is twice the previous pause: a slow disk is then busy early, even if the first
/// sync found nothing to write. `previous` is the last pause that was not skipped. On a disk with a high but constant
/// latency, the pauses stay.
fn pause(produced: Duration, synced: Duration, previous: Duration) -> Duration {
    if synced > produced { Duration::ZERO } else { (previous * 2).min(LONGEST_PAUSE) }
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
        // The task has only the path, so that the store can be closed.
        let (root, alone) = (self.store.root().to_owned(), Arc::clone(&self.syncing_early));
        let task = async move {
            let _alone = alone.lock().await;
            sync_periodically(&root).await;
        };
        (self.config.durability == Durability::Commit).then(|| AbortOnDropHandle::new(tokio::spawn(task)))
    }
}

async fn sync_periodically(root: &Path) {
    let (mut since, mut wait, mut previous) = (Instant::now(), FIRST_SYNC, FIRST_SYNC);
    loop {
        tokio::time::sleep(wait).await;
        let (root, begun) = (root.to_owned(), Instant::now());
        let synced = tokio::task::spawn_blocking(move || SyncView::open(&root)?.sync()).await;
        wait = match synced.unwrap_or_else(|error| Err(error.into())) {
            Ok(()) => pause(begun - since, begun.elapsed(), previous),
            Err(error) => {
                tracing::debug!(%error, "an early sync failed; the pull reports it");
                LONGEST_PAUSE
            }
        };
        since = begun;
        if !wait.is_zero() {
            previous = wait;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_falls_behind_the_pulls_is_synced_without_a_pause_and_others_with_longer_pauses() {
        let millis = Duration::from_millis;
        for (produced, synced, previous, expected) in [
            (50, 5, 50, 100),
            (105, 5, 100, 200),
            (50, 80, 50, 0),
            (80, 200, 200, 0),
            (200, 150, 200, 400),
            (40, 40, 400, 600),
            (700, 120, 600, 600),
        ] {
            let pause = pause(millis(produced), millis(synced), millis(previous));
            assert_eq!(pause, millis(expected), "{synced} ms for {produced} ms after a pause of {previous} ms");
        }
    }
}
