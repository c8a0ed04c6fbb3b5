//! Pull records: which images were pulled, and with which credentials.
//!
//! ```text
//! ROOT/image_manager/pulling/sha256-…   one file per started pull: ImagePullIntent
//! ROOT/image_manager/pulled/sha256-…    one file per pulled image: ImagePulledRecord
//! ROOT/preloaded-images.json            the images that were present before any pull
//! ```
//!
//! In `image_manager`, names and contents are the kubelet's, so that a node can be taken over in place and given back.
//! A file is named by the SHA-256 of its subject, and written by temporary file, sync and rename. An image without a
//! record counts as preloaded, so all files may be deleted. An unreadable record is kept and rejects every client. One
//! process owns the folder and has all records in memory. A lookup reads a file only if the file was unreadable before.

mod file;
mod folder;
mod intent_match;
mod kubelet_import;
mod maintenance;
mod merge;
mod preloaded;
mod verify;

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::{Duration, SystemTime},
};

use file::PullIntent;
pub(crate) use file::{ImageAccess, PulledRecord, RecordedSecret};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use file::{rewritten_intent, rewritten_record};
use folder::RecordFolder;
use intent_match::PullNames;
pub use kubelet_import::{KubeletRecordList, KubeletRecords};
use maintenance::Touched;
pub use maintenance::{Absent, PruneMark, Recovered};
use preloaded::PreloadedImages;
#[cfg(test)]
pub(crate) use tests::faults;
pub(crate) use verify::{AccessProof, CheckResult, Verdict};
pub use verify::{Allowlist, Guard, RecordsSettings, VerificationPolicy};

use crate::{
    durable::{Disk, MachineDisk},
    image::{Image, ImageId, ReferenceError, trim_tag_and_digest},
    lock::locked,
    metrics::{Family, MetricKind, Metrics, families},
};

families! {
    INTENTS = "kubelet_imagemanager_ondisk_pullintents", "Number of ImagePullIntents stored on disk.",
        MetricKind::Gauge, &[];
    RECORDS = "kubelet_imagemanager_ondisk_pulledrecords", "Number of ImagePulledRecords stored on disk.",
        MetricKind::Gauge, &[];
}

pub fn metric_families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().copied()
}

/// The maximum number of remembered unrecorded images. Above this limit, every image counts as unrecorded.
const UNRECORDED_MAX: usize = 1024;
/// A recorded time may be this far in the future, because the clock may have been corrected. A later time is invalid.
pub(crate) const CLOCK_SLACK: Duration = Duration::from_mins(5);

pub struct PullRecords {
    /// `None`: recording is off, and every client may use every image.
    settings: Option<RecordsSettings>,
    intents: RecordFolder<PullIntent>,
    records: RecordFolder<PulledRecord>,
    preloaded: PreloadedImages,
    /// Locked for moments, never during disk I/O.
    state: Mutex<RecordsState>,
    metrics: OnceLock<Arc<Metrics>>,
}

#[derive(Debug, Default)]
struct RecordsState {
    /// Requested name → number of running pulls that share the intent for this name.
    running: HashMap<String, usize>,
    /// Requested name in an intent without a running pull → number of checks that did not find the image.
    left: HashMap<String, u8>,
    /// Pulled images whose record could not be written.
    unrecorded: HashSet<ImageId>,
    unrecorded_overflow: bool,
    touched: Touched,
}

impl RecordsState {
    fn end_one(&mut self, image: &str) {
        if let Some(running) = self.running.get_mut(image) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(image);
            }
        }
    }
}

/// What the records contain about a present image. The input of [`PullRecords::judge`].
#[derive(Clone, Debug)]
pub(crate) enum Evidence {
    /// The image has no id, so it is treated as absent.
    Absent,
    Unreadable,
    Record(Arc<PulledRecord>),
    /// There is no record. `true`: a pull with an open intent may have fetched the image. `false`: no pull is known.
    Begun(bool),
}

impl Evidence {
    /// Whether the record has a service account. Only a credential provider supplies credentials of service accounts.
    pub(crate) fn names_service_accounts(&self) -> bool {
        match self {
            Evidence::Record(record) => {
                record.mapping.values().any(|access| !access.kubernetes_service_accounts.is_empty())
            }
            _ => false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    #[error("could not {action} the pull record of `{subject}`")]
    Io { action: &'static str, subject: String, source: io::Error },
    #[error("`{image}` cannot be recorded")]
    Name { image: String, source: ReferenceError },
}

impl PullRecords {
    /// Creates the folders below a data root, if missing, and reads them.
    pub fn open(root: &Path, settings: impl Into<RecordsSettings>) -> Result<Self, RecordsError> {
        Self::open_on(Arc::new(MachineDisk), root, settings.into(), false)
    }

    /// Reads the records below a data root; changes are only in memory. An unreadable folder is an error, because
    /// without its records every client could use the present images.
    pub fn open_read_only(root: &Path, settings: impl Into<RecordsSettings>) -> Result<Self, RecordsError> {
        Self::open_on(Arc::new(MachineDisk), root, settings.into(), true)
    }

    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        root: &Path,
        settings: RecordsSettings,
        is_read_only: bool,
    ) -> Result<Self, RecordsError> {
        let preloaded = PreloadedImages::open(root, Arc::clone(&disk), is_read_only);
        let root = root.join("image_manager");
        let intents = RecordFolder::open(root.join("pulling"), is_read_only, Arc::clone(&disk))
            .map_err(|source| failed("read", "pulling", source))?;
        let records = RecordFolder::open(root.join("pulled"), is_read_only, disk)
            .map_err(|source| failed("read", "pulled", source))?;
        for (file, error) in intents.unreadable().into_iter().chain(records.unreadable()) {
            tracing::warn!(file, %error, "a pull record is not understood; its image asks for credentials");
        }
        Ok(Self { intents, records, preloaded, ..Self::in_memory_with(settings) })
    }

    /// Records that are only in memory. An image without a record is treated as preloaded.
    pub fn in_memory() -> Self {
        Self::in_memory_with(VerificationPolicy::NeverVerifyPreloadedImages)
    }

    pub fn in_memory_with(settings: impl Into<RecordsSettings>) -> Self {
        Self {
            intents: RecordFolder::in_memory(),
            records: RecordFolder::in_memory(),
            preloaded: PreloadedImages::in_memory(),
            settings: Some(settings.into()),
            state: Mutex::default(),
            metrics: OnceLock::new(),
        }
    }

    /// Creates records that record nothing. Every client may use every present image.
    pub fn off() -> Self {
        Self { settings: None, ..Self::in_memory() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.settings.is_some()
    }

    /// Runs blocking disk work outside the async threads. A drop of the future does not cancel the work.
    pub(crate) async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> T + Send + 'static,
    ) -> T {
        if !self.is_on() || !self.records.takes_time() {
            return work(self);
        }
        let records = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&records)).await;
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    pub(crate) fn export_to(&self, metrics: Arc<Metrics>) {
        let _ = self.metrics.set(metrics);
        self.show();
    }

    pub(crate) fn intend(self: &Arc<Self>, image: &str) -> Result<Intent, RecordsError> {
        let mut intent = Intent { records: Arc::clone(self), image: image.to_owned(), held: false };
        if !self.is_on() {
            return Ok(intent);
        }
        let turn = self.intents.turn();
        // An interrupted pull left this intent and may have fetched an image, so the intent stays after the new pull.
        if self.guards_images() && !self.is_running(image) && !matches!(self.intents.find(image), Ok(None)) {
            self.state().left.entry(image.to_owned()).or_default();
        }
        if let Err(source) = self.intents.write(PullIntent::new(image)) {
            // No pull starts, so the file that the failed write may have left is removed.
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

    /// Looks up what is recorded about a present image. Does not read the disk, and waits for no pull.
    pub(crate) fn evidence(&self, image: &str, found: &Image) -> Evidence {
        self.look_up(image, found).unwrap_or_else(|error| {
            let id = found.id.as_str();
            tracing::warn!(image, id, %error, "a pull record cannot be read; its image asks for credentials");
            Evidence::Unreadable
        })
    }

    /// Looks up as [`Self::evidence`], but first reads an unreadable file again, because it may be repaired.
    pub(crate) async fn latest_evidence(self: &Arc<Self>, image: &str, found: &Image) -> Evidence {
        if let Ok(evidence) = self.look_up(image, found) {
            return evidence;
        }
        let id = found.id.clone();
        self.on_disk(move |records| drop((records.records.find_again(id.as_str()), records.intents.list()))).await;
        self.evidence(image, found)
    }

    fn look_up(&self, image: &str, found: &Image) -> Result<Evidence, Arc<io::Error>> {
        let id = found.id.as_str();
        if !self.is_on() {
            return Ok(Evidence::Begun(false));
        }
        if id.is_empty() {
            return Ok(Evidence::Absent);
        }
        let record = self.records.find(id)?;
        // A preloaded image stays preloaded under this name, even if it was pulled under other names.
        if self.stays_preloaded(image, &found.id, record.as_deref()) {
            return Ok(Evidence::Begun(false));
        }
        if let Some(record) = record {
            return Ok(Evidence::Record(record));
        }
        if self.is_unrecorded(&found.id) || self.begun_for(image, found)? {
            return Ok(Evidence::Begun(true));
        }
        // The record is read again: a pull that ended in the meantime wrote it before it removed its intent.
        Ok(self.records.find(id)?.map_or(Evidence::Begun(false), Evidence::Record))
    }

    /// Decides from the evidence whether a client may use a present image. `None`: recording is off.
    pub(crate) fn judge<E>(
        &self,
        image: &str,
        evidence: &Evidence,
        now: SystemTime,
        proof: impl FnOnce() -> Result<AccessProof, E>,
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

    /// Adds the credentials that opened an image to its record. Creates a missing record. Durable on return.
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
        let turn = self.records.turn();
        self.state().touched.touch(id);
        let learned = trim_tag_and_digest(image)
            .map_err(|source| RecordsError::Name { image: image.to_owned(), source })
            .and_then(|name| {
                let known = self.records.find_again(id.as_str());
                // The unreadable record is replaced. Its names must not count as preloaded after that.
                if known.is_err() {
                    self.forget_preloaded(id, None)?;
                }
                let known = known.ok().flatten();
                let is_new = known.is_none();
                let mut record = known.map_or_else(|| empty(id), |known| (*known).clone());
                if self.is_outdated(&record, now) {
                    for name in std::mem::take(&mut record.mapping).into_keys() {
                        self.forget_preloaded(id, Some(&PullIntent::new(&name)))?;
                    }
                }
                let changed = merge::merge(&mut record, name, access);
                if changed || is_new {
                    record.updated = Some(now);
                    self.records.write(record).map_err(|source| failed("write", id.as_str(), source))?;
                }
                Ok(())
            });
        if learned.is_ok() {
            self.state().unrecorded.remove(id);
        }
        drop(turn);
        self.show();
        learned
    }

    fn begun_for(&self, image: &str, found: &Image) -> Result<bool, Arc<io::Error>> {
        let is_begun = |name: &str| Ok::<_, Arc<io::Error>>(self.intents.find(name)?.is_some());
        if self.is_running(image) || is_begun(image)? {
            return Ok(true);
        }
        if !self.guards_images() {
            return Ok(false);
        }
        // An unreadable intent is known only by its file name, so every name of the image is looked up.
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
        record.updated.is_none_or(|updated| match now.duration_since(updated) {
            Ok(age) => age > age_max,
            Err(ahead) => ahead.duration() > CLOCK_SLACK,
        })
    }

    fn guards_images(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.guard == Guard::Image)
    }

    fn is_running(&self, image: &str) -> bool {
        self.state().running.contains_key(image)
    }

    fn is_unrecorded(&self, id: &ImageId) -> bool {
        let state = self.state();
        state.unrecorded_overflow || state.unrecorded.contains(id)
    }

    /// Ends one pull of an image. The last pull removes the intent, unless an interrupted pull had the same intent.
    fn release(&self, image: &str) -> Result<(), RecordsError> {
        let turn = self.intents.turn();
        let is_last = {
            let state = self.state();
            state.running.get(image).is_none_or(|running| *running == 1 && !state.left.contains_key(image))
        };
        if is_last {
            self.intents.remove(image).map_err(|source| failed("remove", image, source))?;
        }
        self.state().end_one(image);
        drop(turn);
        self.show();
        Ok(())
    }

    /// Ends one pull that may have fetched the image. The intent stays until a check resolves it.
    fn leave(&self, image: &str) {
        let mut state = self.state();
        state.left.insert(image.to_owned(), 0);
        state.end_one(image);
    }

    fn show(&self) {
        if let Some(metrics) = self.metrics.get() {
            metrics.set(&INTENTS, &[], self.intents.count() as f64);
            metrics.set(&RECORDS, &[], self.records.count() as f64);
        }
    }

    fn state(&self) -> MutexGuard<'_, RecordsState> {
        locked(&self.state)
    }
}

/// Does not print the records, which have hashes of credentials.
impl fmt::Debug for PullRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullRecords").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The recorded intent of a pull. A drop means that the pull was interrupted: the image may be present or arrive later,
/// and the intent stays until [`PullRecords::resolve_open_intents`] checks it.
#[derive(Debug)]
#[must_use = "dropping an intent says that the end of the pull is unknown"]
pub(crate) struct Intent {
    pub(crate) records: Arc<PullRecords>,
    image: String,
    held: bool,
}

impl Intent {
    /// Records a successful pull and its credentials. Durable on return. After an error, the intent stays and the image
    /// counts as pulled under all its names, so that even on a full disk clients must present credentials.
    pub(crate) fn fulfil(mut self, id: &ImageId, access: &ImageAccess, now: SystemTime) -> Result<(), RecordsError> {
        if !self.held {
            return Ok(());
        }
        self.held = false;
        let learned = self.records.learn(&self.image, id, access, now);
        if learned.is_err() {
            self.records.keep_unrecorded(id, &self.image);
            return learned;
        }
        self.records.release(&self.image)
    }

    /// Removes the intent of a pull that fetched no image. After an error, the image is still treated as being pulled.
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

/// A record without credentials: each client must present credentials.
fn empty(id: &ImageId) -> PulledRecord {
    PulledRecord { image_ref: id.to_string(), ..PulledRecord::default() }
}

fn failed(action: &'static str, subject: &str, source: io::Error) -> RecordsError {
    RecordsError::Io { action, subject: subject.to_owned(), source }
}

#[cfg(test)]
mod tests;
