//! The first stage: bytes from a registry, hashed and handed on in order.

use imagelet_core::{
    image::ByteSize,
    runtime::{LayerState, Progress, PullEvent, RuntimeError, RuntimeErrorKind},
};
use tokio::sync::mpsc;

use super::{Hash, LayerJob, inflate::Frame};
use crate::registry::{BlobSource, RangedStream, Starved};

/// Progress is told each time this many more bytes came in.
const PROGRESS_STEP: u64 = 1 << 20;

/// What is left of a blob when nobody wants its bytes any more.
pub(super) struct Unread {
    stream: RangedStream,
    hash: Hash,
    pub(super) received: u64,
}

impl LayerJob {
    /// Hands the blob on to its end. `Some`: the stage after this one went away, and knows why.
    pub(super) async fn fetch(
        &self,
        source: &BlobSource,
        starved: &Starved,
        frames: mpsc::Sender<Frame>,
        progress: &Progress,
    ) -> Result<Option<Unread>, RuntimeError> {
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
                return Ok(Some(Unread { stream, hash, received }));
            }
        }
        let unread = Unread { stream, hash: self.verified(hash)?, received };
        Ok(frames.send(Frame::End).await.is_err().then_some(unread))
    }

    /// Reads what is left, and holds the whole to its digest.
    pub(super) async fn read_rest(&self, unread: Unread) -> Result<(), RuntimeError> {
        let Unread { mut stream, mut hash, .. } = unread;
        while let Some(bytes) = stream.next().await? {
            hash.update(&bytes);
        }
        self.verified(hash).map(drop)
    }

    fn verified(&self, hash: Hash) -> Result<Hash, RuntimeError> {
        let digest = hash.clone().finish();
        if digest == self.descriptor.digest {
            return Ok(hash);
        }
        let message = format!("layer `{}` arrived as `{digest}`", self.descriptor.digest);
        Err(RuntimeError::new(RuntimeErrorKind::Corrupt, message))
    }
}
