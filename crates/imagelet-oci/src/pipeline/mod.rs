//! One layer, one pass: socket → digest → inflate → diff-id → files in a staging folder.
//!
//! Three stages run side by side. The caller's task fetches and hashes compressed bytes. A blocking thread inflates
//! them into recycled buffers. Another thread hashes the inflated bytes and unpacks them. The queues are short, so
//! memory does not grow with the layer. Dropping the future closes the first queue without its end mark; the threads
//! treat that as a failure, stop, and remove the staging folder.

pub(crate) mod buffer_pool;
mod fetch;
pub(crate) mod frames;
pub(crate) mod inflate;
mod pace;
mod pull_slots;
mod unpacking;
mod zstd_window;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    hold::{HoldPolicy, SharedThing},
    image::Digest,
    runtime::{ErrorClass, Fault, LayerState, Progress, PullEvent, RuntimeError, RuntimeErrorKind, Stage},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

pub(crate) use self::{
    buffer_pool::Allowance,
    pace::{LayerPace, reported},
    pull_slots::{Place, PullSlots, SlotRequest},
};
use self::{
    buffer_pool::Expansion,
    fetch::{BlobCopy, Fetched, Inflater, Unread},
    frames::FrameReader,
    inflate::Bounds,
    pace::Checks,
};
use crate::{
    admission::WrittenBytes,
    confine::Confinement,
    hash::Hash,
    manifest::Descriptor,
    registry::{BlobSource, PullSession, ReaderWait},
    store::{
        BlobPurpose, BlobWriter, KeptBytes, LayerEnd, PartialKey, Resumption, StagedBlob, StagedLayer, Store, SyncView,
        storage_error,
    },
    unpack::{LayerMemory, UnpackBudget},
};

/// The compressed bytes of a layer of this size or more are written to the disk for a resumption.
const COPIED_MIN: u64 = 16 << 20;
/// A frame is at most as large as the transport's read buffer.
const FRAMES_QUEUED: usize = 8;
/// Interval and number of checks whether a cancelled pull has released its blob.
const WRITER_LOOK: Duration = Duration::from_millis(20);
const WRITER_LOOKS_MAX: u32 = 100;

/// The most that one layer may inflate to, whatever its size: as much as its files may take.
const INFLATED_BYTES_MAX: u64 = 256 << 30;

/// The most that is read of a blob after a failed unpack, to find the cause.
const UNREAD_BYTES_MAX: u64 = 64 << 20;
/// How long that may take: the layer still has its place and its memory.
const BLAME_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerLimits {
    /// Inflated bytes per compressed byte; gzip reaches 1,032 on zeros.
    pub expansion_max: u64,
    /// Inflated bytes of all layers of an image that are allowed at any ratio.
    pub expansion_free: u64,
    pub entries_max: u64,
    /// Bytes that stay free on the store's file system.
    pub free_bytes_floor: u64,
    /// Inodes that stay free on it.
    pub free_inodes_floor: u64,
}

#[derive(Clone)]
pub(crate) struct LayerJob {
    pub(crate) session: PullSession,
    pub(crate) descriptor: Descriptor,
    pub(crate) diff_id: Digest,
    /// The path of the one file that it is, not an archive; of an artifact.
    pub(crate) file: Option<String>,
    pub(crate) store: Arc<Store>,
    pub(crate) end: LayerEnd,
    /// Keeps the compressed blob, also a partial one after a failure.
    pub(crate) keep_blobs: bool,
    /// Whether the layer stays for the next pull where this one ends unfinished.
    pub(crate) resumption: Resumption,
    pub(crate) partial: PartialKey,
    pub(crate) unreserved_space: Arc<dyn Fn(u64) -> bool + Send + Sync>,
    /// Use a kept blob; otherwise fetch it from the registry.
    pub(crate) trusts_kept: bool,
    pub(crate) limits: LayerLimits,
    pub(crate) allowance: Arc<Allowance>,
    pub(crate) budget: Arc<UnpackBudget>,
    pub(crate) confinement: Confinement,
    pub(crate) view: Arc<SyncView>,
    pub(crate) written_bytes: WrittenBytes,
    pub(crate) claim: SlotRequest,
    pub(crate) hold: HoldPolicy,
}

enum Attempted {
    Layer(Box<StagedLayer>),
    /// Others have the place or the memory now; the bytes so far are on the disk.
    GaveWay,
}

/// How an attempt uses the compressed bytes on the disk.
#[derive(Clone, Copy)]
struct DiskUse {
    /// Reads those that are there.
    reads: bool,
    /// Writes the others for a resumption.
    copies: bool,
}

impl LayerJob {
    /// Fetches, verifies and unpacks the layer; returns when it is complete, but not yet durable.
    ///
    /// If bytes from the disk or a mirror may be the cause of a failure, the layer is fetched again without them.
    pub(crate) async fn run(&self, place: &Place, progress: &Progress) -> Result<StagedLayer, RuntimeError> {
        let source = self.session.blob(&self.descriptor);
        let mut disk = DiskUse { reads: true, copies: true };
        let mut memory = self.memory(place);
        loop {
            let (on_disk, copy) = self.on_disk(disk).await?;
            let was_on_disk = on_disk.is_some();
            let error = match self.attempt(&source, on_disk, copy, &memory, place, progress).await {
                Err(error) => error,
                Ok(Attempted::GaveWay) => {
                    drop(memory);
                    place.pace.set_left(self.descriptor.size);
                    // What it has copied is its own.
                    disk.reads = true;
                    place.again(&self.descriptor, progress).await?;
                    memory = self.memory(place);
                    continue;
                }
                Ok(Attempted::Layer(layer)) => {
                    if !self.keep_blobs {
                        self.forget(|job| job.store.discard_partial(&job.partial)).await?;
                    }
                    progress(PullEvent::Layer { digest: self.descriptor.digest.clone(), state: LayerState::Done });
                    return Ok(*layer);
                }
            };
            place.pace.set_left(self.descriptor.size);
            if memory.was_refused() {
                // Released before the wait: a waiting layer holds no memory.
                drop(memory);
                tracing::debug!(layer = %self.descriptor.digest, "waiting for a whole share of the memory to unpack in");
                memory = self.whole_memory(place, progress).await?;
                continue;
            }
            match error.kind() {
                RuntimeErrorKind::Corrupt | RuntimeErrorKind::Unacceptable => {
                    if self.session.archive().is_some() {
                        self.forget(|job| job.store.discard_partial(&job.partial)).await?;
                        return Err(error);
                    }
                    self.forget(LayerJob::forget_bytes).await?;
                    if !was_on_disk && !source.distrust_senders(&error) {
                        return Err(error);
                    }
                    disk.reads = false;
                }
                // What is there for a resumption alone must not fail a pull.
                RuntimeErrorKind::DiskFull => {
                    let freed = self.forget(LayerJob::free_unfinished).await??;
                    if freed == 0 || self.keep_blobs || !std::mem::replace(&mut disk.copies, false) {
                        return Err(error);
                    }
                    tracing::info!(layer = %self.descriptor.digest, freed, "the disk was full of unfinished pulls; fetching it again");
                }
                _ => return Err(error),
            }
        }
    }

    fn memory(&self, place: &Place) -> Arc<LayerMemory> {
        self.budget.layer(&self.claim.tenant, &self.claim.image, &place.pace.wall)
    }

    /// Waits for all the memory that a layer can have; keeps its place only while no other layer has to wait for it.
    async fn whole_memory(&self, place: &Place, progress: &Progress) -> Result<Arc<LayerMemory>, RuntimeError> {
        let mut checks = Checks::new();
        loop {
            place.pace.network.pause(Instant::now());
            let memory = self.budget.whole_layer(self.memory(place));
            let memory = checks.run(memory, |now| place.gives_way(self.hold, false, now));
            let what = (SharedThing::Memory, &self.descriptor.digest, progress);
            match reported(what, || self.budget.holder(), memory).await {
                Ok(memory) => return Ok(memory),
                Err(_) => place.again(&self.descriptor, progress).await?,
            }
        }
    }

    async fn on_disk(&self, disk: DiskUse) -> Result<(Option<KeptBytes>, Option<BlobWriter>), RuntimeError> {
        // A cancelled pull may still be writing its last bytes.
        let mut patience = WRITER_LOOKS_MAX;
        while self.copies() && patience > 0 && self.store.is_written(&self.descriptor.digest) {
            tokio::time::sleep(WRITER_LOOK).await;
            patience -= 1;
        }
        let job = self.clone();
        tokio::task::spawn_blocking(move || {
            let Descriptor { digest, size, .. } = &job.descriptor;
            let kept = match job.session.archive() {
                Some(archive) => {
                    Some(KeptBytes { file: archive.open(&job.descriptor)?, length: *size, is_in_copy: false })
                }
                None if disk.reads => {
                    let whole = if job.trusts_kept { job.store.open_blob(digest, *size) } else { None };
                    // The bytes of a running pull may turn out to be wrong.
                    let partial = || job.store.open_partial(&job.partial, *size);
                    whole.or_else(|| if job.store.is_written(digest) { None } else { partial() })
                }
                None => None,
            };
            // A partial one is continued; a whole one that this pull must not read stays as it is.
            let copies = job.copies() || kept.as_ref().is_some_and(|kept| kept.is_in_copy);
            let copies = copies && (disk.copies || job.keep_blobs) && !job.store.has_blob(digest);
            let known = kept.as_ref().filter(|kept| kept.is_in_copy).map_or(0, |kept| kept.length);
            let purpose =
                if job.keep_blobs { BlobPurpose::Keep } else { BlobPurpose::Resume(Arc::clone(&job.unreserved_space)) };
            let purpose = (purpose, &job.resumption);
            let copy = if copies { job.store.write_blob(&job.partial, known, purpose)? } else { None };
            Ok((kept, copy))
        })
        .await?
    }

    /// Whether the compressed bytes are written to the disk: a small layer is fetched again as quickly.
    fn copies(&self) -> bool {
        self.keep_blobs || (self.may_copy() && self.descriptor.size >= COPIED_MIN)
    }

    fn may_copy(&self) -> bool {
        self.resumption.is_allowed() && self.session.archive().is_none()
    }

    fn forget_bytes(&self) {
        // An unread blob is not known to be wrong.
        if self.trusts_kept {
            self.store.discard_blob(&self.descriptor.digest);
        }
        self.store.discard_partial(&self.partial);
    }

    fn free_unfinished(&self) -> Result<u64, RuntimeError> {
        Ok(self.store.free_unfinished(u64::MAX)? + self.store.revoke_partials()?)
    }

    async fn forget<T: Send + 'static>(&self, forget: fn(&Self) -> T) -> Result<T, RuntimeError> {
        let job = self.clone();
        Ok(tokio::task::spawn_blocking(move || forget(&job)).await?)
    }

    async fn attempt(
        &self,
        source: &BlobSource,
        on_disk: Option<KeptBytes>,
        copy: Option<BlobWriter>,
        memory: &Arc<LayerMemory>,
        place: &Place,
        progress: &Progress,
    ) -> Result<Attempted, RuntimeError> {
        self.written_bytes.restart();
        let store = Arc::clone(&self.store);
        let staging = tokio::task::spawn_blocking(move || store.stage()).await??;
        let (frames, frames_out) = mpsc::channel(FRAMES_QUEUED);
        let hash = Hash::new(self.content_digest().algorithm());
        let (mut blocks, blocks_out) = buffer_pool::queue(memory, hash, self.written_bytes.clone());

        let cancelled = Arc::new(AtomicBool::new(false));
        let cancel = CancelOnDrop(Arc::clone(&cancelled));
        let bounds = Bounds {
            expansion: Expansion::new(
                self.descriptor.size.saturating_mul(self.limits.expansion_max).min(INFLATED_BYTES_MAX),
                &self.allowance,
            ),
            memory: Arc::clone(memory),
            cancelled: Arc::clone(&cancelled),
        };
        let reader_wait = ReaderWait::default();
        let compressed = FrameReader::new(frames_out, reader_wait.clone());
        let compressed = compressed.counted_by(self.written_bytes.clone());
        let (copy, mut copying) = copy.map(|writer| BlobCopy::start(writer, self.written_bytes.clone())).unzip();
        let confinement = self.confinement.clone();
        let is_archive = self.file.is_none();
        let inflater = tokio::task::spawn_blocking(move || {
            let inflated = confinement.run(None, move || inflate::inflate(compressed, is_archive, &mut blocks, bounds));
            // The reader's files are dropped here, outside the sandbox that cannot remove files.
            inflated.map_or_else(|error| Err(Stopped::Failed(unconfined(error))), |(_, inflated)| inflated)
        });
        let unpacker = {
            let (job, memory) = (self.clone(), Arc::clone(memory));
            tokio::task::spawn_blocking(move || job.unpack(staging, blocks_out, memory, cancelled))
        };

        let inflation = Inflater { frames, reader_wait, copy };
        let fetched = self.fetch(source, on_disk, inflation, &mut copying, (memory, place), progress).await;
        let mut gave_way = matches!(fetched, Ok(Fetched::GaveWay));
        if gave_way || fetched.is_err() {
            cancel.0.store(true, Ordering::Relaxed);
        }
        // The threads may still wait for memory.
        let mut ended = pin!(async { (inflater.await, unpacker.await) });
        let waits = |now| memory.is_awaited().then(|| self.gives_way(memory, place, false, now)).flatten();
        let (inflated, unpacked) = if let Ok(ended) = Checks::new().run(&mut ended, waits).await {
            ended
        } else {
            gave_way = true;
            cancel.0.store(true, Ordering::Relaxed);
            ended.await
        };
        let (inflated, unpacked) = (inflated?, unpacked?);
        let mut copied = match copying {
            Some(copying) => Some(copying.end().await?),
            None => None,
        };
        if let Some(copied) = copied.as_mut().filter(|_| gave_way) {
            copied.keep_any_length();
        }
        // The stage nearest the source knows the cause; later stages only see a closed queue.
        let unread = match fetched? {
            _ if gave_way => return Ok(Attempted::GaveWay),
            Fetched::Whole => None,
            Fetched::Unread(unread) => Some(unread),
            Fetched::GaveWay => return Ok(Attempted::GaveWay),
        };
        let error = match (inflated, unpacked) {
            (Err(Stopped::Failed(error)), _) => self.in_layer(error),
            (_, Err(error)) => error,
            (Ok(()), Ok(layer)) if unread.is_none() => {
                return Ok(Attempted::Layer(Box::new(layer.with_blob(copied.and_then(StagedBlob::of)))));
            }
            (Err(Stopped::Downstream) | Ok(()), Ok(_)) => {
                self.in_layer(RuntimeError::new(RuntimeErrorKind::Corrupt, "the archive ends before its blob"))
            }
        };
        // A wrong digest blames the sender of the bytes, not the builder of the image.
        match unread {
            Some(unread) if error.kind() == RuntimeErrorKind::Corrupt => Err(self.blame(unread, error).await),
            _ => Err(error),
        }
    }

    /// Reads the rest of a blob that does not unpack, to check whether its digest is right.
    async fn blame(&self, unread: Box<Unread>, error: RuntimeError) -> RuntimeError {
        if self.descriptor.size.saturating_sub(unread.received) > UNREAD_BYTES_MAX {
            return error;
        }
        match timeout(BLAME_MAX, self.read_rest(unread)).await {
            Ok(Err(rest)) if rest.kind() == RuntimeErrorKind::Corrupt => rest,
            _ => error,
        }
    }

    /// The digest of the inflated bytes. A file's is that of its blob; its key cannot be compared with any content.
    fn content_digest(&self) -> &Digest {
        if self.file.is_some() { &self.descriptor.digest } else { &self.diff_id }
    }

    fn in_layer(&self, error: RuntimeError) -> RuntimeError {
        let is_limit = error.kind() == RuntimeErrorKind::Unacceptable;
        let error = error.about(format!("could not unpack layer `{}`", self.descriptor.digest));
        // The manifest check rejects unsupported layer types, so this layer breaks a limit.
        if is_limit { error.with_fault(Fault::new(ErrorClass::Unacceptable, Stage::Unpack)) } else { error }
    }
}

fn unconfined(error: std::io::Error) -> RuntimeError {
    storage_error("could not start a thread for the layer", error)
}

#[derive(Debug)]
pub(crate) enum Stopped {
    Failed(RuntimeError),
    Downstream,
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
