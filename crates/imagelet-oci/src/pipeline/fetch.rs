//! The first stage: bytes from the disk and a registry, hashed and passed to the inflater in order.

use std::{
    io::{self, Read as _},
    pin::pin,
    time::Duration,
};

use bytes::Bytes;
use imagelet_core::{
    image::ByteSize,
    runtime::{ErrorClass, Fault, LayerState, Progress, PullEvent, RuntimeError, RuntimeErrorKind, Stage},
};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{LayerJob, Place, frames::Frame, panicked};
use crate::{
    admission::WrittenBytes,
    hash::Hash,
    registry::{BlobSource, RangedStream, ReaderWait},
    store::{BlobWriter, KeptBytes, storage_error},
    unpack::LayerMemory,
};

const PROGRESS_STEP: u64 = 1 << 20;
/// The size of one read from the disk, and the number of reads that wait.
const PIECE_SIZE: usize = 256 << 10;
const PIECES_QUEUED: usize = 2;
/// A frame is at most as large as the transport's read buffer.
const COPIES_QUEUED: usize = 16;
/// A layer that waits longer for memory closes its connections.
const CONNECTED_WAIT_MAX: Duration = Duration::from_millis(250);

pub(super) struct Unread {
    /// `None`: the failure was in the bytes from the disk.
    stream: Option<RangedStream>,
    hash: Hash,
    pub(super) received: u64,
}

impl LayerJob {
    /// Passes the blob to the inflater: first the bytes on disk, then the rest from the registry. `Some`: the
    /// inflater stopped, and knows the cause.
    pub(super) async fn fetch(
        &self,
        source: &BlobSource,
        on_disk: Option<KeptBytes>,
        inflater: Inflater,
        memory: &LayerMemory,
        place: &Place,
        progress: &Progress,
    ) -> Result<Option<Unread>, RuntimeError> {
        let mut intake = Hashed {
            hash: Hash::new(self.descriptor.digest.algorithm()),
            received: 0,
            from_disk: 0,
            reported: 0,
            inflater,
        };
        let offset = on_disk.as_ref().map_or(0, |kept| kept.length);
        if let Some(kept) = on_disk {
            let is_in_copy = kept.is_in_copy;
            let mut replayed = replay(kept);
            while let Some(bytes) = replayed.recv().await {
                let bytes = bytes.map_err(|error| {
                    let message = format!("could not read what is here of blob `{}`", self.descriptor.digest);
                    RuntimeError::new(RuntimeErrorKind::Corrupt, message).caused_by(error)
                })?;
                intake.from_disk += bytes.len() as u64;
                if !intake.pass(self, bytes, !is_in_copy, progress).await {
                    return Ok(Some(intake.unread(None)));
                }
            }
            tracing::debug!(blob = %self.descriptor.digest, offset, "took a blob up from the disk");
        }
        let mut stream = source.open_ranged(offset, &intake.inflater.reader_wait).await?;
        while let Some(bytes) = stream.next().await? {
            // As for places: layers that wait for memory must not have the host's slots that one with memory needs.
            let is_read = {
                let mut taken = pin!(intake.pass(self, bytes, true, progress));
                loop {
                    tokio::select! {
                        biased;
                        is_read = &mut taken => break is_read,
                        () = tokio::time::sleep(CONNECTED_WAIT_MAX) => {}
                    }
                    if memory.is_awaited() {
                        stream.rest();
                    }
                }
            };
            if !is_read {
                return Ok(Some(intake.unread(Some(stream))));
            }
            if !self.session.reception.trickles_for(place.held_for()) {
                continue;
            }
            // Layers that wait for memory hold places, so a layer that holds memory must not wait for a place:
            // deadlock.
            if stream.can_rest() && !memory.holds_shared() && place.yields() {
                tracing::info!(
                    blob = %self.descriptor.digest, reference = %self.session.reference(),
                    "the pull trickles while others wait: the layer yields its place and continues later"
                );
                stream.rest();
                place.again().await?;
            }
        }
        intake.report(self, progress);
        self.verify(&intake.hash)?;
        let is_read = intake.inflater.frames.send(Frame::End).await.is_ok();
        Ok((!is_read).then(|| intake.unread(Some(stream))))
    }

    /// Reads the rest and verifies the digest of the whole blob.
    pub(super) async fn read_rest(&self, unread: Unread) -> Result<(), RuntimeError> {
        // A failure in the bytes from the disk needs no diagnosis: the blob is fetched again.
        let Unread { stream: Some(mut stream), mut hash, .. } = unread else { return Ok(()) };
        while let Some(bytes) = stream.next().await? {
            hash.update(&bytes);
        }
        self.verify(&hash)
    }

    fn verify(&self, hash: &Hash) -> Result<(), RuntimeError> {
        let digest = hash.clone().finish();
        if digest == self.descriptor.digest {
            return Ok(());
        }
        let message = format!("layer `{}` arrived as `{digest}`", self.descriptor.digest);
        let fault = Fault::new(ErrorClass::DigestMismatch, Stage::Digest);
        Err(RuntimeError::new(RuntimeErrorKind::Corrupt, message).with_fault(fault))
    }
}

pub(super) struct Inflater {
    pub(super) frames: mpsc::Sender<Frame>,
    pub(super) reader_wait: ReaderWait,
    /// A copy of the bytes that are not on the disk.
    pub(super) copy: Option<mpsc::Sender<Bytes>>,
}

/// The copy of a layer's compressed bytes: written by a thread of its own, behind a short queue.
pub(super) struct BlobCopy(JoinHandle<io::Result<BlobWriter>>);

impl BlobCopy {
    /// Starts the thread. It ends when the sender is dropped, after all that was sent is written, or when a write fails.
    pub(super) fn start(mut writer: BlobWriter, written_bytes: WrittenBytes) -> (mpsc::Sender<Bytes>, Self) {
        let (sender, mut frames) = mpsc::channel::<Bytes>(COPIES_QUEUED);
        let thread = tokio::task::spawn_blocking(move || {
            while let Some(bytes) = frames.blocking_recv() {
                writer.write(&bytes)?;
                if writer.is_reserved() {
                    written_bytes.add(bytes.len() as u64);
                }
            }
            Ok(writer)
        });
        (sender, Self(thread))
    }

    /// Waits for the thread; the sender has to be dropped.
    pub(super) async fn end(self) -> Result<BlobWriter, RuntimeError> {
        let written = self.0.await.map_err(panicked)?;
        written.map_err(|error| storage_error("could not keep the compressed blob", error))
    }
}

struct Hashed {
    hash: Hash,
    received: u64,
    from_disk: u64,
    reported: u64,
    inflater: Inflater,
}

impl Hashed {
    /// Passes bytes to the inflater and, where `copies`, to the copy. `false`: one of them stopped.
    async fn pass(&mut self, job: &LayerJob, bytes: Bytes, copies: bool, progress: &Progress) -> bool {
        if let Some(copy) = self.inflater.copy.as_ref().filter(|_| copies)
            && copy.send(bytes.clone()).await.is_err()
        {
            return false;
        }
        self.hash.update(&bytes);
        self.received += bytes.len() as u64;
        let fetched = self.received - self.from_disk;
        // The first bytes show that the layer is under way.
        if fetched - self.reported >= PROGRESS_STEP || (self.reported == 0 && fetched > 0) {
            self.report(job, progress);
        }
        job.written_bytes.space().await;
        self.inflater.frames.send(Frame::Bytes(bytes)).await.is_ok()
    }

    fn report(&mut self, job: &LayerJob, progress: &Progress) {
        self.reported = self.received - self.from_disk;
        progress(PullEvent::Layer {
            digest: job.descriptor.digest.clone(),
            state: LayerState::Fetching { received: ByteSize(self.reported) },
        });
    }

    fn unread(self, stream: Option<RangedStream>) -> Unread {
        Unread { stream, hash: self.hash, received: self.received }
    }
}

/// Reads a file on a thread of its own; fewer bytes than recorded are an error.
fn replay(kept: KeptBytes) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(PIECES_QUEUED);
    tokio::task::spawn_blocking(move || {
        let KeptBytes { mut file, length, .. } = kept;
        let mut left = length;
        while left > 0 {
            let size = left.min(PIECE_SIZE as u64);
            let mut piece = vec![0; usize::try_from(size).unwrap_or(PIECE_SIZE)];
            let read = file.read_exact(&mut piece).map(|()| Bytes::from(piece));
            let failed = read.is_err();
            if sender.blocking_send(read).is_err() || failed {
                return;
            }
            left -= size;
        }
    });
    receiver
}
