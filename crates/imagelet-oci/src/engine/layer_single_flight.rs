//! Single flight of layers: one fetch serves all pulls that want the layer.

use std::sync::{Arc, Weak};

use imagelet_core::runtime::{LayerState, Progress, PullEvent, RuntimeError};

use super::{Engine, LayerSharing};
use crate::{confine::Confinement, pipeline::LayerJob, scarce, store::StagedLayer};

/// A layer being fetched; the lock is held meanwhile.
pub(crate) type LayerSlot = tokio::sync::Mutex<Weak<StagedLayer>>;

impl Engine {
    /// The confinement of the threads that unpack layers.
    pub fn confinement(&self) -> &Confinement {
        &self.confinement
    }

    /// Fetches a layer, or shares a present one or one of another pull. `None`: it is in the store.
    pub(crate) async fn fetch_layer(
        &self,
        job: LayerJob,
        sharing: LayerSharing,
        progress: &Progress,
    ) -> Result<Option<Arc<StagedLayer>>, RuntimeError> {
        let present = || {
            progress(PullEvent::Layer { digest: job.descriptor.digest.clone(), state: LayerState::Present });
        };
        let slot = {
            let mut fetching = self.fetching.lock().expect("no thread panics while it holds the lock");
            let is_staged = |slot: &LayerSlot| slot.try_lock().is_ok_and(|shared| shared.strong_count() > 0);
            fetching.retain(|_, slot| Arc::strong_count(slot) > 1 || is_staged(slot));
            let among = sharing.sharers(job.session.reference());
            Arc::clone(fetching.entry((job.diff_id.clone(), among)).or_default())
        };
        let mut shared = slot.lock().await;
        if self.store.layer(&job.diff_id).is_some() && self.may_share(sharing, job.session.reference(), &job.diff_id) {
            present();
            return Ok(None);
        }
        if let Some(staged) = shared.upgrade() {
            present();
            return Ok(Some(staged));
        }
        if let Some(spare) = self.spare(&job, sharing) {
            present();
            let staged = Arc::new(spare);
            *shared = Arc::downgrade(&staged);
            return Ok(Some(staged));
        }
        // A wait for a place blocks only pulls of the same layer.
        let place = self.places.place(job.claim.clone()).await;
        let staged = scarce::retried(|| job.run(&place, progress)).await;
        let staged = Arc::new(staged.map_err(|error| job.descriptor.not_fetched(error))?);
        *shared = Arc::downgrade(&staged);
        Ok(Some(staged))
    }

    /// A layer that an unfinished pull left. It has no blob, so it is of no use where blobs are kept.
    fn spare(&self, job: &LayerJob, sharing: LayerSharing) -> Option<StagedLayer> {
        let wanted = sharing.spare_wanted(job.session.reference(), &job.diff_id, job.end);
        let spare = if job.keep_blobs { None } else { self.store.take_spare(&wanted, &job.resumption) };
        spare.inspect(|_| tracing::debug!(layer = %job.diff_id, "took a layer that an earlier pull unpacked"))
    }
}
