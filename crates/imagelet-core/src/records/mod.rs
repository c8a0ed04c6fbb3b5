//! What was pulled, for whom.
//!
//! ```text
//! ROOT/image_manager/pulling/sha256-…   one file per pull that was begun: ImagePullIntent
//! ROOT/image_manager/pulled/sha256-…    one file per image that was pulled: ImagePulledRecord
//! ```
//!
//! Folders, file names and contents are the kubelet's own, so that a node can be taken over in place, and given back. A
//! file is named by the SHA-256 of what it is about, and written beside, synced and renamed. All files may vanish: an
//! image without a record counts as preloaded. One that cannot be read is kept, and lets nobody in. One process owns the
//! folder; memory mirrors it, so that asking reads no disk.

mod disk;
mod file;
mod merge;
mod verify;

use std::{
    collections::{BTreeSet, HashMap},
    fmt, io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use disk::Folder;
pub(crate) use disk::create_folder;
pub use file::{DecodeError, ImageAccess, PulledRecord, RecordedSecret, RecordedServiceAccount};
use file::{decode_intent, decode_record, encode_intent, encode_record, file_name};
pub use verify::{Allowlist, AllowlistError, Asker, Verdict, VerificationPolicy};

use crate::image::{Image, ImageId, ReferenceError, trim_tag_and_digest};

/// What was pulled for whom, and who may therefore use it.
pub struct PullRecords {
    /// `None`: nothing is recorded, and everybody may use everything.
    policy: Option<VerificationPolicy>,
    folders: Option<Folders>,
    /// Held by whoever changes records, over disk and memory; readers take `state` alone and never wait for a disk.
    changing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct Folders {
    pulling: Folder,
    pulled: Folder,
}

/// The mirror of the folders, by file name.
#[derive(Debug, Default)]
struct State {
    intents: HashMap<String, KeptIntent>,
    records: HashMap<String, Kept<PulledRecord>>,
}

#[derive(Debug)]
struct KeptIntent {
    image: Kept<String>,
    /// How many pulls of this process stand behind it; none for one an earlier process left.
    running: usize,
}

#[derive(Debug)]
enum Kept<T> {
    Whole(T),
    Unreadable,
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

/// What start-up found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Pulls that had finished without a word: their images now ask for credentials.
    pub finished: usize,
    /// Pulls that never finished.
    pub unfinished: usize,
}

impl PullRecords {
    /// Opens or makes the folders below a data root, and reads them.
    pub fn open(root: &Path, policy: VerificationPolicy) -> Result<Self, RecordsError> {
        let folder = |name: &str| {
            Folder::open(root.join("image_manager").join(name)).map_err(|source| failed("open", name, source))
        };
        let folders = Folders { pulling: folder("pulling")?, pulled: folder("pulled")? };
        let mut state = State::default();
        for (name, content) in folders.pulling.read_all().map_err(|source| failed("list", "pulling", source))? {
            let image = load(&folders.pulling, &name, content, decode_intent, |image| encode_intent(image));
            state.intents.insert(name, KeptIntent { image, running: 0 });
        }
        for (name, content) in folders.pulled.read_all().map_err(|source| failed("list", "pulled", source))? {
            let record = load(&folders.pulled, &name, content, decode_record, encode_record);
            state.records.insert(name, record);
        }
        Ok(Self { folders: Some(folders), state: Mutex::new(state), ..Self::in_memory_with(policy) })
    }

    /// Records that end with the process; what was not pulled by it counts as preloaded.
    pub fn in_memory() -> Self {
        Self::in_memory_with(VerificationPolicy::NeverVerifyPreloadedImages)
    }

    /// The same under another policy.
    pub fn in_memory_with(policy: VerificationPolicy) -> Self {
        Self { policy: Some(policy), folders: None, changing: Mutex::default(), state: Mutex::default() }
    }

    /// None: nothing is recorded, and everybody may use what is here.
    pub fn off() -> Self {
        Self { policy: None, ..Self::in_memory() }
    }

    /// Whether anything is recorded and verified.
    pub fn is_on(&self) -> bool {
        self.policy.is_some()
    }

    /// Whether changes wait for a disk.
    pub fn is_durable(&self) -> bool {
        self.is_on() && self.folders.is_some()
    }

    /// How many intents and records there are.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.intents.len(), state.records.len())
    }

    /// What is recorded for an image; `None` also for a record that cannot be read.
    pub fn record(&self, id: &ImageId) -> Option<PulledRecord> {
        let (record, is_new) = self.record_of(id);
        (!is_new).then_some(record)
    }

    /// Puts on record that an image is about to be pulled. Durable on return; taken back when the guard is dropped.
    pub fn intend(self: &Arc<Self>, image: &str) -> Result<Intent, RecordsError> {
        let mut intent = Intent { records: Arc::clone(self), image: image.to_owned(), held: false };
        if !self.is_on() {
            return Ok(intent);
        }
        let name = file_name(image);
        let _changing = self.changing();
        if let Some(folders) = &self.folders {
            folders.pulling.write(&name, &encode_intent(image)).map_err(|source| failed("write", image, source))?;
        }
        let mut state = self.state();
        let kept = state.intents.entry(name).or_insert_with(|| KeptIntent { image: Kept::Unreadable, running: 0 });
        kept.image = Kept::Whole(image.to_owned());
        kept.running += 1;
        intent.held = true;
        Ok(intent)
    }

    /// Decides whether an asker may use an image that is here. Reads no disk.
    ///
    /// # Errors
    /// What `asker` failed with; it is called only where its answer matters.
    pub fn judge<E>(
        &self,
        image: &str,
        id: &ImageId,
        asker: impl FnOnce() -> Result<Asker, E>,
    ) -> Result<Option<Verdict>, E> {
        let Some(policy) = &self.policy else { return Ok(None) };
        let (record, intended) = {
            let state = self.state();
            let record = match state.records.get(&file_name(id.as_str())) {
                Some(Kept::Unreadable) => return Ok(Some(Verdict::UNREADABLE)),
                Some(Kept::Whole(record)) if record.image_ref == id.as_str() => Some(record.clone()),
                _ => None,
            };
            let intended = match state.intents.get(&file_name(image)).map(|intent| &intent.image) {
                Some(Kept::Unreadable) if record.is_none() => return Ok(Some(Verdict::UNREADABLE)),
                Some(Kept::Whole(intended)) => intended == image,
                _ => false,
            };
            (record, intended)
        };
        verify::judge(policy, image, record.as_ref(), intended, asker).map(Some)
    }

    /// Adds whose credentials opened an image, creating its record where there is none. Durable on return.
    pub fn learn(&self, image: &str, id: &ImageId, access: &ImageAccess, now: SystemTime) -> Result<(), RecordsError> {
        if !self.is_on() {
            return Ok(());
        }
        let name =
            trim_tag_and_digest(image).map_err(|source| RecordsError::Name { image: image.to_owned(), source })?;
        let _changing = self.changing();
        let (mut record, is_new) = self.record_of(id);
        let changed = merge::merge(&mut record, name, access);
        if changed || is_new {
            record.updated = Some(now);
            self.store(record)?;
        }
        Ok(())
    }

    /// After a start: of the pulls an earlier process began, those whose image is here did finish.
    ///
    /// Their images get a record that names nobody, so that whoever wants them has to show credentials. Spellings are
    /// compared in their normal form, as the runtime lists full names and users write short ones.
    pub fn recover(&self, images: &[Image], now: SystemTime) -> Result<Recovered, RecordsError> {
        let mut recovered = Recovered::default();
        if !self.is_on() {
            return Ok(recovered);
        }
        let mut present: HashMap<String, Vec<&ImageId>> = HashMap::new();
        for image in images {
            for name in image.tags.iter().chain(&image.digests) {
                present.entry(verify::normal(name)).or_default().push(&image.id);
            }
        }
        let left: Vec<String> = {
            let state = self.state();
            let idle = state.intents.values().filter(|intent| intent.running == 0);
            idle.filter_map(|intent| if let Kept::Whole(image) = &intent.image { Some(image.clone()) } else { None })
                .collect()
        };
        for image in left {
            let Some(ids) = present.get(&verify::normal(&image)) else {
                recovered.unfinished += 1;
                continue;
            };
            let _changing = self.changing();
            for id in ids {
                let (mut record, is_new) = self.record_of(id);
                if is_new {
                    record.updated = Some(now);
                    self.store(record)?;
                }
            }
            self.release_while_changing(&image)?;
            recovered.finished += 1;
        }
        Ok(recovered)
    }

    /// Removes the records, older than `until`, of images that are gone. Answers how many went, and what failed.
    ///
    /// `present` has every image on the node, those in use and pinned ones too, as listed after `until`.
    pub fn prune(&self, present: &BTreeSet<ImageId>, until: SystemTime) -> (usize, Vec<RecordsError>) {
        let _changing = self.changing();
        let gone: Vec<(String, String)> = {
            let state = self.state();
            let records = state.records.iter().filter_map(|(name, kept)| match kept {
                Kept::Whole(record) => Some((name, record)),
                Kept::Unreadable => None,
            });
            records
                .filter(|(_, record)| record.updated.is_none_or(|updated| updated < until))
                .filter(|(_, record)| !present.contains(&ImageId::new(&record.image_ref)))
                .map(|(name, record)| (name.clone(), record.image_ref.clone()))
                .collect()
        };
        let (mut removed, mut failures) = (0, Vec::new());
        for (name, id) in gone {
            match self.folders.as_ref().map_or(Ok(()), |folders| folders.pulled.remove(&name)) {
                Ok(()) => {
                    self.state().records.remove(&name);
                    removed += 1;
                }
                Err(source) => failures.push(failed("remove", &id, source)),
            }
        }
        (removed, failures)
    }

    /// The record of an image, or an empty one; an unreadable one is as good as none, and is replaced.
    fn record_of(&self, id: &ImageId) -> (PulledRecord, bool) {
        match self.state().records.get(&file_name(id.as_str())) {
            Some(Kept::Whole(record)) if record.image_ref == id.as_str() => (record.clone(), false),
            _ => (PulledRecord { image_ref: id.to_string(), ..PulledRecord::default() }, true),
        }
    }

    fn store(&self, record: PulledRecord) -> Result<(), RecordsError> {
        let name = file_name(&record.image_ref);
        if let Some(folders) = &self.folders {
            folders
                .pulled
                .write(&name, &encode_record(&record))
                .map_err(|source| failed("write", &record.image_ref, source))?;
        }
        self.state().records.insert(name, Kept::Whole(record));
        Ok(())
    }

    fn release(&self, image: &str) -> Result<(), RecordsError> {
        let _changing = self.changing();
        self.release_while_changing(image)
    }

    /// Forgets one pull of an image; its intent goes with the last.
    fn release_while_changing(&self, image: &str) -> Result<(), RecordsError> {
        let name = file_name(image);
        if let Some(intent) = self.state().intents.get_mut(&name)
            && intent.running > 1
        {
            intent.running -= 1;
            return Ok(());
        }
        if let Some(folders) = &self.folders {
            folders.pulling.remove(&name).map_err(|source| failed("remove", image, source))?;
        }
        self.state().intents.remove(&name);
        Ok(())
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PullRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullRecords").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// A pull that is on record as begun. Dropped, it is taken back.
#[derive(Debug)]
#[must_use = "dropping an intent takes it back"]
pub struct Intent {
    records: Arc<PullRecords>,
    image: String,
    /// Whether there is something to take back.
    held: bool,
}

impl Intent {
    /// Puts on record that the pull succeeded, and by whose credentials. Durable on return.
    ///
    /// # Errors
    /// Then the intent stays on record, so that the image still counts as pulled: nobody gets in by a full disk.
    pub fn fulfil(mut self, id: &ImageId, access: &ImageAccess, now: SystemTime) -> Result<(), RecordsError> {
        if !self.held {
            return Ok(());
        }
        self.held = false;
        self.records.learn(&self.image, id, access, now)?;
        self.records.release(&self.image)
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        if !self.held {
            return;
        }
        let (records, image) = (Arc::clone(&self.records), std::mem::take(&mut self.image));
        let release = move || {
            if let Err(error) = records.release(&image) {
                tracing::warn!(image, error = %error, "a pull that ended stays on record as begun");
            }
        };
        // An async thread must not wait for a disk. Should the process end first, the intent is found at the next start.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if self.records.is_durable() => drop(runtime.spawn_blocking(release)),
            _ => release(),
        }
    }
}

/// Decodes a file and brings it to today's version.
fn load<T>(
    folder: &Folder,
    name: &str,
    content: io::Result<Vec<u8>>,
    decode: impl FnOnce(&[u8]) -> Result<file::Decoded<T>, DecodeError>,
    encode: impl FnOnce(&T) -> Vec<u8>,
) -> Kept<T> {
    let decoded = match content {
        Ok(bytes) => decode(&bytes),
        Err(error) => {
            tracing::warn!(file = name, %error, "a pull record cannot be read");
            return Kept::Unreadable;
        }
    };
    match decoded {
        Ok(decoded) => {
            if decoded.outdated
                && let Err(error) = folder.write(name, &encode(&decoded.content))
            {
                tracing::warn!(file = name, %error, "a pull record of an older version could not be rewritten");
            }
            Kept::Whole(decoded.content)
        }
        Err(error) => {
            tracing::warn!(file = name, %error, "a pull record is not understood; its image asks for credentials");
            Kept::Unreadable
        }
    }
}

fn failed(action: &'static str, subject: &str, source: io::Error) -> RecordsError {
    RecordsError::Io { action, subject: subject.to_owned(), source }
}

#[cfg(test)]
mod tests;
