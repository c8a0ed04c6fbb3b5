//! The first stage: bytes from the disk and a registry, hashed and passed to the inflater in order.

use std::{
    io::{self, Read as _},
    pin::pin,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use imagelet_core::{
    hold::{CHECK_PERIOD, PullWait, SharedThing},
    image::ByteSize,
    runtime::{ErrorClass, Fault, LayerState, Progress, PullEvent, RuntimeError, RuntimeErrorKind, Stage},
};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

use super::{LayerJob, Place, frames::Frame, pace::Checks, pull_slots::GivenWay};
use crate::{
    admission::WrittenBytes,
    hash::Hash,
    registry::{BlobSource, RangedStream, ReaderWait},
    store::{BlobPurpose, BlobWriter, KeptBytes, storage_error},
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
/// The first bytes of a layer that is not copied to the disk. A layer that is slow by then is copied after all.
const EARLY_MAX: usize = 256 << 10;

pub(super) enum Fetched {
    Whole,
    /// The inflater stopped, and knows the cause.
    Unread(Box<Unread>),
    /// Another layer has the place or the memory now.
    GaveWay,
}

pub(super) struct Unread {
    /// `None`: the failure was in the bytes from the disk.
    stream: Option<RangedStream>,
    hash: Hash,
    pub(super) received: u64,
}

impl LayerJob {
    /// Passes the blob to the inflater: first the bytes on disk, then the rest from the registry.
    pub(super) async fn fetch(
        &self,
        source: &BlobSource,
        on_disk: Option<KeptBytes>,
        inflater: Inflater,
        copying: &mut Option<BlobCopy>,
        (memory, place): (&LayerMemory, &Place),
        progress: &Progress,
    ) -> Result<Fetched, RuntimeError> {
        let offset = on_disk.as_ref().map_or(0, |kept| kept.length);
        let is_copied_late = copying.is_none() && offset == 0 && self.may_copy();
        let mut intake = Hashed {
            hash: Hash::new(self.descriptor.digest.algorithm()),
            received: 0,
            from_disk: 0,
            reported: 0,
            reported_at: Instant::now(),
            early: is_copied_late.then(BytesMut::new),
            inflater,
        };
        let pace = &place.pace;
        pace.network.pause(Instant::now());
        if let Some(kept) = on_disk {
            let is_in_copy = kept.is_in_copy;
            let mut replayed = replay(kept);
            while let Some(bytes) = replayed.recv().await {
                let bytes = bytes.map_err(|error| {
                    let message = format!("could not read what is here of blob `{}`", self.descriptor.digest);
                    RuntimeError::new(RuntimeErrorKind::Corrupt, message).caused_by(error)
                })?;
                intake.from_disk += bytes.len() as u64;
                match self.passed(&mut intake, (bytes, !is_in_copy), (memory, place), None, progress).await {
                    Some(true) => {}
                    Some(false) => return Ok(Fetched::Unread(intake.unread(None))),
                    None => return Ok(Fetched::GaveWay),
                }
            }
            tracing::debug!(blob = %self.descriptor.digest, offset, "resuming a partial blob");
        }
        pace.set_left(self.descriptor.size.saturating_sub(offset));
        pace.network.resume(Instant::now());
        let mut checks = Checks::new();
        let opened = self.opened(source, (offset, &intake.inflater.reader_wait), (memory, place), progress).await?;
        let Some(mut stream) = opened else { return Ok(self.gave_way(intake, copying).await) };
        loop {
            let may_park = stream.can_rest() && !memory.is_awaited();
            let next = checks.run(stream.next(), |now| self.gives_way(memory, place, may_park, now)).await;
            let bytes = match next {
                Ok(bytes) => bytes?,
                Err(GivenWay::Parked) => {
                    stream.pause();
                    let again = place.again(&self.descriptor, progress);
                    match checks.run(again, |_| memory.is_wanted().then_some(())).await {
                        Ok(again) => again?,
                        Err(()) => return Ok(self.gave_way(intake, copying).await),
                    }
                    continue;
                }
                Err(GivenWay::Ended) => return Ok(self.gave_way(intake, copying).await),
            };
            let Some(bytes) = bytes else { break };
            pace.received(bytes.len() as u64);
            pace.network.pause(Instant::now());
            if intake.is_beyond_early() {
                self.copy_late(&mut intake, (memory, place), copying).await?;
            }
            intake.collect(&bytes);
            let is_read = self.passed(&mut intake, (bytes, true), (memory, place), Some(&mut stream), progress).await;
            match is_read {
                Some(true) => {}
                Some(false) => return Ok(Fetched::Unread(intake.unread(Some(stream)))),
                None => return Ok(self.gave_way(intake, copying).await),
            }
            pace.set_left(self.descriptor.size.saturating_sub(intake.received));
            pace.network.resume(Instant::now());
        }
        intake.report(self, progress);
        self.verify(&intake.hash)?;
        let is_read = intake.inflater.frames.send(Frame::End).await.is_ok();
        Ok(if is_read { Fetched::Whole } else { Fetched::Unread(intake.unread(Some(stream))) })
    }

    /// Opens the blob. A request whose answer has not begun goes on while another layer has the place: a registry that
    /// has to get the content first would begin anew. `None`: the layer gave way and starts again.
    async fn opened(
        &self,
        source: &BlobSource,
        (offset, reader_wait): (u64, &ReaderWait),
        (memory, place): (&LayerMemory, &Place),
        progress: &Progress,
    ) -> Result<Option<RangedStream>, RuntimeError> {
        let mut checks = Checks::new();
        let mut opening = pin!(source.open_ranged(offset, reader_wait));
        loop {
            let may_park = !memory.is_awaited();
            match checks.run(opening.as_mut(), |now| self.gives_way(memory, place, may_park, now)).await {
                Ok(stream) => return stream.map(Some),
                Err(GivenWay::Ended) => return Ok(None),
                Err(GivenWay::Parked) => {}
            }
            let again = async {
                let mut again = pin!(place.again(&self.descriptor, progress));
                let mut stream = tokio::select! {
                    biased;
                    again = &mut again => return again.map(|()| None),
                    stream = &mut opening => stream?,
                };
                // The content is there now; the host's slot is for a layer with a place.
                stream.pause();
                again.await.map(|()| Some(stream))
            };
            match checks.run(again, |_| memory.is_wanted().then_some(())).await {
                Ok(Ok(None)) => {}
                Ok(stream) => return stream,
                Err(()) => return Ok(None),
            }
        }
    }

    /// Passes bytes on. While that waits, the layer gives way like any other. `None`: it did.
    async fn passed(
        &self,
        intake: &mut Hashed,
        (bytes, copies): (Bytes, bool),
        (memory, place): (&LayerMemory, &Place),
        mut stream: Option<&mut RangedStream>,
        progress: &Progress,
    ) -> Option<bool> {
        let mut waits = false;
        let is_read = {
            let mut taken = pin!(intake.pass(self, bytes, copies, progress));
            loop {
                tokio::select! {
                    biased;
                    is_read = &mut taken => break Some(is_read),
                    () = tokio::time::sleep(CONNECTED_WAIT_MAX) => {}
                }
                if memory.is_awaited() {
                    if !std::mem::replace(&mut waits, true) {
                        let wait = PullWait { thing: SharedThing::Memory, holder: memory.holder() };
                        self.report_wait(Some(wait), progress);
                    }
                    // Layers that wait for memory must not have the host's slots that one with memory needs.
                    if let Some(stream) = &mut stream {
                        stream.pause();
                    }
                }
                // What it has unpacked waits as well, and cannot be parked.
                if self.gives_way(memory, place, false, Instant::now()).is_some() {
                    break None;
                }
            }
        };
        if waits {
            self.report_wait(None, progress);
        }
        is_read
    }

    fn report_wait(&self, wait: Option<PullWait>, progress: &Progress) {
        progress(PullEvent::Waits { layer: self.descriptor.digest.clone(), wait });
    }

    /// Whether the layer gives up its memory or its place, because others wait for it.
    pub(super) fn gives_way(
        &self,
        memory: &LayerMemory,
        place: &Place,
        may_park: bool,
        now: Instant,
    ) -> Option<GivenWay> {
        let gives_memory = memory.gives_way(self.hold, &place.pace.network, now);
        let gave_way = if gives_memory {
            place.leave(now);
            Some(GivenWay::Ended)
        } else {
            place.gives_way(self.hold, may_park && !memory.holds_shared(), now)
        };
        let thing = if gives_memory { SharedThing::Memory } else { SharedThing::Place };
        if gave_way.is_some() {
            tracing::info!(
                blob = %self.descriptor.digest, reference = %self.session.reference(), thing = thing.name(),
                rate = place.pace.wall.rate(now),
                "a layer gives way to others that wait, and continues later"
            );
        }
        gave_way
    }

    /// The bytes so far stay on the disk, so that the layer resumes by range.
    async fn gave_way(&self, mut intake: Hashed, copying: &mut Option<BlobCopy>) -> Fetched {
        if let Err(error) = self.start_copy(&mut intake, copying).await {
            tracing::warn!(blob = %self.descriptor.digest, error = error.chain(), "could not keep the first bytes of a slow layer");
        }
        Fetched::GaveWay
    }

    /// Starts the copy of a small layer that is slow, or has memory to give up; another one is as quickly fetched again.
    async fn copy_late(
        &self,
        intake: &mut Hashed,
        (memory, place): (&LayerMemory, &Place),
        copying: &mut Option<BlobCopy>,
    ) -> Result<(), RuntimeError> {
        if memory.holds_shared() || place.pace.network.rate(Instant::now()) < self.hold.rate_min {
            self.start_copy(intake, copying).await?;
        }
        intake.early = None;
        Ok(())
    }

    async fn start_copy(&self, intake: &mut Hashed, copying: &mut Option<BlobCopy>) -> Result<(), RuntimeError> {
        let Some(early) = intake.early.take().filter(|early| !early.is_empty()) else { return Ok(()) };
        let job = self.clone();
        let started = tokio::task::spawn_blocking(move || {
            let purpose = BlobPurpose::Resume(job.unreserved_space);
            job.store.write_blob(&job.partial, 0, (purpose, &job.resumption))
        });
        let Some(writer) = started.await?? else { return Ok(()) };
        let (copy, thread) = BlobCopy::start(writer, self.written_bytes.clone());
        if copy.send(early.freeze()).await.is_ok() {
            intake.inflater.copy = Some(copy);
        }
        *copying = Some(thread);
        Ok(())
    }

    /// Reads the rest and verifies the digest of the whole blob.
    pub(super) async fn read_rest(&self, unread: Box<Unread>) -> Result<(), RuntimeError> {
        // A failure in the bytes from the disk needs no diagnosis: the blob is fetched again.
        let Unread { stream: Some(mut stream), mut hash, .. } = *unread else { return Ok(()) };
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
        let written = self.0.await?;
        written.map_err(|error| storage_error("could not keep the compressed blob", error))
    }
}

struct Hashed {
    hash: Hash,
    received: u64,
    from_disk: u64,
    reported: u64,
    reported_at: Instant,
    /// The first bytes, as long as there is no copy of them.
    early: Option<BytesMut>,
    inflater: Inflater,
}

impl Hashed {
    fn collect(&mut self, bytes: &Bytes) {
        if let Some(early) = &mut self.early {
            early.extend_from_slice(bytes);
        }
    }

    fn is_beyond_early(&self) -> bool {
        self.early.as_ref().is_some_and(|early| early.len() > EARLY_MAX)
    }

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
        // The first bytes show that the layer is under way, and those of a slow layer how slow it is.
        let is_due = fetched - self.reported >= PROGRESS_STEP || self.reported_at.elapsed() >= CHECK_PERIOD;
        if fetched > self.reported && (is_due || self.reported == 0) {
            self.report(job, progress);
        }
        job.written_bytes.space().await;
        self.inflater.frames.send(Frame::Bytes(bytes)).await.is_ok()
    }

    fn report(&mut self, job: &LayerJob, progress: &Progress) {
        self.reported = self.received - self.from_disk;
        self.reported_at = Instant::now();
        progress(PullEvent::Layer {
            digest: job.descriptor.digest.clone(),
            state: LayerState::Fetching { received: ByteSize(self.reported) },
        });
    }

    fn unread(self, stream: Option<RangedStream>) -> Box<Unread> {
        Box::new(Unread { stream, hash: self.hash, received: self.received })
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
