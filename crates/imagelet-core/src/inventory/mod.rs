//! The inventory: one pass finds, dates and caches all images for every reader (`docs/spec/gc.md §3-§5`).
//!
//! The ledger (`ledger/mod.rs`) preserves ages and uses over a restart. Without the ledger, every image counts as new
//! after a restart, so images stay longer than needed.

mod apply_survey;
mod clock_step;
mod detect;
mod ledger;
mod node_status;
mod observation_window;
mod pins;
mod reason;
mod reference_match;
mod removal_check;
mod sandboxes;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod usage_history;
mod waiting_pods;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use self::ledger::rewritten_ledger;
#[cfg(test)]
pub(crate) use self::testing::{ModelDisk, step};
use self::{
    clock_step::Clocks,
    detect::Survey,
    ledger::{Ledger, LedgerFile},
    node_status::ImageCache,
    observation_window::ObservationWindow,
    pins::{change::parse_patterns, set_pins},
    sandboxes::{PINNED_FOR_SANDBOXES, SandboxImages, Sandboxes},
    usage_history::UsageHistory,
    waiting_pods::PodLeases,
};
pub use self::{
    node_status::{NodeImage, node_images},
    observation_window::{VANISHED_WAIT, WATCH_GAP_MAX},
    pins::{PinError, PinPattern, set_pins::OwnedPin},
    reason::{Idle, Reason},
    usage_history::image_usage::{ImageOrigin, ImageUsage, PullCost, UseHistory, UseReport, UseTimes},
    waiting_pods::WaitingPod,
};
use crate::{
    durable::{MachineDisk, StateDir},
    error::{RuntimeError, RuntimeErrorKind},
    image::{Image, ImageKey},
    leases::LeaseService,
    lock::locked,
    ports::{Pod, RuntimeManager, SandboxImage},
};

/// Minimum time between two ledger writes, except for an image's first container. A crash loses at most this time.
const FLUSH_EVERY: Duration = Duration::from_secs(45);
/// Up to this many containers that are missing from a list are queried by id. For more, a second pass decides.
const MISSING_ASKED_MAX: usize = 256;
/// Limit of concurrent status calls to the runtime, which also needs capacity for pods.
const STATUS_CALLS_MAX: usize = 8;
const PINNED_BY_RUNTIME: &str = "runtime";

#[derive(Debug)]
pub struct Inventory {
    runtime: RuntimeManager,
    directory: Option<StateDir>,
    state: Arc<Mutex<InventoryState>>,
    ledger: Option<Arc<Mutex<LedgerFile>>>,
    /// The number of the last successful pass. The lock queues passes and protects no other data.
    pass: tokio::sync::Mutex<u64>,
    passes_begun: AtomicU64,
    cache: ImageCache,
    /// Lock order: first the state, then the leases.
    pub leases: LeaseService,
}

#[derive(Debug, Default)]
struct InventoryState {
    memory: UsageHistory,
    /// The time of the last pass or request. If the wall clock is behind this time, it was set back.
    seen_at: Option<SystemTime>,
    clocks: Option<Clocks>,
    passed_at: Option<Instant>,
    snapshot: Option<Arc<Snapshot>>,
    pod_leases: PodLeases,
    pins: Vec<PinPattern>,
    configured_pins: Vec<PinPattern>,
    set_pins: Vec<OwnedPin>,
    /// Container id → mounted images. The mounts of a container never change, so each container is queried once.
    mounts: BTreeMap<String, Vec<String>>,
    sandboxes: Sandboxes,
    watch: ObservationWindow,
    dirty: bool,
    flushed_at: Option<Instant>,
}

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub taken_at: SystemTime,
    /// All images, sorted by key.
    pub entries: Vec<Arc<ImageEntry>>,
    /// Since this time, no two passes had a long gap between them. Earlier uses may be missing.
    pub watched_since: SystemTime,
    pub containers: usize,
    /// Whether no container is listed although some were listed before. If so, the users of images are unknown.
    pub containers_vanished: bool,
}

impl Snapshot {
    /// Whether containers of the previous pass are missing. A pass after [`VANISHED_WAIT`] decides about their images.
    pub fn misses_containers(&self) -> bool {
        self.containers_vanished || self.entries.iter().any(|entry| entry.usage.times.released_at.is_some())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageEntry {
    pub image: Arc<Image>,
    pub usage: ImageUsage,
    pub leased_until: Option<SystemTime>,
    /// `NAMESPACE/POD` of the pods that are bound to the node and have no container of the image yet.
    pub awaited_by: Vec<String>,
    /// Patterns, `runtime`, `sandbox image`, `ImageSet NAMESPACE/NAME` or `ClusterImageSet NAME`.
    pub pinned_by: Vec<String>,
}

impl ImageEntry {
    pub fn key(&self) -> ImageKey {
        self.image.key()
    }

    pub fn first_seen(&self) -> SystemTime {
        self.usage.times.first_seen.unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InventoryError {
    #[error(transparent)]
    List(RuntimeError),
    /// The runtime did not report the mounts of a container. The text is the kubelet's and includes the cause.
    #[error("get container status: {}", .0.chain())]
    Mounts(RuntimeError),
    #[error("get sandbox image: {}", .0.chain())]
    Sandboxes(RuntimeError),
    #[error("the runtime lists no containers where it listed some before; removed nothing on that answer")]
    ContainersVanished,
    #[error("could not keep the inventory in `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot pin `{pattern}`")]
    Pin {
        pattern: String,
        #[source]
        source: PinError,
    },
}

impl Inventory {
    /// `state_dir` has the files. `None`: stores nothing. A damaged file is logged and renamed `NAME.corrupt-SECONDS`.
    pub fn open(runtime: RuntimeManager, state_dir: Option<&Path>) -> Result<Self, InventoryError> {
        let open =
            |path: &Path| StateDir::open(path).map_err(|source| InventoryError::File { path: path.to_owned(), source });
        Self::with_state(runtime, state_dir.map(open).transpose()?)
    }

    /// Opens the inventory as [`Self::open`], but stores no change. Pins cannot change.
    pub fn open_read_only(runtime: RuntimeManager, state_dir: &Path) -> Result<Self, InventoryError> {
        Self::with_state(runtime, Some(StateDir::open_read_only(state_dir)))
    }

    fn with_state(runtime: RuntimeManager, directory: Option<StateDir>) -> Result<Self, InventoryError> {
        let mut state = InventoryState { clocks: Some(Clocks::now()), ..InventoryState::default() };
        let leases = LeaseService::new(directory.clone(), Arc::new(MachineDisk));
        let mut ledger = None;
        if let Some(opened) = &directory {
            let failed = |source| InventoryError::File { path: opened.path.clone(), source };
            let (file, content) = LedgerFile::open(opened.clone()).map_err(failed)?;
            state.restore(content);
            state.pins = parse_patterns(opened.read_pins().map_err(failed)?);
            state.set_pins = set_pins::read(opened).map_err(failed)?;
            ledger = Some(Arc::new(Mutex::new(file)));
        }
        Ok(Self {
            runtime,
            directory,
            state: Arc::new(Mutex::new(state)),
            ledger,
            pass: tokio::sync::Mutex::new(0),
            passes_begun: AtomicU64::new(0),
            cache: ImageCache::default(),
            leases,
        })
    }

    /// Lists images, pods and mounted volumes, and updates the inventory. Calls during a pass share the next pass, so a
    /// result is never older than its request. A failed pass or a dropped future leaves the snapshot unchanged.
    pub async fn refresh(&self, now: SystemTime) -> Result<Arc<Snapshot>, InventoryError> {
        // The clock starts before the wait for another pass, so that the wait is added to `now`.
        let began = Instant::now();
        let asked = self.passes_begun.load(Ordering::SeqCst);
        let mut succeeded = self.pass.lock().await;
        if *succeeded > asked
            && let Some(snapshot) = self.snapshot()
        {
            return Ok(snapshot);
        }
        let number = self.passes_begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.lock().follow(Clocks::now(), now + began.elapsed(), &mut self.leases.lock());
        let survey = self.survey().await?;
        self.reload_default_sandbox_images().await?;
        self.reload_pins().await;
        self.leases.reload(now + began.elapsed()).await;
        let former = self.snapshot();
        let snapshot = self.lock().apply(survey, now, now + began.elapsed(), &mut self.leases.lock());
        // Freeing the memory of a large snapshot takes time, so another thread frees it. Nothing waits for this thread.
        tokio::task::spawn_blocking(move || drop(former));
        *succeeded = number;
        drop(succeeded);
        self.flush_if_due().await;
        Ok(snapshot)
    }

    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.lock().snapshot.clone()
    }

    pub fn touch(&self, key: &ImageKey, now: SystemTime) {
        self.record(key, UseReport::default(), 1, now);
    }

    /// Records that a caller got the image for this number of uses. A prefetch does not count as a use.
    pub fn record(&self, key: &ImageKey, mut report: UseReport, uses: u64, now: SystemTime) {
        let mut state = self.lock();
        let now = state.time(now);
        state.seen_at = state.seen_at.max(Some(now));
        report.pulled.iter_mut().for_each(|cost| cost.at = now);
        state.memory.used(key, report, uses, now);
        state.dirty = true;
    }

    /// Leases an image as `LeaseService::leased`. Counts a use only without a pod: the use of a pod is counted before.
    pub async fn leased<T, E, F>(
        &self,
        pod: &str,
        now: SystemTime,
        ask: impl FnMut() -> F,
        key: impl Fn(&T) -> Option<ImageKey>,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let granted = |key, at| {
            self.record(&key, UseReport::default(), u64::from(pod.is_empty()), at);
        };
        self.leases.leased(pod, now, ask, key, granted).await
    }

    /// Whether an image was returned to a caller and no pass has listed it yet.
    pub fn awaits_pass(&self) -> bool {
        !self.lock().memory.pending.is_empty()
    }

    /// Images are listed before pods: at worst, the image of a new container is not listed yet.
    async fn survey(&self) -> Result<Survey, InventoryError> {
        let images = self.runtime.list(None).await.map_err(InventoryError::List)?;
        let pods = self.runtime.pods().await.map_err(InventoryError::List)?;
        let mounts = self.mounts(&pods).await?;
        let sandboxes = self.sandbox_images(&pods).await?;
        let missing_are_gone = self.are_missing_gone(&mounts, &sandboxes).await;
        Ok(Survey { images, pods, mounts, sandboxes, missing_are_gone })
    }

    /// Whether the runtime confirms by id that all containers and sandboxes missing from its lists no longer exist.
    /// Returns false if no container is listed, because a runtime that lost its state would confirm everything.
    async fn are_missing_gone(&self, listed: &BTreeMap<String, Vec<String>>, sandboxes: &SandboxImages) -> bool {
        let (containers, sandboxes): (Vec<String>, Vec<String>) = {
            let state = self.lock();
            // After a start of this process, the earlier containers are unknown.
            if listed.is_empty() || state.mounts.is_empty() {
                return false;
            }
            let missing = state.mounts.keys().filter(|id| !listed.contains_key(*id));
            let with_image = state.sandboxes.images.iter().filter(|(_, image)| image.is_some()).map(|(id, _)| id);
            (missing.cloned().collect(), with_image.filter(|id| !sandboxes.contains_key(*id)).cloned().collect())
        };
        if containers.len() + sandboxes.len() > MISSING_ASKED_MAX {
            return false;
        }
        let container = |id: String| async move { self.runtime.is_container_gone(&id).await.unwrap_or(false) };
        let sandbox =
            |id: String| async move { matches!(self.runtime.sandbox_image(&id).await, Ok(SandboxImage::Gone)) };
        let containers = stream::iter(containers).map(container).buffer_unordered(STATUS_CALLS_MAX);
        let sandboxes = stream::iter(sandboxes).map(sandbox).buffer_unordered(STATUS_CALLS_MAX);
        containers.chain(sandboxes).all(|is_gone| async move { is_gone }).await
    }

    async fn mounts(&self, pods: &[Pod]) -> Result<BTreeMap<String, Vec<String>>, InventoryError> {
        let ids = pods.iter().flat_map(|pod| &pod.containers).map(|container| &container.id);
        let (mut mounts, unknown) = split_known(ids, &self.lock().mounts);
        let ask = |id: String| async move {
            match self.runtime.mounted_images(&id).await {
                Ok(mounted) => Ok((id, mounted)),
                // The container was removed in the meantime, or the runtime does not support mounted images.
                Err(error) if matches!(error.kind(), RuntimeErrorKind::NotFound | RuntimeErrorKind::Unsupported) => {
                    Ok((id, Vec::new()))
                }
                Err(error) => Err(InventoryError::Mounts(error)),
            }
        };
        let asked = stream::iter(unknown).map(ask).buffer_unordered(STATUS_CALLS_MAX);
        mounts.extend(asked.try_collect::<Vec<_>>().await?);
        Ok(mounts)
    }

    fn lock(&self) -> MutexGuard<'_, InventoryState> {
        // A panic under this lock leaves at worst outdated entries, which the next pass corrects.
        locked(&self.state)
    }
}

fn split_known<'a, T: Clone>(
    ids: impl Iterator<Item = &'a String>,
    known: &BTreeMap<String, T>,
) -> (BTreeMap<String, T>, Vec<String>) {
    let (seen, unknown): (Vec<_>, Vec<_>) = ids.cloned().partition(|id| known.contains_key(id));
    let known = seen.into_iter().filter_map(|id| known.get(&id).cloned().map(|found| (id, found)));
    (known.collect(), unknown)
}

impl InventoryState {
    fn pinned_by(&self, image: &Image) -> Vec<String> {
        let runtime = image.pinned.then_some(PINNED_BY_RUNTIME);
        let sandboxes = self.sandboxes.defaults().any(|name| name.matches(image)).then_some(PINNED_FOR_SANDBOXES);
        let pins = self.pins.iter().chain(&self.configured_pins).filter(|pin| pin.matches(image));
        let sets = self.set_pins.iter().filter(|pin| pin.pattern.matches(image)).map(|pin| pin.owner.as_str());
        let mut by: Vec<String> = Vec::new();
        for name in runtime.into_iter().chain(sandboxes).chain(pins.map(PinPattern::text)).chain(sets) {
            if by.iter().all(|by| by != name) {
                by.push(name.to_owned());
            }
        }
        by
    }

    fn is_pinned(&self, image: &Image) -> bool {
        !self.pinned_by(image).is_empty() || !self.pod_leases.pods_of(image).is_empty()
    }

    fn repin(&mut self) {
        let Some(mut snapshot) = self.snapshot.take() else { return };
        for entry in &mut Arc::make_mut(&mut snapshot).entries {
            let pinned_by = self.pinned_by(&entry.image);
            if entry.pinned_by != pinned_by {
                Arc::make_mut(entry).pinned_by = pinned_by;
            }
        }
        self.snapshot = Some(snapshot);
    }

    fn restore(&mut self, ledger: Ledger) {
        self.watch = ledger.window;
        self.seen_at = self.watch.last_pass;
        if self.watch.vanished_at.take().is_some() {
            self.watch.containers = self.watch.containers.max(1);
        }
        self.memory.restore(ledger);
    }
}
