//! One layer, one pass: socket → digest → inflate → diff-id → files in a staging folder.
//!
//! Three stages run in parallel. The caller's task fetches and hashes compressed bytes. A blocking thread inflates them
//! into recycled buffers. Another thread hashes the inflated bytes and unpacks them. The queues are short, so memory
//! does not grow with the layer. Dropping the future closes the first queue without its end mark. The threads then
//! fail, and remove the staging folder or leave it as a partial layer.

pub(crate) mod buffer_pool;
mod fetch;
pub(crate) mod frames;
mod gzip;
pub(crate) mod inflate;
mod pace;
mod pull_slots;
mod replay;
mod unpacking;
mod zstd_window;

use std::{
    os::fd::AsFd as _,
    path::PathBuf,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    hold::{HoldPolicy, SharedThing},
    image::Digest,
    ports::{LayerState, Progress, PullEvent},
};
use tokio::{sync::mpsc, time::Instant};

use self::{
    buffer_pool::{BLOCKS_QUEUED, BLOCKS_QUEUED_LARGEST, Expansion},
    fetch::{Fetched, Intake, LayerAttempt, ResumeSource, copy_to},
    frames::FrameReader,
    inflate::Bounds,
    pace::{Checks, report_recheck},
};
pub(crate) use self::{
    pace::{LayerPace, report_wait, reported},
    pull_slots::{Place, PullSlots, SlotRequest},
};
use crate::{
    admission::{WriteGate, WrittenBytes},
    confine::{AllowedFolder, Confinement},
    hash::Hash,
    manifest::{BlobLayout, Compression, Descriptor},
    registry::{PullSession, ReaderWait},
    store::{
        BlobPurpose, BlobWriter, KeptBytes, LayerEnd, PartialKey, PartialLayer, Resumption, StagedLayer, Store,
        SyncView, storage_error,
    },
    unpack::{LayerMemory, UnpackBudget},
};

/// A smaller layer is quickly fetched again, so it stays for a resumption only if its registry is slow.
const RESUMABLE_LAYER_MIN: u64 = 16 << 20;
/// Frames in the queue to the inflater. A frame is at most as large as the transport's read buffer.
const FRAMES_QUEUED: usize = 8;
const WRITER_CHECK: Duration = Duration::from_millis(20);
const WRITER_CHECKS_MAX: u32 = 100;

/// The change of the nice value of the threads of every layer but the largest. The largest layer decides when the pull
/// ends, and on two cores other layers would slow it. If it is the base, a runtime adds all other layers after it. With
/// 19, an import of 13 layers took 8 MB more memory and no less time. The value has no effect on other control groups.
const SMALLER_LAYER_NICE: i32 = 10;
/// The change of the nice value of the largest layer's inflater. Only one thread can inflate a stream, so no other core
/// makes up for the time in which this thread is preempted. A pull takes 4 % less time; with -10, no less. Without the
/// capability `CAP_SYS_NICE`, the value does not change.
const LARGEST_INFLATER_NICE: i32 = -5;

/// Maximum inflated bytes of one layer of any size: the limit of its files.
const INFLATED_BYTES_MAX: u64 = 256 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerLimits {
    /// Inflated bytes per compressed byte; gzip reaches 1,032 on zeros.
    pub expansion_max: u64,
    /// Inflated bytes of all layers of an image that are permitted at any ratio.
    pub expansion_free: u64,
    pub entries_max: u64,
    pub free_bytes_floor: u64,
    pub free_inodes_floor: u64,
    pub layers_in_flight: usize,
    /// Memory for unpacking all layers, in bytes.
    pub memory: u64,
}

#[derive(Clone)]
pub(crate) struct LayerJob {
    pub(crate) session: PullSession,
    pub(crate) descriptor: Descriptor,
    pub(crate) diff_id: Digest,
    pub(crate) artifact: Option<BlobLayout>,
    pub(crate) claim: SlotRequest,
    pub(crate) staging: LayerStaging,
    pub(crate) blob: CompressedCopy,
    pub(crate) terms: UnpackTerms,
}

#[derive(Clone)]
pub(crate) struct LayerStaging {
    pub(crate) store: Arc<Store>,
    pub(crate) end: LayerEnd,
    pub(crate) view: Arc<SyncView>,
    pub(crate) written_bytes: WrittenBytes,
}

#[derive(Clone)]
pub(crate) struct CompressedCopy {
    /// Whether the compressed bytes are kept; after a failure, the received part stays.
    pub(crate) is_kept: bool,
    /// Whether the partial layer stays for the next pull if this pull ends unfinished.
    pub(crate) resumption: Resumption,
    pub(crate) key: PartialKey,
    pub(crate) unreserved_space: Arc<dyn Fn(u64) -> bool + Send + Sync>,
    /// Whether to use a kept blob; otherwise the registry must send the blob.
    pub(crate) trusts_kept: bool,
    /// Paths at which this pull may have placed a whole file with the same bytes.
    pub(crate) whole: Vec<PathBuf>,
}

#[derive(Clone)]
pub(crate) struct UnpackTerms {
    pub(crate) limits: LayerLimits,
    pub(crate) allowance: Arc<AtomicU64>,
    pub(crate) budget: Arc<UnpackBudget>,
    pub(crate) confinement: Confinement,
    pub(crate) hold: HoldPolicy,
    pub(crate) is_largest: bool,
}

#[derive(Clone, Copy)]
struct DiskUse {
    reads: bool,
    copies: bool,
}

/// `Files` unpacks into a folder that stays, and that may have files of an earlier attempt.
enum AttemptStart {
    Files(PartialLayer),
    Bytes { kept: Option<KeptBytes>, copy: Option<BlobWriter> },
}

impl AttemptStart {
    fn has_bytes(&self) -> bool {
        match self {
            Self::Files(partial) => partial.resumed.is_some(),
            Self::Bytes { kept, .. } => kept.is_some(),
        }
    }
}

impl LayerJob {
    /// Fetches, verifies and unpacks the layer. Returns when it is complete, but not yet durable. If bytes from the
    /// disk or a mirror may be the cause of a failure, fetches the layer again without them.
    pub(crate) async fn run(&self, place: &Place, progress: &Progress) -> Result<StagedLayer, RuntimeError> {
        let source = self.session.blob(&self.descriptor);
        let mut disk = DiskUse { reads: true, copies: true };
        let mut memory = self.memory(place);
        loop {
            let start = self.start(disk).await?;
            let was_on_disk = start.has_bytes();
            let attempt = LayerAttempt::new(self, &source, &memory, (place, progress));
            let attempted = match (&self.artifact, start) {
                (Some(BlobLayout::File(path)), AttemptStart::Bytes { kept, copy: Some(writer) }) => {
                    attempt.run_file(path, kept, writer).await
                }
                (_, start) => attempt.run(start).await,
            };
            let error = match attempted {
                Err(error) => error,
                Ok(None) => {
                    drop(memory);
                    place.pace.set_left(self.descriptor.size);
                    // The next attempt continues the content that this attempt has left on the disk.
                    disk.reads = true;
                    place.again(&self.descriptor, progress).await?;
                    memory = self.memory(place);
                    continue;
                }
                Ok(Some(layer)) => {
                    if !self.blob.is_kept {
                        self.discard_partial().await?;
                    }
                    progress(PullEvent::Layer { digest: self.descriptor.digest.clone(), state: LayerState::Done });
                    return Ok(layer);
                }
            };
            place.pace.set_left(self.descriptor.size);
            if memory.was_refused() {
                // The memory is released before the wait, so that a waiting layer uses no memory.
                drop(memory);
                tracing::debug!(layer = %self.descriptor.digest, "waiting for a whole share of the memory to unpack in");
                memory = self.whole_memory(place, progress).await?;
                continue;
            }
            match error.kind() {
                RuntimeErrorKind::Corrupt | RuntimeErrorKind::Unacceptable => {
                    let is_archive = self.session.archive().is_some();
                    self.on_thread(move |job| {
                        // Only a kept blob that this attempt may have read is discarded.
                        if job.blob.trusts_kept && !is_archive {
                            job.staging.store.discard_blob(&job.descriptor.digest);
                        }
                        job.staging.store.discard_partial(&job.blob.key, job.claim.pull);
                    })
                    .await?;
                    if is_archive || (!was_on_disk && !source.distrust_senders(&error)) {
                        return Err(error);
                    }
                    disk.reads = false;
                }
                // A copy that is only for a resumption must not fail a pull.
                RuntimeErrorKind::DiskFull => {
                    let freed = self.on_thread(|job| {
                        let store = &job.staging.store;
                        let own = std::slice::from_ref(&job.blob.key);
                        Ok::<_, RuntimeError>(store.free_unfinished(u64::MAX, own, None)? + store.revoke_partials()?)
                    });
                    let freed = freed.await??;
                    if freed == 0 || self.blob.is_kept || !std::mem::replace(&mut disk.copies, false) {
                        self.discard_partial().await?;
                        return Err(error);
                    }
                    tracing::info!(layer = %self.descriptor.digest, freed, "the disk was full of unfinished pulls; trying again");
                }
                _ => return Err(error),
            }
        }
    }

    fn memory(&self, place: &Place) -> Arc<LayerMemory> {
        self.terms.budget.layer(&self.claim.tenant, &self.claim.image, &place.pace.wall)
    }

    /// Waits for all the memory that a layer may have. The layer keeps its place until another layer waits for one.
    async fn whole_memory(&self, place: &Place, progress: &Progress) -> Result<Arc<LayerMemory>, RuntimeError> {
        let (mut checks, UnpackTerms { budget, hold, .. }) = (Checks::new(), &self.terms);
        loop {
            place.pace.network.pause(Instant::now());
            let memory = budget.whole_layer(self.memory(place));
            let memory = checks.run(memory, |now| place.gives_way(*hold, false, now));
            let what = (SharedThing::Memory, &self.descriptor.digest, progress);
            match reported(what, || budget.holder(), memory).await {
                Some(memory) => return Ok(memory),
                None => place.again(&self.descriptor, progress).await?,
            }
        }
    }

    async fn start(&self, disk: DiskUse) -> Result<AttemptStart, RuntimeError> {
        if self.is_resumable() {
            self.writer_ended().await;
        }
        self.on_thread(move |job| {
            let (store, Descriptor { digest, size, .. }) = (&job.staging.store, &job.descriptor);
            let kept = match job.session.archive() {
                Some(archive) => {
                    Some(KeptBytes { file: archive.open(&job.descriptor)?, length: *size, is_in_copy: false })
                }
                None if disk.reads => {
                    let whole = if job.blob.trusts_kept { store.open_blob(digest, *size) } else { None };
                    let same = || job.blob.whole.iter().find_map(|path| KeptBytes::open(path, *size..=*size));
                    // A partial blob that a running pull writes is not used: its bytes may prove wrong.
                    let partial = || store.open_partial(&job.blob.key, *size);
                    let partial = || if store.is_written(&job.blob.key) { None } else { partial() };
                    whole.or_else(same).or_else(partial)
                }
                None => None,
            };
            // A partial blob is continued. A whole blob that this pull must not read stays unchanged.
            let known = kept.as_ref().filter(|kept| kept.is_in_copy).map(|kept| kept.length);
            if let Some(BlobLayout::File(_)) = job.artifact {
                let start = |known| store.write_blob(&job.blob.key, known, (job.keeps(), &job.blob.resumption));
                if let Some(written) = start(known.unwrap_or(0))? {
                    return Ok(AttemptStart::Bytes { kept, copy: Some(written) });
                }
                let kept = kept.filter(|kept| !kept.is_in_copy);
                let copy = match start(0)? {
                    None => store.write_blob_again(&job.blob.key, job.keeps())?,
                    written => written,
                };
                return Ok(AttemptStart::Bytes { kept, copy });
            }
            if kept.is_none() && job.stays_by_files() {
                let (CompressedCopy { key, resumption, .. }, LayerStaging { end, view, .. }) =
                    (&job.blob, &job.staging);
                if let Some(partial) = store.stage_partial((key, *size), (*end, view), (resumption, disk.reads))? {
                    return Ok(AttemptStart::Files(partial));
                }
            }
            let copies = (job.is_resumable() || known.is_some()) && (disk.copies || job.blob.is_kept);
            let copy = if copies && !store.has_blob(digest) { job.copy(known.unwrap_or(0))? } else { None };
            Ok(AttemptStart::Bytes { kept, copy })
        })
        .await?
    }

    async fn writer_ended(&self) {
        let mut patience = WRITER_CHECKS_MAX;
        while patience > 0 && self.staging.store.is_written(&self.blob.key) {
            tokio::time::sleep(WRITER_CHECK).await;
            patience -= 1;
        }
    }

    async fn discard_partial(&self) -> Result<(), RuntimeError> {
        self.on_thread(|job| job.staging.store.discard_partial(&job.blob.key, job.claim.pull)).await
    }

    /// Removes the content of this pull, because another pull has fetched the layer.
    pub(crate) async fn give_up(&self) -> Result<(), RuntimeError> {
        if self.file_path().is_none() && !self.stays_by_files() {
            return Ok(());
        }
        self.writer_ended().await;
        self.discard_partial().await
    }

    fn copy(&self, known: u64) -> Result<Option<BlobWriter>, RuntimeError> {
        let CompressedCopy { is_kept, resumption, key, unreserved_space, .. } = &self.blob;
        let purpose = if *is_kept { self.keeps() } else { BlobPurpose::Resume(Arc::clone(unreserved_space)) };
        self.staging.store.write_blob(key, known, (purpose, resumption))
    }

    fn keeps(&self) -> BlobPurpose {
        BlobPurpose::Keep(self.terms.limits.free_bytes_floor)
    }

    fn is_resumable(&self) -> bool {
        self.blob.is_kept || (self.may_copy() && self.descriptor.size >= RESUMABLE_LAYER_MIN)
    }

    /// Whether the unpacked files stay for a resumption, instead of compressed bytes. This excludes zstd, whose decoder
    /// cannot start inside a frame, and a process without root, because the archive's modes may make files unreadable.
    fn stays_by_files(&self) -> bool {
        let is_zstd = || self.descriptor.layer_compression().is_ok_and(|it| it == Compression::Zstd);
        let is_root = rustix::process::geteuid().is_root();
        is_root && self.artifact.is_none() && !self.blob.is_kept && self.is_resumable() && !is_zstd()
    }

    fn may_copy(&self) -> bool {
        self.blob.resumption.is_allowed() && self.session.archive().is_none()
    }

    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, RuntimeError> {
        let job = self.clone();
        Ok(tokio::task::spawn_blocking(move || work(&job)).await?)
    }

    pub(crate) fn file_path(&self) -> Option<&str> {
        match &self.artifact {
            Some(BlobLayout::File(path)) => Some(path),
            None | Some(BlobLayout::Archive { .. }) => None,
        }
    }

    /// The digest of an archive's inflated bytes, if known. The key of an artifact's layer is no digest of content.
    fn content_digest(&self) -> Option<&Digest> {
        match &self.artifact {
            None => Some(&self.diff_id),
            Some(BlobLayout::Archive { content, .. }) => content.as_ref(),
            Some(BlobLayout::File(_)) => None,
        }
    }

    fn in_layer(&self, error: RuntimeError) -> RuntimeError {
        let is_limit = error.kind() == RuntimeErrorKind::Unacceptable;
        let error = error.about(format!("could not unpack layer `{}`", self.descriptor.digest));
        // The manifest check rejects unsupported layer types, so the layer exceeds a limit.
        if is_limit { error.with_fault(Fault::new(ErrorClass::Unacceptable, Stage::Unpack)) } else { error }
    }
}

impl LayerAttempt<'_> {
    /// Runs the three stages. Returns `None` if the layer gave way; content for a resumption is then on the disk.
    async fn run(mut self, start: AttemptStart) -> Result<Option<StagedLayer>, RuntimeError> {
        let (job, memory, written_bytes) = (self.job, self.memory, &self.job.staging.written_bytes);
        let (staging, journal, resumed, kept, copy) = match start {
            AttemptStart::Files(PartialLayer { staging, journal, resumed }) => {
                self.resumes_from = ResumeSource::Files(Arc::clone(&journal.has_checkpoint));
                (staging, Some(journal), resumed, None, None)
            }
            AttemptStart::Bytes { kept, copy } => {
                (job.on_thread(|job| job.staging.store.stage()).await??, None, None, kept, copy)
            }
        };
        let (skipped, unpacked) = resumed.as_ref().map_or((0, 0), |from| (from.offset(), from.checkpoint.plain));
        if skipped > 0 {
            tracing::debug!(blob = %job.descriptor.digest, offset = skipped, "resuming a partial layer from its files");
        }
        written_bytes.restart(skipped, unpacked);
        let previous = resumed.as_ref().map(|resumed| Arc::clone(&resumed.previous));
        let (frames, frames_out) = mpsc::channel(FRAMES_QUEUED);
        let hash = Hash::new(job.content_digest().unwrap_or(&job.descriptor.digest).algorithm());
        let cancelled = Arc::new(AtomicBool::new(false));
        let cancel = CancelOnDrop(Arc::clone(&cancelled));
        let gate = WriteGate::new(written_bytes.clone(), Arc::clone(&cancelled));
        let queued = if job.terms.is_largest { BLOCKS_QUEUED_LARGEST } else { BLOCKS_QUEUED };
        let (mut blocks, blocks_out) = buffer_pool::queue(queued, memory, hash, gate, journal);
        let inflated_max = job.descriptor.size.saturating_mul(job.terms.limits.expansion_max).min(INFLATED_BYTES_MAX);
        let bounds = Bounds {
            expansion: Expansion::new(inflated_max, &job.terms.allowance),
            memory: Arc::clone(memory),
            cancelled: Arc::clone(&cancelled),
        };
        let reader_wait = ReaderWait::default();
        let compressed = FrameReader::new(frames_out, reader_wait.clone(), written_bytes.clone());
        let copy = copy.map(|writer| {
            if !writer.resumption.is_allowed() {
                self.resumes_from = ResumeSource::Nothing;
            }
            let (copy, copying) = copy_to(writer, written_bytes.clone(), None);
            self.copying = Some(copying);
            copy
        });
        let confinement = job.terms.confinement.clone();
        let readable = previous.clone();
        let is_largest = job.terms.is_largest;
        let recheck = || report_recheck(&job.descriptor.digest, self.progress);
        let resumed = resumed.map(|resumed| (resumed, recheck()));
        let inflater = tokio::task::spawn_blocking(move || {
            let readable: Vec<_> = readable.iter().map(|folder| AllowedFolder::ReadOnly(folder.as_fd())).collect();
            let inflated = confinement.run(&readable, move || {
                change_nice(if is_largest { LARGEST_INFLATER_NICE } else { SMALLER_LAYER_NICE });
                inflate::inflate(compressed, &mut blocks, bounds, resumed)
            });
            // Drops the reader's files outside the sandbox, because the sandbox cannot remove files.
            inflated.map_err(unconfined).and_then(|(_, inflated)| inflated)
        });
        let unpacker = {
            let (job, memory) = (job.clone(), Arc::clone(memory));
            tokio::task::spawn_blocking(move || {
                job.unpack(staging, previous.as_deref(), blocks_out, (memory, cancelled))
            })
        };

        let intake = Intake::new(job.descriptor.digest.algorithm(), Some(frames), reader_wait, copy, skipped);
        let fetched = self.fetch(kept, intake).await;
        let mut gave_way = matches!(fetched, Ok(Fetched::GaveWay));
        if gave_way || fetched.is_err() {
            cancel.0.store(true, Ordering::Relaxed);
        }
        // While the threads still wait for memory, the layer may have to give way.
        let mut ended = pin!(async { (inflater.await, unpacker.await) });
        let gives_way = |now| memory.is_awaited() && self.gives_way(now);
        let (inflated, unpacked) = if let Some(ended) = Checks::new().run(&mut ended, gives_way).await {
            ended
        } else {
            gave_way = true;
            cancel.0.store(true, Ordering::Relaxed);
            ended.await
        };
        let (inflated, unpacked) = (inflated?, unpacked?);
        let mut copied = None;
        if let Some(copying) = self.copying.take() {
            let written = copying.await?;
            copied = Some(written.map_err(|error| storage_error("could not keep the compressed blob", error))?);
        }
        if let Some(copied) = copied.as_mut().filter(|_| gave_way) {
            copied.keep_any_length();
        }
        // The stage nearest the source reports the cause, because later stages only see a closed queue.
        let fetched = fetched?;
        if gave_way {
            return Ok(None);
        }
        let error = match (inflated, unpacked) {
            (Err(error), _) => job.in_layer(error),
            (_, Err(error)) => error,
            (Ok(true), Ok(layer)) if fetched == Fetched::Whole => {
                return Ok(Some(layer.with_blob(copied.and_then(BlobWriter::whole))));
            }
            (Ok(_), Ok(_)) => {
                job.in_layer(RuntimeError::new(RuntimeErrorKind::Corrupt, "the archive ends before its blob"))
            }
        };
        match self.rest.take() {
            Some(rest) if error.kind() == RuntimeErrorKind::Corrupt => Err(job.blame(rest, error).await),
            _ => Err(error),
        }
    }
}

fn change_nice(change: i32) {
    // On Linux this call changes the calling thread only. A failure changes only the order of work.
    let _ = rustix::process::nice(change);
}

fn unconfined(error: std::io::Error) -> RuntimeError {
    storage_error("could not start a thread for the layer", error)
}

pub(crate) struct CancelOnDrop(pub(crate) Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
