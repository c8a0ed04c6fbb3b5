//! The ledger: the usage history on disk, in one file that each write replaces. The first line is the digest of the
//! second line, a JSON object. A file that does not match its digest is renamed. Another process, such as a command
//! beside a daemon, may also write the file. This process merges the other data before its next write.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    sync::{Arc, Mutex},
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
    lock::locked,
};

pub(crate) const LEDGER: &str = "ledger";
/// The version of the file. A file with a later version is renamed. New fields do not need a new version.
const VERSION: u32 = 1;

pub(crate) type Images = BTreeMap<ImageKey, ImageUsage>;

/// The content of the ledger file. `I` is `Images` after a read, and `&Images` for a write.
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

    /// The images as in the last pass before the write. An image whose release is not confirmed counts as in use again.
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

/// Decodes a ledger and encodes the images that the next process would restore, for fuzz targets.
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

/// The ledger file, and its state when this process last read or wrote the file.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    directory: StateDir,
    seen: Option<FileState>,
}

/// The inode, the length, and the time of the last change in seconds and nanoseconds.
type FileState = (u64, u64, i64, i64);

impl LedgerFile {
    pub(crate) fn open(directory: StateDir) -> io::Result<(Self, Ledger)> {
        let mut file = Self { directory, seen: None };
        let ledger = file.read()?;
        Ok((file, ledger))
    }

    fn read(&mut self) -> io::Result<Ledger> {
        // The state is read before the content, so that a concurrent replacement is detected as a change.
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
    /// On: an image that is listed again counts as new, as in the kubelet (`docs/spec/gc.md §5`). Must be called first.
    #[must_use]
    pub fn forgetful(self, is_forgetful: bool) -> Self {
        self.lock().memory.is_forgetful = is_forgetful;
        self
    }

    /// Whether there is no history: this is the first start on the node, or the ledger was lost.
    pub fn remembers_nothing(&self) -> bool {
        self.lock().memory.images.is_empty()
    }

    /// Records that another image manager pulled an image, with the time if known. The next pass adopts the image if
    /// its origin is unknown. The time becomes the first sight only of an image that is new in that pass.
    pub fn adopt(&self, id: &ImageId, since: Option<SystemTime>) {
        self.lock().memory.adopt(id, since);
    }

    /// Writes the ledger. Earlier changes are on disk on return. Does nothing without changes or a state directory.
    pub fn flush(&self) -> Result<(), InventoryError> {
        let (Some(ledger), Some(directory)) = (&self.ledger, &self.directory) else { return Ok(()) };
        flush(ledger, &self.state).map_err(|source| InventoryError::File { path: directory.path.clone(), source })
    }

    /// Writes the ledger if the last write is old, or if an image got its first container, which a restarting runtime
    /// may not list after a crash. A timer also calls this function, because images are used between passes.
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

/// Locks the file before the state, so that an older state never replaces a newer state on disk.
fn flush(ledger: &Mutex<LedgerFile>, state: &Mutex<InventoryState>) -> io::Result<()> {
    let mut file = locked(ledger);
    if !locked(state).dirty {
        return Ok(());
    }
    if file.directory.is_read_only {
        locked(state).mark_written();
        return Ok(());
    }
    let _lock = file.directory.lock()?;
    let others = file.read_changed()?;
    let text = {
        let mut state = locked(state);
        if let Some(others) = others {
            state.memory.merge(others);
        }
        state.flushed_at = Some(Instant::now());
        state.mark_written();
        Ledger::new(state.watch, &state.memory.images).encode()
    };
    // A failed write, for example on a full disk, is retried after the usual interval.
    text.and_then(|text| file.write(&text)).inspect_err(|_| locked(state).dirty = true)
}

impl InventoryState {
    /// Whether the ledger must be written now. `age` is the time since the last write. `None`: no write yet.
    pub(crate) fn is_flush_due(&self, age: Option<Duration>) -> bool {
        self.dirty && (self.memory.has_new_users || age.is_none_or(|age| age >= FLUSH_EVERY))
    }

    pub(crate) fn mark_written(&mut self) {
        self.dirty = false;
        self.memory.has_new_users = false;
    }
}

#[cfg(test)]
mod tests;
