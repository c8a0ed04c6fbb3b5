//! The first stage: bytes from a registry, hashed and handed on in order.

use imagelet_core::{
    image::ByteSize,
    runtime::{LayerState, Progress, PullEvent, RuntimeError, RuntimeErrorKind},
};
use tokio::sync::mpsc;

use super::{Hash, LayerJob, Stopped, inflate::Frame};
use crate::registry::{BlobSource, Starved};

/// Progress is told each time this many more bytes came in.
const PROGRESS_STEP: u64 = 1 << 20;

impl LayerJob {
    pub(super) async fn fetch(
        &self,
        source: &BlobSource,
        starved: &Starved,
        frames: mpsc::Sender<Frame>,
        progress: &Progress,
    ) -> Result<(), Stopped> {
        let mut stream = source.open_ranged(0, starved).await?;
        let mut hash = Hash::new(self.descriptor.digest.algorithm());
        let mut received: u64 = 0;
        let mut told: u64 = 0;
        while let Some(bytes) = stream.next().await? {
            hash.update(&bytes);
            received += bytes.len() as u64;
            if received - told >= PROGRESS_STEP {
                told = received;
                progress(PullEvent::Layer {
                    digest: self.descriptor.digest.clone(),
                    state: LayerState::Fetching { received: ByteSize(received) },
                });
            }
            if frames.send(Frame::Bytes(bytes)).await.is_err() {
                return Err(Stopped::Downstream);
            }
        }
        let digest = hash.finish();
        if digest != self.descriptor.digest {
            return Err(Stopped::Failed(RuntimeError::new(
                RuntimeErrorKind::Corrupt,
                format!("layer `{}` arrived as `{digest}`", self.descriptor.digest),
            )));
        }
        frames.send(Frame::End).await.map_err(|_| Stopped::Downstream)
    }
}
