//! One pass that finds, dates and caches all images, for everybody who wants to know (`spec/gc.md §3-§5`).
//!
//! Ages and uses survive a restart in the files that `ledger.rs` draws. The files are a memory, not a root: without them
//! every image is new again, which keeps it longer and never loses it.

mod asking;
mod detect;
mod history;
mod leases;
mod ledger;
mod node_status;
mod pins;
mod recheck;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
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

pub(crate) use self::recheck::{Clearance, Standing};
use self::{
    asking::LeaseFile,
    detect::{DetectRules, DetectTimes, Records, Survey, Users, detect},
    leases::Leases,
    ledger::{LedgerFile, LedgerLine, StateDir},
    pins::PATTERNS_MAX,
};
pub use self::{
    asking::{Hold, Removal},
    history::{Origin, PullCost},
    node_status::{ImageCache, NodeImage, node_images, node_status},
    pins::{PinError, PinPattern},
};
use crate::{
    image::{Image, ImageKey},
    runtime::{Pod, RuntimeError, RuntimeErrorKind, RuntimeManager},
};

/// How often a pass writes the ledger at most; what a crash may lose.
const FLUSH_EVERY: Duration = Duration::from_mins(1);
/// How long nobody may have looked before uses could have been missed: a few of the five-minute passes.
const WATCH_GAP_MAX: Duration = Duration::from_hours(1);
/// How long an empty list of containers is doubted after a list with some: longer than a runtime takes to restart.
const VANISHED_DOUBT: Duration = Duration::from_mins(1);
/// How long an image that no pass has seen is remembered as asked for: longer than a pull's commit takes.
const LEASE_UNSEEN_MAX: Duration = Duration::from_mins(15);
/// Container status calls at once; the runtime serves pods meanwhile.
const STATUS_CALLS_MAX: usize = 8;
/// Who pinned an image that the runtime itself asks to keep.
const PINNED_BY_RUNTIME: &str = "runtime";

/// All images of a node: since when they are there, when they were used, who uses or pins them.
pub struct Inventory {
    runtime: RuntimeManager,
    directory: Option<StateDir>,
    state: Mutex<State>,
    /// The number of the last pass that succeeded. Queues the passes; nothing else is done under it.
    pass: tokio::sync::Mutex<u64>,
    passes_begun: AtomicU64,
    /// Keeps an older ledger from being renamed over a newer one.
    writing: Mutex<()>,
    lease_file: LeaseFile,
    /// Told of each removal that ended.
    removals: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct State {
    records: Records,
    snapshot: Option<Arc<Snapshot>>,
    /// When an image was last asked for, by key.
    touches: HashMap<ImageKey, SystemTime>,
    /// Who asked for which image and may start a container from it.
    leases: Leases,
    /// When the first pass found an image unused that was in use before.
    released: BTreeMap<ImageKey, SystemTime>,
    pins: Vec<PinPattern>,
    /// Mounts are fixed when a container is created, so each container is asked once.
    mounts: BTreeMap<String, Vec<String>>,
    watch: Watch,
    /// The ledger on disk is older than this state.
    dirty: bool,
    flushed_at: Option<Instant>,
}

/// How far the observations can be trusted.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// Since when images were watched without a long gap.
    since: Option<SystemTime>,
    last_pass: Option<SystemTime>,
    /// Containers of the last pass.
    containers: usize,
    /// When the last of them was gone all at once.
    vanished_at: Option<SystemTime>,
}

/// What one pass found.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the listings were in.
    pub taken_at: SystemTime,
    /// All images, by key.
    pub entries: Vec<Entry>,
    /// Since when uses are known without a long gap; before that an unused image may only be an unwatched one.
    pub watched_since: SystemTime,
    /// How many containers a runtime listed.
    pub containers: usize,
    /// No container is listed where there were some a moment ago: nobody may conclude that nothing is in use.
    pub containers_vanished: bool,
}

/// An image with what the inventory knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As its store lists it.
    pub image: Image,
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
    /// What its last pull cost, where imagelet made it or was told.
    pub pulled: Option<PullCost>,
    /// How it came to be here.
    pub origin: Origin,
    /// `NAMESPACE/POD/CONTAINER`, `mount DIRECTORY` or `container ID`.
    pub in_use_by: Vec<String>,
    /// Patterns, or `runtime`.
    pub pinned_by: Vec<String>,
}

impl Entry {
    /// The key of its image.
    pub fn key(&self) -> ImageKey {
        self.image.key()
    }
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
        let mut state = State::default();
        let lease_file = LeaseFile::of(directory.as_ref());
        if let Some(opened) = &directory {
            let failed = |source| InventoryError::File { path: opened.path().to_owned(), source };
            state.restore(&opened.read_ledger().map_err(failed)?);
            state.pins = parse_patterns(opened.read_pins().map_err(failed)?);
        }
        Ok(Self {
            runtime,
            directory,
            state: Mutex::new(state),
            pass: tokio::sync::Mutex::new(0),
            passes_begun: AtomicU64::new(0),
            writing: Mutex::new(()),
            lease_file,
            removals: tokio::sync::Notify::new(),
        })
    }

    /// Asks the runtime once for images, pods and mounted image volumes, and brings everything up to it.
    ///
    /// Whoever asks while a pass runs waits for the next one, and all who wait share it: an answer is never older than
    /// its question. Dropping the future leaves the inventory as it was. A failed pass changes nothing.
    pub async fn refresh(&self, now: SystemTime) -> Result<Arc<Snapshot>, InventoryError> {
        let asked = self.passes_begun.load(Ordering::SeqCst);
        // Held over the pass on purpose: it is the queue in which askers wait to share the next pass.
        let mut succeeded = self.pass.lock().await;
        if *succeeded > asked
            && let Some(snapshot) = self.snapshot()
        {
            return Ok(snapshot);
        }
        let number = self.passes_begun.fetch_add(1, Ordering::SeqCst) + 1;
        let began = Instant::now();
        let survey = self.survey().await?;
        self.reload_pins().await;
        self.reload_leases(now + began.elapsed()).await;
        let snapshot = self.lock().absorb(survey, now, now + began.elapsed());
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
        let mut state = self.lock();
        let lease = state.touches.entry(key.clone()).or_insert(now);
        *lease = now.max(*lease);
        if let Some(record) = state.records.get_mut(key) {
            record.last_used = record.last_used.max(Some(now));
        }
        state.dirty = true;
    }

    /// Writes the ledger now. Nothing to do without a state directory or without changes.
    pub fn flush(&self) -> Result<(), InventoryError> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let ledger = {
            let mut state = self.lock();
            if !state.dirty {
                return Ok(());
            }
            state.dirty = false;
            state.flushed_at = Some(Instant::now());
            state.ledger()
        };
        directory.write_ledger(&ledger).map_err(|source| {
            self.lock().dirty = true;
            InventoryError::File { path: directory.path().to_owned(), source }
        })
    }

    /// The patterns pinned by the operator, in the order they were pinned.
    pub fn pins(&self) -> Vec<String> {
        self.lock().pins.iter().map(|pin| pin.text().to_owned()).collect()
    }

    /// The patterns that pin an image, and `runtime` where its runtime does.
    pub fn pins_of(&self, image: &Image) -> Vec<String> {
        self.lock().pinned_by(image)
    }

    /// Marks those that a pattern pins, so that whoever is shown them leaves them alone, too.
    pub fn mark_pinned<'a>(&self, images: impl IntoIterator<Item = &'a mut Image>) {
        let state = self.lock();
        if !state.pins.is_empty() {
            images.into_iter().for_each(|image| image.pinned |= state.pins.iter().any(|pin| pin.matches(image)));
        }
    }

    /// Pins what the pattern names: a reference, 12 or more digits of an id or digest, or a glob with `*`.
    ///
    /// False when it was pinned before. On disk when this returns.
    pub fn pin(&self, pattern: &str) -> Result<bool, InventoryError> {
        let failed = |source| InventoryError::Pin { pattern: pattern.to_owned(), source };
        let parsed: PinPattern = pattern.parse().map_err(failed)?;
        if self.lock().pins.len() >= PATTERNS_MAX {
            return Err(failed(PinError::TooMuch));
        }
        self.change_pins(move |pins| {
            let is_new = pins.iter().all(|pin| pin.text() != parsed.text());
            if is_new {
                pins.push(parsed);
            }
            is_new
        })
    }

    /// Takes a pattern back, spelled as it was pinned. False when it was not pinned. On disk when this returns.
    pub fn unpin(&self, pattern: &str) -> Result<bool, InventoryError> {
        self.change_pins(|pins| {
            let before = pins.len();
            pins.retain(|pin| pin.text() != pattern.trim());
            pins.len() < before
        })
    }

    fn change_pins(&self, change: impl FnOnce(&mut Vec<PinPattern>) -> bool) -> Result<bool, InventoryError> {
        let Some(directory) = &self.directory else {
            let mut state = self.lock();
            let changed = change(&mut state.pins);
            state.repin();
            return Ok(changed);
        };
        let failed = |source| InventoryError::File { path: directory.path().to_owned(), source };
        // Another process may have pinned meanwhile: what counts is what is on disk, under the lock.
        let lock = directory.lock().map_err(failed)?;
        let mut pins = parse_patterns(directory.read_pins().map_err(failed)?);
        let changed = change(&mut pins);
        if changed {
            let patterns = pins.iter().map(|pin| pin.text().to_owned()).collect();
            directory.write_pins(patterns, &lock).map_err(failed)?;
        }
        let mut state = self.lock();
        state.pins = pins;
        state.repin();
        Ok(changed)
    }

    /// Takes up what another process has pinned; what is known stays when the file cannot be read.
    async fn reload_pins(&self) {
        let Some(directory) = self.directory.clone() else { return };
        let path = directory.path().to_owned();
        let read = tokio::task::spawn_blocking(move || directory.read_pins()).await;
        match read.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(patterns) => self.lock().pins = parse_patterns(patterns),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "could not read the pins; keeping those known");
            }
        }
    }

    /// Lists images before pods: an image that a new container uses is then at worst not listed yet.
    async fn survey(&self) -> Result<Survey, InventoryError> {
        let images = self.runtime.list(None).await.map_err(InventoryError::List)?;
        let pods = self.runtime.pods().await.map_err(InventoryError::List)?;
        let mounts = self.mounts(&pods).await?;
        Ok(Survey { images, pods, mounts })
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

    async fn flush_if_due(&self) {
        let Some(directory) = self.directory.clone() else { return };
        let ledger = {
            let mut state = self.lock();
            if !state.dirty || state.flushed_at.is_some_and(|flushed| flushed.elapsed() < FLUSH_EVERY) {
                return;
            }
            state.dirty = false;
            state.flushed_at = Some(Instant::now());
            state.ledger()
        };
        let written = tokio::task::spawn_blocking(move || directory.write_ledger(&ledger)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            self.lock().dirty = true;
            tracing::warn!(%error, "could not write the inventory's ledger; trying again with a later pass");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves at worst an older table behind, which the next pass corrects.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventory").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl State {
    /// Takes a survey in; `asked_at` and `now` are the two clocks of `spec/gc.md §5`.
    fn absorb(&mut self, survey: Survey, asked_at: SystemTime, now: SystemTime) -> Arc<Snapshot> {
        self.clamp(now);
        let containers = survey.runtime_containers();
        let used_before = self.used_before();
        self.watch.advance(containers, now);
        let before = std::mem::take(&mut self.records);
        self.records.clone_from(&before);
        let times = DetectTimes { detected_at: Some(asked_at), now };
        let users = detect(&mut self.records, &survey, DetectRules::INVENTORY, times);
        let leased: Vec<_> = self.records.keys().filter_map(|key| Some((key.clone(), self.leased_at(key)?))).collect();
        for (key, leased_at) in leased {
            if let Some(record) = self.records.get_mut(&key) {
                record.last_used = record.last_used.max(Some(leased_at));
            }
        }
        let records = &self.records;
        self.touches.retain(|leased, leased_at| {
            records.keys().any(|key| key.id() == leased.id())
                || now.duration_since(*leased_at).unwrap_or_default() < LEASE_UNSEEN_MAX
        });
        self.dirty |= *records != before || containers > 0;
        self.serve_leases(&survey);
        self.note_released(used_before, &users, now);
        let snapshot = Arc::new(self.draw(&survey.images, &users, now));
        self.mounts = survey.mounts;
        self.snapshot = Some(Arc::clone(&snapshot));
        snapshot
    }

    /// The clock was set back, or the ledger comes from one that ran ahead: nothing happened in the future.
    fn clamp(&mut self, now: SystemTime) {
        for record in self.records.values_mut() {
            record.first_seen = record.first_seen.map(|seen| seen.min(now));
            record.last_used = record.last_used.map(|used| used.min(now));
        }
        for leased_at in self.touches.values_mut() {
            *leased_at = now.min(*leased_at);
        }
        for released_at in self.released.values_mut() {
            *released_at = now.min(*released_at);
        }
        self.leases.tidy(now);
        self.watch.since = self.watch.since.map(|since| since.min(now));
        self.watch.vanished_at = self.watch.vanished_at.map(|vanished| vanished.min(now));
    }

    fn draw(&self, images: &[Image], users: &Users, now: SystemTime) -> Snapshot {
        let by_key: BTreeMap<ImageKey, &Image> = images.iter().map(|image| (image.key(), image)).collect();
        let entries = by_key.into_iter().map(|(key, image)| {
            let record = self.records.get(&key);
            Entry {
                image: image.clone(),
                first_seen: record.and_then(|record| record.first_seen).unwrap_or(now),
                last_used: record.and_then(|record| record.last_used),
                leased_at: self.leased_at(&key),
                leased_until: self.leases.until(key.id(), now),
                released_at: self.released.get(&key).copied(),
                use_count: 0,
                last_user: None,
                pulled: None,
                origin: Origin::default(),
                in_use_by: self.users_of(&key, &users),
                pinned_by: self.pinned_by(image),
            }
        });
        Snapshot {
            taken_at: now,
            entries: entries.collect(),
            watched_since: self.watch.since.unwrap_or(now),
            containers: self.watch.containers,
            containers_vanished: self.watch.vanished_at.is_some(),
        }
    }

    /// When this image was last asked for. Whoever asks may know the id alone, not the handler.
    fn leased_at(&self, key: &ImageKey) -> Option<SystemTime> {
        let by_id = ImageKey::new(key.id().clone(), String::new());
        self.touches.get(key).max(self.touches.get(&by_id)).copied()
    }

    fn pinned_by(&self, image: &Image) -> Vec<String> {
        let runtime = image.pinned.then(|| PINNED_BY_RUNTIME.to_owned());
        let patterns = self.pins.iter().filter(|pin| pin.matches(image)).map(|pin| pin.text().to_owned());
        runtime.into_iter().chain(patterns).collect()
    }

    /// Shows changed pins without waiting for the next pass.
    fn repin(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        let mut snapshot = Snapshot::clone(snapshot);
        for entry in &mut snapshot.entries {
            entry.pinned_by = self.pinned_by(&entry.image);
        }
        self.snapshot = Some(Arc::new(snapshot));
    }

    fn restore(&mut self, ledger: &LedgerFile) {
        self.watch = Watch {
            since: ledger.observed_since.map(ledger::time),
            last_pass: ledger.last_pass.map(ledger::time),
            containers: ledger.containers,
            vanished_at: None,
        };
        self.records = ledger
            .images
            .iter()
            .map(|(key, line)| {
                let key = ImageKey::parse(key);
                let record = detect::Record {
                    first_seen: line.first_seen.map(ledger::time),
                    last_used: line.last_used.map(ledger::time),
                    handler: key.handler().to_owned(),
                    size: crate::image::ByteSize::ZERO,
                    pinned: false,
                };
                (key, record)
            })
            .collect();
    }

    fn ledger(&self) -> LedgerFile {
        let images = self.records.iter().map(|(key, record)| {
            let line = LedgerLine {
                first_seen: record.first_seen.map(ledger::nanos),
                last_used: record.last_used.map(ledger::nanos),
            };
            (key.to_string(), line)
        });
        LedgerFile {
            observed_since: self.watch.since.map(ledger::nanos),
            last_pass: self.watch.last_pass.map(ledger::nanos),
            containers: self.watch.containers,
            images: images.collect(),
            ..LedgerFile::default()
        }
    }
}

impl Watch {
    fn advance(&mut self, containers: usize, now: SystemTime) {
        let gap = self.last_pass.map(|last| now.duration_since(last).unwrap_or_default());
        if gap.is_none_or(|gap| gap > WATCH_GAP_MAX) || self.since.is_none() {
            self.since = Some(now);
        }
        self.vanished_at = match self.vanished_at {
            _ if containers > 0 => None,
            None if self.containers > 0 => Some(now),
            Some(vanished) if now.duration_since(vanished).unwrap_or_default() >= VANISHED_DOUBT => None,
            other => other,
        };
        self.last_pass = Some(now);
        self.containers = containers;
    }
}

/// A pattern that a person wrote into the file and that is none is logged and passed over.
fn parse_patterns(texts: Vec<String>) -> Vec<PinPattern> {
    let parse = |text: String| match text.parse() {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            tracing::warn!(pattern = %text, %error, "passing over a pin that is none");
            None
        }
    };
    texts.into_iter().take(PATTERNS_MAX).filter_map(parse).collect()
}
