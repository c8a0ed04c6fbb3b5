//! What was pulled, for whom.
//!
//! ```text
//! ROOT/image_manager/pulling/sha256-…   one file per pull that was begun: ImagePullIntent
//! ROOT/image_manager/pulled/sha256-…    one file per image that was pulled: ImagePulledRecord
//! ```
//!
//! Folders, file names and contents are the kubelet's own, so that a node can be taken over in place, and given back. A
//! file is named by the SHA-256 of what it is about, and written beside, synced and renamed. All files may vanish: an
//! image without a record counts as preloaded. One that cannot be read is kept, and lets no client in. One process owns the
//! folder; memory mirrors it, so that asking reads no disk.

mod cached_dir;
mod file;
mod gauges;
mod intent_match;
mod kubelet_import;
mod maintenance;
mod merge;
mod settings;
mod verify;

use std::{
    collections::HashMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

pub(crate) use cached_dir::create_folder;
#[cfg(test)]
pub(crate) use cached_dir::faults;
use cached_dir::{CachedDir, Folder, Unreadable};
use file::PullIntent;
pub(crate) use file::{ImageAccess, PulledRecord, RecordedSecret, RecordedServiceAccount};
use gauges::Gauges;
use intent_match::PullNames;
pub use kubelet_import::{KubeletEvidence, KubeletRecordList, KubeletRecords};
pub use maintenance::{PruneMark, Recovered};
use maintenance::{Touched, Unrecorded};
pub use settings::{Guard, RecordsSettings};
pub(crate) use verify::{AccessProof, CheckResult, Verdict};
pub use verify::{Allowlist, AllowlistError, VerificationPolicy};

use crate::{
    image::{Image, ImageId, ReferenceError, trim_tag_and_digest},
    metrics::Metrics,
};

/// Most images that could not be recorded and are remembered each; beyond that, all are taken for one.
const UNRECORDED_MAX: usize = 1024;

/// What was pulled for which client, and the access that follows from it.
pub struct PullRecords {
    /// `None`: nothing is recorded, and everybody may use everything.
    settings: Option<RecordsSettings>,
    intents: CachedDir<PullIntent>,
    records: CachedDir<PulledRecord>,
    /// Held for moments, and never while a folder is asked.
    state: Mutex<RecordsState>,
    gauges: Gauges,
}

/// What the disk does not have.
#[derive(Debug, Default)]
struct RecordsState {
    /// Spelling → how many pulls of this process stand behind its intent.
    running: HashMap<String, usize>,
    /// Intents without a running pull, whose result is unknown → how often it was looked for.
    left: HashMap<String, u8>,
    /// What was pulled and is not recorded.
    unrecorded: HashMap<ImageId, Unrecorded>,
    /// There was more of that than could be remembered.
    unrecorded_overflow: bool,
    touched: Touched,
}

/// What is recorded about an image that is here. Looked up before [`PullRecords::judge`].
#[derive(Clone, Debug)]
pub(crate) enum Evidence {
    /// The image has no id, so it is not here.
    Absent,
    Unreadable,
    Record(Arc<PulledRecord>),
    /// No record; a pull that was begun may have brought it, or none was.
    Begun(bool),
}

impl Evidence {
    /// Whether a service account may open the image: it takes a credential provider to know a client's.
    pub(crate) fn names_service_accounts(&self) -> bool {
        match self {
            Evidence::Record(record) => {
                record.mapping.values().any(|access| !access.kubernetes_service_accounts.is_empty())
            }
            _ => false,
        }
    }
}

/// The records could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    /// The disk said no.
    #[error("could not {action} the pull record of `{subject}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        subject: String,
        /// Why not.
        source: io::Error,
    },
    /// The image has no name to record it under.
    #[error("`{image}` cannot be recorded")]
    Name {
        /// The image.
        image: String,
        /// What is wrong with it.
        source: ReferenceError,
    },
}

impl PullRecords {
    /// Opens or makes the folders below a data root, and reads them.
    pub fn open(root: &Path, settings: impl Into<RecordsSettings>) -> Result<Self, RecordsError> {
        Self::from_folders(root, settings.into(), Folder::open)
    }

    /// Reads what is recorded below a data root that takes no writes. What is learnt ends with the process.
    ///
    /// # Errors
    /// When a folder is there and cannot be read: without its records everybody might use what is here.
    pub fn open_read_only(root: &Path, settings: impl Into<RecordsSettings>) -> Result<Self, RecordsError> {
        Self::from_folders(root, settings.into(), Folder::open_read_only)
    }

    fn from_folders(
        root: &Path,
        settings: RecordsSettings,
        open: impl Fn(PathBuf) -> io::Result<Folder>,
    ) -> Result<Self, RecordsError> {
        let open = |name: &str| open(root.join("image_manager").join(name));
        let failed = |name| move |source| failed("read", name, source);
        Ok(Self {
            intents: open("pulling")
                .map(|folder| CachedDir::open(folder, settings.intents_max, settings.stripes))
                .map_err(failed("pulling"))?,
            records: open("pulled")
                .map(|folder| CachedDir::open(folder, settings.records_max, settings.stripes))
                .map_err(failed("pulled"))?,
            settings: Some(settings),
            state: Mutex::default(),
            gauges: Gauges::default(),
        })
    }

    /// Records that end with the process; what was not pulled by it counts as preloaded.
    pub fn in_memory() -> Self {
        Self::in_memory_with(VerificationPolicy::NeverVerifyPreloadedImages)
    }

    /// The same under other settings.
    pub fn in_memory_with(settings: impl Into<RecordsSettings>) -> Self {
        let settings = settings.into();
        Self {
            intents: CachedDir::in_memory(settings.intents_max),
            records: CachedDir::in_memory(settings.records_max),
            settings: Some(settings),
            state: Mutex::default(),
            gauges: Gauges::default(),
        }
    }

    /// None: nothing is recorded, and everybody may use what is here.
    pub fn off() -> Self {
        Self { settings: None, ..Self::in_memory() }
    }

    /// Whether anything is recorded and verified.
    pub fn is_on(&self) -> bool {
        self.settings.is_some()
    }

    /// Whether changes wait for a disk.
    pub(crate) fn is_durable(&self) -> bool {
        self.is_on() && self.records.is_durable()
    }

    /// Does what may wait for a disk off the async threads. Dropped, it is still done to its end.
    pub(crate) async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> T + Send + 'static,
    ) -> T {
        if !self.is_durable() {
            return work(self);
        }
        let records = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&records)).await;
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// How many intents and records there are.
    pub fn counts(&self) -> (usize, usize) {
        (self.intents.count(), self.records.count())
    }

    /// Shows in a program's metrics how many there are, from now on.
    pub(crate) fn export_to(&self, metrics: Arc<Metrics>) {
        self.gauges.attach(metrics);
        self.show();
    }

    /// What is recorded for an image; `None` also for a record that cannot be read.
    #[cfg(test)]
    pub(crate) fn record(&self, id: &ImageId) -> Option<Arc<PulledRecord>> {
        let _turn = self.records.lock(id.as_str());
        self.records.find(id.as_str()).ok().flatten()
    }

    /// Records that an image is about to be pulled. Durable on return.
    pub(crate) fn intend(self: &Arc<Self>, image: &str) -> Result<Intent, RecordsError> {
        let mut intent = Intent { records: Arc::clone(self), image: image.to_owned(), held: false };
        if !self.is_on() {
            return Ok(intent);
        }
        let turn = self.intents.lock(image);
        // One that is there already was left by a pull that may have brought something; this one's end says nothing of it.
        if self.guards_images() && !self.is_running(image) && !matches!(self.intents.find(image), Ok(None)) {
            self.state().left.entry(image.to_owned()).or_default();
        }
        if let Err(source) = self.intents.write(PullIntent::new(image)) {
            // It may be in its place nevertheless, and nothing was begun by it.
            if !self.is_running(image) && !self.state().left.contains_key(image) {
                let _ = self.intents.remove(image);
            }
            return Err(failed("write", image, source));
        }
        *self.state().running.entry(image.to_owned()).or_default() += 1;
        intent.held = true;
        drop(turn);
        self.show();
        Ok(intent)
    }

    /// What is recorded about an image that is here. May wait for a disk; where memory has the record, it is found
    /// without a copy or a read.
    pub(crate) fn look_up(&self, image: &str, found: &Image) -> Evidence {
        let id = found.id.as_str();
        if !self.is_on() {
            return Evidence::Begun(false);
        }
        if id.is_empty() {
            return Evidence::Absent;
        }
        let _turn = self.records.lock(id);
        let known = match self.records.find(id) {
            Ok(Some(record)) => Ok(Evidence::Record(record)),
            Ok(None) if self.is_unrecorded(&found.id) => Ok(Evidence::Begun(true)),
            Ok(None) => self.begun_for(image, found).map(Evidence::Begun),
            Err(error) => Err(error),
        };
        known.unwrap_or_else(|error| {
            tracing::warn!(image, id, %error, "a pull record cannot be read; its image asks for credentials");
            Evidence::Unreadable
        })
    }

    /// Decides whether a client may use an image that is here, by what [`Self::look_up`] found.
    ///
    /// # Errors
    /// What `proof` failed with; it is called only where its answer matters.
    pub(crate) fn judge<P: Into<Arc<AccessProof>>, E>(
        &self,
        image: &str,
        evidence: &Evidence,
        now: SystemTime,
        proof: impl FnOnce() -> Result<P, E>,
    ) -> Result<Option<Verdict>, E> {
        let Some(settings) = &self.settings else { return Ok(None) };
        let (record, begun) = match evidence {
            Evidence::Absent => return Ok(Some(Verdict::ABSENT)),
            Evidence::Unreadable => return Ok(Some(Verdict::UNREADABLE)),
            Evidence::Record(record) if self.is_outdated(record, now) => (None, true),
            Evidence::Record(record) => (Some(&**record), true),
            Evidence::Begun(begun) => (None, *begun),
        };
        verify::judge(&settings.policy, image, record, begun, proof).map(Some)
    }

    /// Adds whose credentials opened an image, creating its record where there is none. Durable on return.
    ///
    /// # Errors
    /// Then the image is remembered as pulled, and lets no client in before this worked.
    pub(crate) fn learn(
        &self,
        image: &str,
        id: &ImageId,
        access: &ImageAccess,
        now: SystemTime,
    ) -> Result<(), RecordsError> {
        if !self.is_on() {
            return Ok(());
        }
        let turn = self.records.lock(id.as_str());
        self.state().touched.touch(id);
        let learned = trim_tag_and_digest(image)
            .map_err(|source| RecordsError::Name { image: image.to_owned(), source })
            .and_then(|name| {
                let known = self.records.find(id.as_str()).ok().flatten();
                let is_new = known.is_none();
                let mut record = known.map_or_else(|| empty(id), |known| (*known).clone());
                if self.is_outdated(&record, now) {
                    record.mapping.clear();
                }
                let changed = merge::merge(&mut record, name, access);
                if changed || is_new {
                    record.updated = Some(now);
                    self.records.write(record).map_err(|source| failed("write", id.as_str(), source))?;
                }
                Ok(())
            });
        if learned.is_ok() {
            self.is_recorded(id);
        }
        drop(turn);
        self.show();
        learned
    }

    /// Whether a pull that was begun may have brought this image. Called with the record's lock held.
    fn begun_for(&self, image: &str, found: &Image) -> Result<bool, Unreadable> {
        let is_begun = |name: &str| {
            let _turn = self.intents.lock(name);
            Ok::<_, Unreadable>(self.intents.find(name)?.is_some())
        };
        if self.is_running(image) || is_begun(image)? {
            return Ok(true);
        }
        if !self.guards_images() || self.intents.is_known_empty() {
            return Ok(false);
        }
        // An intent that cannot be read is known by its name alone.
        for name in found.tags.iter().chain(&found.digests) {
            if is_begun(name)? {
                return Ok(true);
            }
        }
        let names = PullNames::new(found, image);
        Ok(self.intents.any(|begun| names.include(begun)))
    }

    fn is_outdated(&self, record: &PulledRecord, now: SystemTime) -> bool {
        let Some(age_max) = self.settings.as_ref().and_then(|settings| settings.age_max) else { return false };
        record.updated.is_none_or(|updated| now.duration_since(updated).is_ok_and(|age| age > age_max))
    }

    fn guards_images(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.guard == Guard::Image)
    }

    fn is_running(&self, image: &str) -> bool {
        self.state().running.contains_key(image)
    }

    fn is_unrecorded(&self, id: &ImageId) -> bool {
        let state = self.state();
        state.unrecorded_overflow || state.unrecorded.contains_key(id)
    }

    fn release(&self, image: &str) -> Result<(), RecordsError> {
        let released = {
            let _turn = self.intents.lock(image);
            self.release_locked(image)
        };
        self.show();
        released
    }

    /// Forgets one pull of an image; its intent goes with the last, unless another was cut off.
    fn release_locked(&self, image: &str) -> Result<(), RecordsError> {
        {
            let mut state = self.state();
            let is_left = state.left.contains_key(image);
            if let Some(running) = state.running.get_mut(image)
                && (*running > 1 || is_left)
            {
                *running -= 1;
                if *running == 0 {
                    state.running.remove(image);
                }
                return Ok(());
            }
        }
        self.intents.remove(image).map_err(|source| failed("remove", image, source))?;
        self.state().running.remove(image);
        Ok(())
    }

    /// Forgets one pull of an image that may have brought it: its intent stays until a pass has looked.
    fn leave(&self, image: &str) {
        let mut state = self.state();
        state.left.insert(image.to_owned(), 0);
        if let Some(running) = state.running.get_mut(image) {
            *running -= 1;
            if *running == 0 {
                state.running.remove(image);
            }
        }
    }

    fn show(&self) {
        self.gauges.show(self.intents.filling(), self.records.filling());
    }

    fn state(&self) -> MutexGuard<'_, RecordsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PullRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullRecords").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The recorded intent of a pull.
///
/// Dropped, the pull was cut off: what it brought may be here nevertheless, or be a moment later. So the intent stays,
/// until [`PullRecords::resolve_open_intents`] has looked.
#[derive(Debug)]
#[must_use = "dropping an intent says that the end of the pull is unknown"]
pub(crate) struct Intent {
    records: Arc<PullRecords>,
    image: String,
    /// Whether there is something to take back.
    held: bool,
}

impl Intent {
    /// Records that the pull succeeded, and by whose credentials. Durable on return.
    ///
    /// # Errors
    /// Then the intent stays recorded, and the image counts as pulled under all its names: a full disk lets no client in.
    pub(crate) fn fulfil(mut self, id: &ImageId, access: &ImageAccess, now: SystemTime) -> Result<(), RecordsError> {
        if !self.held {
            return Ok(());
        }
        self.held = false;
        let learned = self.records.learn(&self.image, id, access, now);
        if learned.is_err() {
            self.records.keep_unrecorded(id, &self.image, access);
            return learned;
        }
        self.records.release(&self.image)
    }

    /// Takes it back: the pull failed, and has brought nothing.
    ///
    /// # Errors
    /// Then the image still counts as one that is being pulled.
    pub(crate) fn withdraw(mut self) -> Result<(), RecordsError> {
        if !self.held {
            return Ok(());
        }
        self.held = false;
        self.records.release(&self.image)
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        if self.held {
            self.records.leave(&self.image);
        }
    }
}

/// A record that names no client: each has to show credentials.
fn empty(id: &ImageId) -> PulledRecord {
    PulledRecord { image_ref: id.to_string(), ..PulledRecord::default() }
}

fn failed(action: &'static str, subject: &str, source: io::Error) -> RecordsError {
    RecordsError::Io { action, subject: subject.to_owned(), source }
}

#[cfg(test)]
mod tests;
