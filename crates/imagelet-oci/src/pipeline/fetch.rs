//! The first stage: reads and hashes bytes of disk and registry, and passes them to the inflater or an artifact's file.
//!
//! An artifact's file needs no other stage. The unfinished file is a partial blob, which a later attempt continues. The
//! whole file is moved into its layer, so its bytes are written once.

use std::{
    io::{self, Read as _},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    hold::{CHECK_PERIOD, SharedThing},
    image::{ByteSize, DigestAlgorithm},
    ports::{LayerState, Progress, PullEvent},
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout},
};

use twox_hash::xxhash3_128::Hasher;

use super::{
    LayerJob, Place,
    frames::Frame,
    pace::{Checks, report_recheck, report_wait},
};
use crate::{
    admission::WrittenBytes,
    hash::Hash,
    registry::{BlobSource, RangedStream, ReaderWait},
    store::{BlobWriter, KeptBytes, StagedLayer, storage_error},
    unpack::{LayerMemory, Sum, WholeFile},
};

const PROGRESS_STEP: u64 = 1 << 20;
const PIECE_SIZE: usize = 256 << 10;
const PIECES_QUEUED: usize = 2;
/// Frames in the queue of the copy. A frame is at most as large as the transport's read buffer.
const COPIES_QUEUED: usize = 16;
/// A layer that waits longer for memory closes its connections.
const CONNECTED_WAIT_MAX: Duration = Duration::from_millis(250);
/// Maximum first bytes of a layer that are buffered without a copy. After them, the copy of a slow layer starts.
const EARLY_MAX: usize = 256 << 10;
/// Limits for reading the rest of a blob after its inflater has stopped. Meanwhile, the layer keeps its place.
const REST_BYTES_MAX: u64 = 64 << 20;
const REST_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    Whole,
    /// The inflater has stopped early; its result has the cause.
    Unread,
    GaveWay,
}

#[derive(Clone, Debug, Default)]
pub(super) enum ResumeSource {
    /// The copy of the compressed bytes, once that copy has started.
    #[default]
    CompressedCopy,
    /// The unpacked files, once their journal has a checkpoint.
    Files(Arc<AtomicBool>),
    Nothing,
}

pub(super) struct LayerAttempt<'a> {
    pub(super) job: &'a LayerJob,
    source: &'a BlobSource,
    pub(super) memory: &'a Arc<LayerMemory>,
    place: &'a Place,
    pub(super) progress: &'a Progress,
    pub(super) copying: Option<JoinHandle<io::Result<BlobWriter>>>,
    /// Whether the registry has not begun its answer yet. A new request could make the registry start over.
    is_opening: bool,
    is_lossy: bool,
    pub(super) resumes_from: ResumeSource,
    pub(super) rest: Option<Rest>,
    content: Option<Sum>,
}

pub(super) struct Rest {
    stream: RangedStream,
    hash: Hash,
    received: u64,
}

impl<'a> LayerAttempt<'a> {
    pub(super) fn new(
        job: &'a LayerJob,
        source: &'a BlobSource,
        memory: &'a Arc<LayerMemory>,
        (place, progress): (&'a Place, &'a Progress),
    ) -> Self {
        let (copying, rest, content) = (None, None, None);
        let (is_opening, is_lossy, resumes_from) = (false, false, ResumeSource::default());
        Self { job, source, memory, place, progress, copying, is_opening, is_lossy, resumes_from, rest, content }
    }
}

impl LayerAttempt<'_> {
    /// Fetches a file. Returns `None` if the layer gave its place away; the bytes so far are on the disk.
    pub(super) async fn run_file(
        mut self,
        path: &str,
        on_disk: Option<KeptBytes>,
        writer: BlobWriter,
    ) -> Result<Option<StagedLayer>, RuntimeError> {
        let (job, written_bytes) = (self.job, &self.job.staging.written_bytes);
        let known = on_disk.as_ref().filter(|kept| kept.is_in_copy);
        let known = known.map_or(0, |kept| kept.length);
        written_bytes.restart(known, known);
        let reader_wait = ReaderWait::default();
        if !writer.resumption.is_allowed() {
            self.resumes_from = ResumeSource::Nothing;
        }
        let (copy, copying) = copy_to(writer, written_bytes.clone(), Some(reader_wait.clone()));
        let mut intake = Intake::new(job.descriptor.digest.algorithm(), None, reader_wait, Some(copy), 0);
        intake.content = Some(Hasher::new());
        let fetched = self.fetch(on_disk, intake).await;
        let written = copying.await?;
        let fetched = fetched?;
        let mut writer = written.map_err(|error| storage_error(format!("could not write file `{path}`"), error))?;
        if fetched == Fetched::GaveWay {
            writer.keep_any_length();
            return Ok(None);
        }
        let (path, content, memory) = (path.to_owned(), self.content.unwrap_or_default(), Arc::clone(self.memory));
        let placed = job.on_thread(move |job| {
            let file = WholeFile { path: &path, from: writer.close(), size: job.descriptor.size, content };
            job.place_file(&file, &memory)
        });
        placed.await?.map(Some)
    }

    pub(super) async fn fetch(
        &mut self,
        on_disk: Option<KeptBytes>,
        mut intake: Intake,
    ) -> Result<Fetched, RuntimeError> {
        let (job, pace) = (self.job, &self.place.pace);
        let blob = &job.descriptor;
        let offset = intake.received + on_disk.as_ref().map_or(0, |kept| kept.length);
        let copies_late = intake.copy.is_none()
            && offset == 0
            && !matches!(self.resumes_from, ResumeSource::Files(_))
            && job.may_copy();
        intake.early = copies_late.then(BytesMut::new);
        pace.network.pause(Instant::now());
        if let Some(kept) = on_disk {
            let copies = !kept.is_in_copy;
            let _recheck = report_recheck(&blob.digest, self.progress);
            let mut replayed = replay(kept);
            while let Some(bytes) = replayed.recv().await {
                let bytes = bytes.map_err(|error| {
                    let message = format!("could not read what is here of blob `{}`", blob.digest);
                    RuntimeError::new(RuntimeErrorKind::Corrupt, message).caused_by(error)
                })?;
                intake.from_disk += bytes.len() as u64;
                match self.passed(&mut intake, bytes, copies, None).await {
                    Some(true) => {}
                    Some(false) => return Ok(Fetched::Unread),
                    None => return Ok(Fetched::GaveWay),
                }
            }
            tracing::debug!(blob = %blob.digest, offset, "resuming a partial blob");
        }
        pace.set_left(blob.size.saturating_sub(offset));
        pace.network.resume(Instant::now());
        let mut checks = Checks::new();
        self.is_opening = true;
        let opened = self.source.open_ranged(offset, &intake.reader_wait);
        let Some(opened) = checks.run(opened, |now| self.gives_way(now)).await else {
            return Ok(self.gave_way(intake).await);
        };
        let mut stream = opened?;
        self.is_opening = false;
        loop {
            let Some(bytes) = checks.run(stream.next(), |now| self.gives_way(now)).await else {
                return Ok(self.gave_way(intake).await);
            };
            let Some(bytes) = bytes? else { break };
            pace.received(bytes.len() as u64);
            pace.network.pause(Instant::now());
            if let Some(early) = &mut intake.early {
                if early.len() > EARLY_MAX {
                    self.copy_late(&mut intake).await?;
                } else {
                    early.extend_from_slice(&bytes);
                }
            }
            let is_copied = || intake.early.is_some() || intake.copy.as_ref().is_some_and(|copy| !copy.is_closed());
            let is_kept = match &self.resumes_from {
                ResumeSource::CompressedCopy => is_copied(),
                ResumeSource::Files(has_checkpoint) => has_checkpoint.load(Ordering::Relaxed),
                ResumeSource::Nothing => false,
            };
            self.is_lossy = !is_kept || stream.begins_anew();
            match self.passed(&mut intake, bytes, true, Some(&mut stream)).await {
                Some(true) => {}
                Some(false) => {
                    let received = intake.received;
                    self.rest = intake.hash.map(|hash| Rest { stream, hash, received });
                    return Ok(Fetched::Unread);
                }
                None => return Ok(self.gave_way(intake).await),
            }
            pace.set_left(blob.size.saturating_sub(intake.received));
            pace.network.resume(Instant::now());
        }
        // A blob that came whole from the disk was reported when it was fetched.
        if intake.received > intake.from_disk {
            intake.report(job, self.progress);
        }
        if let Some(hash) = &intake.hash {
            job.verify(hash)?;
        }
        self.content = intake.content.map(|content| content.finish_128());
        let is_read = match intake.frames {
            Some(frames) => frames.send(Frame::End).await.is_ok(),
            None => true,
        };
        Ok(if is_read { Fetched::Whole } else { Fetched::Unread })
    }

    /// Passes bytes to the inflater. Returns what [`Intake::pass`] returns, or `None` if the layer gave way.
    async fn passed(
        &self,
        intake: &mut Intake,
        bytes: Bytes,
        copies: bool,
        mut stream: Option<&mut RangedStream>,
    ) -> Option<bool> {
        let mut waits = None;
        let mut taken = pin!(intake.pass(self.job, bytes, copies, self.progress));
        loop {
            if let Ok(is_read) = timeout(CONNECTED_WAIT_MAX, &mut taken).await {
                return Some(is_read);
            }
            if self.memory.is_awaited() {
                let what = (SharedThing::Memory, &self.job.descriptor.digest, self.progress);
                waits.get_or_insert_with(|| report_wait(what, self.memory.budget.holder()));
                // A layer that waits for memory frees its request slots, because layers with memory need them.
                if let Some(stream) = &mut stream {
                    stream.pause();
                }
            }
            if self.gives_way(Instant::now()) {
                return None;
            }
        }
    }

    pub(super) fn gives_way(&self, now: Instant) -> bool {
        let Self { job, memory, place, .. } = self;
        let thing = if memory.gives_way(job.terms.hold, &place.pace.network, now) {
            place.leave(now);
            SharedThing::Memory
        } else if !self.is_opening && place.gives_way(job.terms.hold, self.is_lossy, now) {
            SharedThing::Place
        } else {
            return false;
        };
        tracing::info!(
            blob = %job.descriptor.digest, reference = %job.session.reference(), thing = thing.name(),
            rate = place.pace.wall.rate(now),
            "a layer gives way to others that wait, and continues later"
        );
        true
    }

    async fn gave_way(&mut self, mut intake: Intake) -> Fetched {
        if let Err(error) = self.start_copy(&mut intake).await {
            tracing::warn!(blob = %self.job.descriptor.digest, error = error.chain(), "could not keep the first bytes of a slow layer");
        }
        Fetched::GaveWay
    }

    /// Starts the copy of a small layer that is slow or uses shared memory. Other small layers are fetched again.
    async fn copy_late(&mut self, intake: &mut Intake) -> Result<(), RuntimeError> {
        let rate = self.place.pace.network.rate(Instant::now());
        if self.memory.holds_shared() || rate < self.job.terms.hold.rate_min {
            self.start_copy(intake).await?;
        }
        intake.early = None;
        Ok(())
    }

    async fn start_copy(&mut self, intake: &mut Intake) -> Result<(), RuntimeError> {
        let Some(early) = intake.early.take().filter(|early| !early.is_empty()) else { return Ok(()) };
        let Some(writer) = self.job.on_thread(|job| job.copy(0)).await?? else { return Ok(()) };
        let (copy, copying) = copy_to(writer, self.job.staging.written_bytes.clone(), None);
        if copy.send(early.freeze()).await.is_ok() {
            intake.copy = Some(copy);
        }
        self.copying = Some(copying);
        Ok(())
    }
}

impl LayerJob {
    /// Called when the content does not unpack. Verifies the digest of the whole blob, if that does not take too long.
    /// A wrong digest blames the sender of the bytes, not the builder of the image.
    pub(super) async fn blame(&self, rest: Rest, error: RuntimeError) -> RuntimeError {
        let Rest { mut stream, mut hash, received } = rest;
        if self.descriptor.size.saturating_sub(received) > REST_BYTES_MAX {
            return error;
        }
        let verified = async {
            while let Some(bytes) = stream.next().await? {
                hash.update(&bytes);
            }
            self.verify(&hash)
        };
        match timeout(REST_MAX, verified).await {
            Ok(Err(wrong)) if wrong.kind() == RuntimeErrorKind::Corrupt => wrong,
            _ => error,
        }
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

/// Starts a thread that writes the copy of a layer's compressed bytes, or an artifact's file. The thread ends when the
/// sender is dropped and all bytes are written, or when a write fails or lacks space. A file has no inflater, so this
/// thread measures the `reader_wait`.
pub(super) fn copy_to(
    mut writer: BlobWriter,
    written_bytes: WrittenBytes,
    reader_wait: Option<ReaderWait>,
) -> (mpsc::Sender<Bytes>, JoinHandle<io::Result<BlobWriter>>) {
    let (sender, mut frames) = mpsc::channel::<Bytes>(COPIES_QUEUED);
    let thread = tokio::task::spawn_blocking(move || {
        loop {
            let since = Instant::now();
            let Some(bytes) = frames.blocking_recv() else { break };
            if let Some(reader_wait) = &reader_wait {
                reader_wait.add(since.elapsed());
                written_bytes.read(bytes.len() as u64);
            }
            writer.write(&bytes)?;
            if writer.is_reserved() {
                written_bytes.add(bytes.len() as u64);
            }
            if !writer.is_wanted {
                break;
            }
        }
        Ok(writer)
    });
    (sender, thread)
}

pub(super) struct Intake {
    /// The queue to the inflater; `None` for an artifact's file, which is not inflated.
    frames: Option<mpsc::Sender<Frame>>,
    reader_wait: ReaderWait,
    copy: Option<mpsc::Sender<Bytes>>,
    /// The hash of the compressed blob; `None` if the layer continues from its files, whose bytes the diff-id verifies.
    hash: Option<Hash>,
    content: Option<Hasher>,
    received: u64,
    from_disk: u64,
    reported: u64,
    reported_at: Instant,
    early: Option<BytesMut>,
}

impl Intake {
    /// `skipped` first bytes of the blob were unpacked by an earlier attempt. They are not fetched.
    pub(super) fn new(
        algorithm: DigestAlgorithm,
        frames: Option<mpsc::Sender<Frame>>,
        reader_wait: ReaderWait,
        copy: Option<mpsc::Sender<Bytes>>,
        skipped: u64,
    ) -> Self {
        let (hash, reported_at) = ((skipped == 0).then(|| Hash::new(algorithm)), Instant::now());
        let (received, from_disk, reported, content, early) = (skipped, skipped, 0, None, None);
        Self { frames, reader_wait, copy, hash, content, received, from_disk, reported, reported_at, early }
    }

    /// Passes bytes to the inflater and, if `copies`, to the copy. Returns `false` if one of the two has stopped.
    async fn pass(&mut self, job: &LayerJob, bytes: Bytes, copies: bool, progress: &Progress) -> bool {
        if let Some(copy) = self.copy.as_ref().filter(|_| copies)
            && copy.send(bytes.clone()).await.is_err()
        {
            if job.blob.is_kept || self.frames.is_none() {
                return false;
            }
            // The copy has stopped for lack of space. The pull continues without it.
            self.copy = None;
        }
        if let Some(hash) = &mut self.hash {
            hash.update(&bytes);
        }
        if let Some(content) = &mut self.content {
            content.write(&bytes);
        }
        self.received += bytes.len() as u64;
        let fetched = self.received - self.from_disk;
        // The first report shows that the layer has started; the periodic reports show the rate of a slow layer.
        let is_due = fetched - self.reported >= PROGRESS_STEP || self.reported_at.elapsed() >= CHECK_PERIOD;
        if fetched > self.reported && (is_due || self.reported == 0) {
            self.report(job, progress);
        }
        job.staging.written_bytes.space().await;
        match &self.frames {
            Some(frames) => frames.send(Frame::Bytes(bytes)).await.is_ok(),
            None => true,
        }
    }

    fn report(&mut self, job: &LayerJob, progress: &Progress) {
        self.reported = self.received - self.from_disk;
        self.reported_at = Instant::now();
        progress(PullEvent::Layer {
            digest: job.descriptor.digest.clone(),
            state: LayerState::Fetching { received: ByteSize(self.reported) },
        });
    }
}

/// Reads a file on a separate thread. Fewer than `kept.length` bytes are an error.
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
