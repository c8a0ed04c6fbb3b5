//! One pass that finds, dates and caches all images, for every reader (`docs/spec/gc.md §3-§5`).
//!
//! Ages and uses survive a restart in the files that `ledger.rs` draws. The files are a memory, not a root: without them
//! every image is new again, which keeps it longer and never loses it.

mod apply_survey;
mod boot_clock;
mod detect;
mod leases;
mod ledger;
mod node_status;
mod observation_window;
mod pins;
mod recheck;
mod reference_match;
mod sandboxes;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod usage_history;

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

#[cfg(test)]
pub(crate) use self::testing::{InMemoryDisk, Mutation, step};
use self::{
    boot_clock::{AgeClock, moved},
    detect::{Records, Survey},
    leases::{Leases, service::LeaseFile},
    ledger::{Writer, files, files::StateDir},
    observation_window::ObservationWindow,
    pins::change::parse_patterns,
    sandboxes::{PINNED_FOR_SANDBOXES, SandboxImages, Sandboxes},
    usage_history::{UsageHistory, UseReport},
};
pub(crate) use self::{
    leases::removal_blocker::RemovalBlocker,
    recheck::{RemovalPermit, RequestedRemoval},
};
pub use self::{
    leases::service::{Hold, Removal},
    ledger::flush::MemoryRules,
    node_status::{ImageCache, NodeImage, node_images, node_status},
    observation_window::WATCH_GAP_MAX,
    pins::{PinError, PinPattern},
    usage_history::use_history::{ImageOrigin, PullCost, UseHistory},
};
use crate::{
    image::{ByteSize, Image, ImageId, ImageKey},
    runtime::{Pod, RuntimeError, RuntimeErrorKind, RuntimeManager, SandboxImage},
};

/// How often the ledger is written at most. Who looks each ten seconds loses less than a minute by a crash.
const FLUSH_EVERY: Duration = Duration::from_secs(45);
/// How long an image that no pass has seen is remembered as asked for: longer than a pull's commit takes.
const LEASE_UNSEEN_MAX: Duration = Duration::from_mins(15);
/// So many containers that went since the last pass are asked for one by one; where more went, a second pass counts.
const MISSING_ASKED_MAX: usize = 256;
/// Container status calls at once; the runtime serves pods meanwhile.
const STATUS_CALLS_MAX: usize = 8;
/// Who pinned an image that the runtime itself asks to keep.
const PINNED_BY_RUNTIME: &str = "runtime";

/// All images of a node: since when they are there, when they were used, who uses or pins them.
pub struct Inventory {
    runtime: RuntimeManager,
    directory: Option<StateDir>,
    state: Arc<Mutex<InventoryState>>,
    /// Whose turn it is to write the ledger.
    ledger: Option<Arc<Mutex<Writer>>>,
    /// The number of the last pass that succeeded. Queues the passes; nothing else is done under it.
    pass: tokio::sync::Mutex<u64>,
    passes_begun: AtomicU64,
    /// The last list for the Node's status.
    cache: ImageCache,
    lease_file: LeaseFile,
    /// UseReport of each removal that ended.
    removals: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct InventoryState {
    records: Records,
    /// What is remembered beyond the records, in steady times as they are.
    memory: UsageHistory,
    clock: AgeClock,
    /// What to add to a steady time to tell it by the wall clock; nanoseconds.
    shift: i128,
    /// Where the ledger's writer left the steady time.
    anchor: Option<boot_clock::Anchor>,
    /// The last time anything was dated by; an earlier one means that a clock was set back.
    seen_at: Option<SystemTime>,
    snapshot: Option<Arc<Snapshot>>,
    /// When an image was last asked for, by key.
    touches: BTreeMap<ImageKey, SystemTime>,
    /// Who asked for which image and may start a container from it.
    leases: Leases,
    /// When the first pass found an image unused that was in use before.
    released: BTreeMap<ImageKey, SystemTime>,
    #[cfg(test)]
    mutation: Option<testing::Mutation>,
    pins: Vec<PinPattern>,
    /// Those of the configuration, which no command takes back.
    configured_pins: Vec<PinPattern>,
    /// How often either has changed.
    pins_edition: u64,
    /// Mounts are fixed when a container is created, so each container is asked once.
    mounts: BTreeMap<String, Vec<String>>,
    sandboxes: Sandboxes,
    watch: ObservationWindow,
    /// The ledger on disk is older than this state.
    dirty: bool,
    flushed_at: Option<Instant>,
}

/// What one pass found.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the listings were in.
    pub taken_at: SystemTime,
    /// All images, by key.
    pub entries: Vec<Arc<ImageEntry>>,
    /// Since when uses are known without a long gap; before that an unused image may only be an unwatched one.
    pub watched_since: SystemTime,
    /// How many containers a runtime listed.
    pub containers: usize,
    /// No container is listed where there were some a moment ago: nobody may conclude that nothing is in use.
    pub containers_vanished: bool,
}

/// An image with what the inventory knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageEntry {
    /// As its store lists it.
    pub image: Arc<Image>,
    /// When a pass first saw it.
    pub first_seen: SystemTime,
    /// When it was last in use or asked for.
    pub last_used: Option<SystemTime>,
    /// When it was last asked for, by a pull or a pod; forgotten on restart.
    pub leased_at: Option<SystemTime>,
    /// How often it was used: by containers, mounts and pods that asked for it.
    pub use_count: u64,
    /// Who used it last, as `NAMESPACE/POD`, where that was a pod.
    pub last_user: Option<String>,
    /// Somebody may start a container from it until then, without asking again.
    pub leased_until: Option<SystemTime>,
    /// When a pass first found it unused after it was in use; `None` where that is long ago.
    ///
    /// A list may be short because its runtime has just restarted: a second look counts.
    pub released_at: Option<SystemTime>,
    /// What its last pull cost, where imagelet made it or was reported.
    pub pulled: Option<PullCost>,
    /// How it came to be here.
    pub origin: ImageOrigin,
    /// How its uses follow one another.
    pub history: UseHistory,
    /// `NAMESPACE/POD/CONTAINER`, `NAMESPACE/POD (sandbox)`, `mount DIRECTORY` or `container ID`.
    pub in_use_by: Vec<String>,
    /// Patterns, `runtime`, or `sandbox image`.
    pub pinned_by: Vec<String>,
}

impl Snapshot {
    /// The first entry of an image, whatever its handler.
    fn first_of(&self, id: &ImageId) -> Option<&ImageEntry> {
        let place = self.entries.partition_point(|entry| entry.image.id < *id);
        self.entries.get(place).filter(|entry| entry.image.id == *id).map(Arc::as_ref)
    }
}

impl ImageEntry {
    /// The key of its image.
    pub fn key(&self) -> ImageKey {
        self.image.key()
    }
}

/// An image that was handed to somebody, to start a container from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOut {
    /// Which.
    pub key: ImageKey,
    /// `NAMESPACE/POD`, where it was for a pod.
    pub user: Option<String>,
    /// Compressed bytes that were fetched for it and how long that took, where it was pulled.
    pub pulled: Option<(ByteSize, Duration)>,
}

/// Why the inventory could not be taken or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InventoryError {
    /// The runtime did not list images or pods.
    #[error(transparent)]
    List(RuntimeError),
    /// It did not tell the mounts of a container. The kubelet's text, so the cause is in it.
    #[error("get container status: {}", .0.chain())]
    Mounts(RuntimeError),
    /// It did not report the image of a sandbox, or what new sandboxes are started from.
    #[error("get sandbox image: {}", .0.chain())]
    Sandboxes(RuntimeError),
    /// A file could not be read or written.
    #[error("could not keep the inventory in `{}`", path.display())]
    File {
        /// The directory of the file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The pattern pins nothing.
    #[error("cannot pin `{pattern}`")]
    Pin {
        /// As given.
        pattern: String,
        /// What is wrong with it.
        #[source]
        source: PinError,
    },
}

/// What used an image at the last pass and is not listed any more.
enum Missing {
    Container(String),
    Sandbox(String),
}

impl Inventory {
    /// An inventory of what this runtime holds, remembering in `state_dir`; without one it forgets on restart.
    ///
    /// A damaged file is set aside as `NAME.corrupt-SECONDS` and logged.
    ///
    /// # Errors
    /// When the directory cannot be made or its files not be read at all.
    pub fn open(runtime: RuntimeManager, state_dir: Option<&Path>) -> Result<Self, InventoryError> {
        let open =
            |path: &Path| StateDir::open(path).map_err(|source| InventoryError::File { path: path.to_owned(), source });
        Self::with_state(runtime, state_dir.map(open).transpose()?)
    }

    /// Takes up what is remembered in a directory that cannot be written: what comes is not kept, and no pin changes.
    ///
    /// # Errors
    /// When a file is there and cannot be read.
    pub fn open_read_only(runtime: RuntimeManager, state_dir: &Path) -> Result<Self, InventoryError> {
        Self::with_state(runtime, Some(StateDir::open_read_only(state_dir)))
    }

    fn with_state(runtime: RuntimeManager, directory: Option<StateDir>) -> Result<Self, InventoryError> {
        let mut state = InventoryState::default();
        let lease_file = LeaseFile::of(directory.as_ref());
        let mut ledger = None;
        if let Some(opened) = &directory {
            let failed = |source| InventoryError::File { path: opened.path().to_owned(), source };
            let (writer, content) = Writer::open(opened.clone()).map_err(failed)?;
            state.restore(content);
            state.pins = parse_patterns(opened.read_pins().map_err(failed)?);
            ledger = Some(Arc::new(Mutex::new(writer)));
        }
        Ok(Self {
            runtime,
            directory,
            state: Arc::new(Mutex::new(state)),
            ledger,
            pass: tokio::sync::Mutex::new(0),
            passes_begun: AtomicU64::new(0),
            cache: ImageCache::default(),
            lease_file,
            removals: tokio::sync::Notify::new(),
        })
    }

    /// Asks the runtime once for images, pods and mounted image volumes, and brings everything up to it.
    ///
    /// Whoever asks while a pass runs waits for the next one, and all who wait share it: an answer is never older than
    /// its question. Dropping the future leaves the inventory as it was. A failed pass changes nothing.
    pub async fn refresh(&self, now: SystemTime) -> Result<Arc<Snapshot>, InventoryError> {
        // From before the wait for another pass, so that a time handed in long ago does not pass for now.
        let began = Instant::now();
        let asked = self.passes_begun.load(Ordering::SeqCst);
        // Held over the pass on purpose: it is the queue in which askers wait to share the next pass.
        let mut succeeded = self.pass.lock().await;
        if *succeeded > asked
            && let Some(snapshot) = self.snapshot()
        {
            return Ok(snapshot);
        }
        let number = self.passes_begun.fetch_add(1, Ordering::SeqCst) + 1;
        let survey = self.survey().await?;
        self.reload_default_sandbox_images().await?;
        self.reload_pins().await;
        self.reload_leases(now + began.elapsed()).await;
        let snapshot = self.lock().apply(survey, now, now + began.elapsed());
        *succeeded = number;
        drop(succeeded);
        self.flush_if_due().await;
        Ok(snapshot)
    }

    /// What the last pass found, without asking anybody.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.lock().snapshot.clone()
    }

    /// Notes that somebody has just asked for this image and may start a container from it: that counts as use.
    pub fn touch(&self, key: &ImageKey, now: SystemTime) {
        self.hand_out(&HandedOut { key: key.clone(), user: None, pulled: None }, now);
    }

    /// Notes that somebody was handed an image, for whom, and what it cost to fetch: that counts as use.
    pub fn hand_out(&self, handed: &HandedOut, now: SystemTime) {
        let mut state = self.lock();
        let lease = state.touches.entry(handed.key.clone()).or_insert(now);
        *lease = now.max(*lease);
        let at = state.clock.now(now);
        state.seen_at = state.seen_at.max(Some(at));
        if let Some(record) = state.records.get_mut(&handed.key) {
            record.last_used = record.last_used.max(Some(at));
        }
        let cost = |(bytes, duration)| PullCost { bytes, duration, at };
        let reported = UseReport { user: handed.user.clone(), pulled: handed.pulled.map(cost) };
        state.memory.used(&handed.key, reported, at);
        state.dirty = true;
    }

    /// Whether images were handed out that no pass has listed yet.
    pub fn awaits_pass(&self) -> bool {
        self.lock().memory.awaits_pass()
    }

    /// Lists images before pods: an image that a new container uses is then at worst not listed yet.
    async fn survey(&self) -> Result<Survey, InventoryError> {
        let images = self.runtime.list(None).await.map_err(InventoryError::List)?;
        let pods = self.runtime.pods().await.map_err(InventoryError::List)?;
        let mounts = self.mounts(&pods).await?;
        let sandboxes = self.sandbox_images(&pods).await?;
        let missing_are_gone = self.are_missing_gone(&mounts, &sandboxes).await;
        Ok(Survey { images, pods, mounts, sandboxes, missing_are_gone })
    }

    /// Whether the runtime says of each container and sandbox missing from its lists, asked for it alone, that it is gone.
    ///
    /// Not asked where no container is listed at all: who has forgotten all of them would say so of each.
    async fn are_missing_gone(&self, listed: &BTreeMap<String, Vec<String>>, sandboxes: &SandboxImages) -> bool {
        let missing: Vec<Missing> = {
            let state = self.lock();
            // After a start nobody knows which containers there were.
            if listed.is_empty() || state.mounts.is_empty() {
                return false;
            }
            let containers =
                state.mounts.keys().filter(|id| !listed.contains_key(*id)).cloned().map(Missing::Container);
            let missing = containers.chain(state.sandboxes.missing(sandboxes).map(Missing::Sandbox));
            missing.take(MISSING_ASKED_MAX + 1).collect()
        };
        if missing.len() > MISSING_ASKED_MAX {
            return false;
        }
        let is_gone = |missing| async move {
            match missing {
                Missing::Container(id) => self.runtime.is_container_gone(&id).await,
                Missing::Sandbox(id) => Ok(self.runtime.sandbox_image(&id).await? == SandboxImage::Gone),
            }
        };
        let mut answers = stream::iter(missing).map(is_gone).buffer_unordered(STATUS_CALLS_MAX);
        while let Some(answer) = answers.next().await {
            if !answer.unwrap_or(false) {
                return false;
            }
        }
        true
    }

    /// The images mounted into containers, asking only for containers not seen before.
    async fn mounts(&self, pods: &[Pod]) -> Result<BTreeMap<String, Vec<String>>, InventoryError> {
        let (mut mounts, unknown): (BTreeMap<_, _>, Vec<String>) = {
            let known = &self.lock().mounts;
            let ids = || pods.iter().flat_map(|pod| &pod.containers).map(|container| &container.id);
            let seen = ids().filter_map(|id| known.get(id).map(|mounted| (id.clone(), mounted.clone())));
            (seen.collect(), ids().filter(|id| !known.contains_key(*id)).cloned().collect())
        };
        let asked: Vec<(String, Vec<String>)> = stream::iter(unknown)
            .map(|id| async move {
                match self.runtime.mounted_images(&id).await {
                    Ok(mounted) => Ok((id, mounted)),
                    // A container that went meanwhile holds nothing; a runtime without the call mounts no images.
                    Err(error)
                        if matches!(error.kind(), RuntimeErrorKind::NotFound | RuntimeErrorKind::Unsupported) =>
                    {
                        Ok((id, Vec::new()))
                    }
                    Err(error) => Err(InventoryError::Mounts(error)),
                }
            })
            .buffer_unordered(STATUS_CALLS_MAX)
            .try_collect()
            .await?;
        mounts.extend(asked);
        Ok(mounts)
    }

    fn lock(&self) -> MutexGuard<'_, InventoryState> {
        // A panic elsewhere leaves at worst an older table behind, which the next pass corrects.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventory").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl InventoryState {
    /// When this image was last asked for. Whoever asks may know the id alone, not the handler.
    fn leased_at(&self, key: &ImageKey) -> Option<SystemTime> {
        if self.touches.is_empty() {
            return None;
        }
        let by_id = ImageKey::new(key.id().clone(), String::new());
        self.touches.get(key).max(self.touches.get(&by_id)).copied()
    }

    fn pinned_by(&self, image: &Image) -> Vec<String> {
        let runtime = image.pinned.then(|| PINNED_BY_RUNTIME.to_owned());
        let pins = self.pins.iter().chain(&self.configured_pins).filter(|pin| pin.matches(image));
        let mut by: Vec<String> = runtime.into_iter().collect();
        if self.sandboxes.defaults().any(|name| name.matches(image)) {
            by.push(PINNED_FOR_SANDBOXES.to_owned());
        }
        for pin in pins {
            // Pinned by command and by configuration is pinned once.
            if by.iter().all(|by| by != pin.text()) {
                by.push(pin.text().to_owned());
            }
        }
        by
    }

    /// Whether a pattern pins it.
    fn is_pinned(&self, image: &Image) -> bool {
        self.pins.iter().chain(&self.configured_pins).chain(self.sandboxes.defaults()).any(|pin| pin.matches(image))
    }

    /// Shows changed pins without waiting for the next pass.
    fn repin(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        let mut snapshot = Snapshot::clone(snapshot);
        for entry in &mut snapshot.entries {
            let pinned_by = self.pinned_by(&entry.image);
            if entry.pinned_by != pinned_by {
                Arc::make_mut(entry).pinned_by = pinned_by;
            }
        }
        self.snapshot = Some(Arc::new(snapshot));
    }

    fn restore(&mut self, content: ledger::Content) {
        let pass = &content.pass;
        self.watch = ObservationWindow {
            since: pass.since.map(files::time),
            last_pass: pass.at.map(files::time),
            containers: pass.containers,
            vanished_at: None,
        };
        self.anchor.clone_from(&pass.anchor);
        self.memory.restore(content);
        self.records = self.memory.records();
    }
}
