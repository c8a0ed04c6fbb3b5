//! The ledger: the usage history on disk, in one file that each write replaces.
//!
//! The first line is the digest of the second one, a JSON object. A file that does not match its digest is set aside.
//!
//! Another process may write, as a command does beside a daemon: a file that this process has neither read nor written
//! is merged before the next write.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::inventory::{
    FLUSH_EVERY, Inventory, InventoryError, InventoryState, observation_window::ObservationWindow,
    usage_history::image_usage::ImageUsage,
};
use crate::{
    durable::{StateDir, misread},
    image::{Digest, ImageId, ImageKey},
};

pub(crate) const LEDGER: &str = "ledger";
/// The written version; a file of a later one is set aside. A field may be added without a new version.
const VERSION: u32 = 1;

pub(crate) type Images = BTreeMap<ImageKey, ImageUsage>;

/// The content; `&Images` for writing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ledger<I = Images> {
    version: u32,
    pub(crate) window: ObservationWindow,
    pub(crate) images: I,
}

impl<I> Ledger<I> {
    pub(crate) fn new(window: ObservationWindow, images: I) -> Self {
        Self { version: VERSION, window, images }
    }
}

impl Ledger {
    fn decode(text: &[u8]) -> Result<Self, String> {
        let end = text.iter().position(|byte| *byte == b'\n').ok_or("it has no digest")?;
        let (digest, body) = (&text[..end], &text[end + 1..]);
        if digest != Digest::of(body).as_str().as_bytes() {
            return Err("it does not match its digest".to_owned());
        }
        let ledger: Self = serde_json::from_slice(body).map_err(|error| misread(&error))?;
        if ledger.version > VERSION {
            return Err(format!("its version is {}; the latest known is {VERSION}", ledger.version));
        }
        Ok(ledger)
    }

    /// The images as the process that wrote them left them, to the last pass. Untrusted observations do not count: the
    /// reader begins its own waiting time.
    pub(crate) fn into_images(self) -> Images {
        let Self { window, mut images, .. } = self;
        for usage in images.values_mut() {
            usage.in_use |= usage.times.released_at.take().is_some() && usage.times.gone.is_none();
            usage.has_containers = usage.in_use && (window.containers > 0 || window.vanished_at.is_some());
            if usage.in_use {
                usage.times.last_used = usage.times.last_used.max(window.last_pass);
            }
        }
        images
    }
}

/// A ledger, written again with its images as the next process takes them, for fuzz targets.
#[cfg(feature = "fuzzing")]
pub fn rewritten_ledger(text: &[u8]) -> Result<Vec<u8>, String> {
    let ledger = Ledger::decode(text)?;
    let window = ledger.window;
    Ledger::new(window, &ledger.into_images()).encode().map_err(|error| error.to_string())
}

impl Ledger<&Images> {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let body = serde_json::to_vec(self).map_err(io::Error::other)?;
        Ok([Digest::of(&body).as_str().as_bytes(), b"\n", &body].concat())
    }
}

/// The file, and the state in which this process last saw it.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    directory: StateDir,
    seen: Option<FileState>,
}

/// Inode, length, and time of the last change with nanoseconds.
type FileState = (u64, u64, i64, i64);

impl LedgerFile {
    pub(crate) fn open(directory: StateDir) -> io::Result<(Self, Ledger)> {
        let mut file = Self { directory, seen: None };
        let ledger = file.read()?;
        Ok((file, ledger))
    }

    fn read(&mut self) -> io::Result<Ledger> {
        // Before the reading: a replacement meanwhile is a change.
        self.seen = self.state()?;
        self.directory.read(LEDGER, Ledger::decode)
    }

    fn read_changed(&mut self) -> io::Result<Option<Ledger>> {
        if self.state()? == self.seen { Ok(None) } else { self.read().map(Some) }
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        self.directory.replace(LEDGER, text)?;
        self.seen = self.state()?;
        Ok(())
    }

    fn state(&self) -> io::Result<Option<FileState>> {
        match fs::metadata(self.directory.path.join(LEDGER)) {
            Ok(found) => Ok(Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Inventory {
    /// An image that comes back is new in all reports, as in the kubelet (`docs/spec/gc.md §5`). Must be the first call.
    #[must_use]
    pub fn forgetful(self, is_forgetful: bool) -> Self {
        self.lock().memory.is_forgetful = is_forgetful;
        self
    }

    /// Whether no ledger had an image: the first start on this node, or a lost ledger.
    pub fn remembers_nothing(&self) -> bool {
        self.lock().memory.images.is_empty()
    }

    /// Records the image of another manager and its age, where this inventory did not know it. Takes effect with the
    /// next pass, unless better data is known.
    pub fn adopt(&self, id: &ImageId, since: Option<SystemTime>) {
        self.lock().memory.adopt(id, since);
    }

    /// Writes the ledger; earlier changes are on disk on return. Does nothing without a state directory or changes.
    pub fn flush(&self) -> Result<(), InventoryError> {
        let (Some(ledger), Some(directory)) = (&self.ledger, &self.directory) else { return Ok(()) };
        flush(ledger, &self.state).map_err(|source| InventoryError::File { path: directory.path.clone(), source })
    }

    /// Writes the ledger if the last write is old, or at once where a container came to an image that had none: after a
    /// crash only the ledger knows the containers that a restarting runtime does not list. For a timer, because uses occur
    /// without a pass, too.
    pub async fn flush_if_due(&self) {
        let Some(ledger) = self.ledger.clone() else { return };
        {
            let state = self.lock();
            if !state.is_flush_due(state.flushed_at.map(|flushed| flushed.elapsed())) {
                return;
            }
        }
        let state = Arc::clone(&self.state);
        let written = tokio::task::spawn_blocking(move || flush(&ledger, &state)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(%error, "could not write the inventory's ledger; trying again later");
        }
    }
}

/// The file's lock is taken first, so that states are written in the order they are taken.
fn flush(ledger: &Mutex<LedgerFile>, state: &Mutex<InventoryState>) -> io::Result<()> {
    let mut file = held(ledger);
    if !held(state).dirty {
        return Ok(());
    }
    if file.directory.is_read_only {
        held(state).mark_written();
        return Ok(());
    }
    let _lock = file.directory.lock()?;
    let others = file.read_changed()?;
    let text = {
        let mut state = held(state);
        if let Some(others) = others {
            state.memory.merge(others);
        }
        state.flushed_at = Some(Instant::now());
        state.mark_written();
        Ledger::new(state.watch, &state.memory.images).encode()
    };
    // What a full disk refuses is tried again after the usual time.
    text.and_then(|text| file.write(&text)).inspect_err(|_| held(state).dirty = true)
}

impl InventoryState {
    /// Whether a ledger that was written so long ago has to be written again now.
    pub(crate) fn is_flush_due(&self, age: Option<Duration>) -> bool {
        self.dirty && (self.memory.has_new_users || age.is_none_or(|age| age >= FLUSH_EVERY))
    }

    pub(crate) fn mark_written(&mut self) {
        self.dirty = false;
        self.memory.has_new_users = false;
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves at worst a stale table, which the next pass corrects.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
