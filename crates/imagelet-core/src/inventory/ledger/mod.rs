//! The ledger: the usage history on disk, in one file that each write replaces.
//!
//! The first line is the digest of the second one, a JSON object. A file that does not match its digest is set aside.
//!
//! Another process may write, as a command does beside a daemon: a file that this process has neither read nor written
//! is merged before the next write.

pub(in crate::inventory) mod files;
pub(in crate::inventory) mod flush;

use std::{collections::BTreeMap, fs, io, os::unix::fs::MetadataExt as _};

use serde::{Deserialize, Serialize};

use crate::image::{Digest, ImageKey};
use crate::inventory::{
    boot_clock::Anchor,
    ledger::files::{LEDGER, StateDir, misread},
    observation_window::ObservationWindow,
    usage_history::image_usage::ImageUsage,
};

/// The written version; a file of a later one is set aside. A field may be added without a new version.
const VERSION: u32 = 1;

pub(in crate::inventory) type Images = BTreeMap<ImageKey, ImageUsage>;

/// The content; `&Images` for writing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::inventory) struct Ledger<I = Images> {
    version: u32,
    pub(in crate::inventory) window: ObservationWindow,
    pub(in crate::inventory) anchor: Option<Anchor>,
    pub(in crate::inventory) images: I,
}

impl<I> Ledger<I> {
    pub(in crate::inventory) fn new(window: ObservationWindow, anchor: Option<Anchor>, images: I) -> Self {
        Self { version: VERSION, window, anchor, images }
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
    pub(in crate::inventory) fn into_images(self) -> Images {
        let Self { window, mut images, .. } = self;
        for usage in images.values_mut() {
            usage.in_use |= usage.released_at.take().is_some() && usage.gone.is_none();
            usage.has_containers = usage.in_use && (window.containers > 0 || window.vanished_at.is_some());
            if usage.in_use {
                usage.last_used = usage.last_used.max(window.last_pass);
            }
        }
        images
    }
}

/// A ledger, written again with its images as the next process takes them, for fuzz targets.
#[cfg(feature = "fuzzing")]
pub fn rewritten_ledger(text: &[u8]) -> Result<Vec<u8>, String> {
    let ledger = Ledger::decode(text)?;
    let (window, anchor) = (ledger.window, ledger.anchor.clone());
    let images = ledger.into_images();
    Ledger::new(window, anchor, &images).encode().map_err(|error| error.to_string())
}

impl Ledger<&Images> {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let body = serde_json::to_vec(self).map_err(io::Error::other)?;
        Ok([Digest::of(&body).as_str().as_bytes(), b"\n", &body].concat())
    }
}

/// The file, and the state in which this process last saw it.
#[derive(Debug)]
pub(in crate::inventory) struct LedgerFile {
    directory: StateDir,
    seen: Option<FileState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl LedgerFile {
    pub(in crate::inventory) fn open(directory: StateDir) -> io::Result<(Self, Ledger)> {
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
        match fs::metadata(self.directory.path().join(LEDGER)) {
            Ok(found) => {
                let modified = (found.mtime(), found.mtime_nsec());
                Ok(Some(FileState { inode: found.ino(), length: found.len(), modified }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
