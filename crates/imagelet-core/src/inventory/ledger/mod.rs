//! The ledger: the inventory's usage history on disk as one file of lines, first the whole state, then changes.
//!
//! A line is eight digits of its checksum, a blank, one JSON object. A flush appends the changed lines and syncs. When
//! the changes outgrow the rest, a new file is written beside, synced and renamed. A crash tears only the last line,
//! which was not acknowledged. A line with a wrong checksum is skipped alone.
//!
//! Another process may write, as a command does beside a daemon. A writer that finds the file changed merges its
//! content before it writes.

pub(in crate::inventory) mod files;
pub(in crate::inventory) mod flush;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::MetadataExt as _,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::inventory::{
    boot_clock::Anchor,
    ledger::files::{FILE_SIZE_MAX, LEDGER, LEDGER_1, StateDir, nanos, time},
    usage_history::{
        image_usage::ImageUsage,
        use_history::{ImageOrigin, PullCost, UseHistory},
    },
};
use crate::{
    failpoint::Step,
    image::{ByteSize, ImageKey},
};

/// The written version, which is also the oldest reader that understands it.
const VERSION: u32 = 2;
/// Longest line; an image takes a few hundred bytes.
const LINE_LENGTH_MAX: usize = 64 << 10;
/// Limit of images in a file, including removed ones.
const IMAGES_MAX: usize = 250_000;
/// A smaller amount of changes does not justify a rewrite.
const CHANGES_MIN: u64 = 1 << 20;
/// Limit of damaged files kept for diagnosis.
const ASIDE_MAX: usize = 3;

#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::inventory) struct Content {
    pub(in crate::inventory) pass: PassLine,
    pub(in crate::inventory) images: BTreeMap<ImageKey, ImageUsage>,
}

#[derive(Debug)]
pub(in crate::inventory) struct Batch {
    /// The whole state, not only changes.
    pub(in crate::inventory) is_whole: bool,
    pub(in crate::inventory) pass: PassLine,
    pub(in crate::inventory) images: Vec<(ImageKey, ImageUsage)>,
    pub(in crate::inventory) forgotten: Vec<ImageKey>,
}

/// The last pass. Times are nanoseconds of steady time since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::inventory) struct PassLine {
    /// Start of watching without a long gap.
    pub(in crate::inventory) since: Option<u64>,
    pub(in crate::inventory) at: Option<u64>,
    pub(in crate::inventory) containers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::inventory) anchor: Option<Anchor>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Ledger(Header),
    Pass(PassLine),
    Image(ImageLine),
    Forgotten(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    /// The oldest compatible reader version.
    reader: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ImageLine {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_seen: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    in_use: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    begun: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gone: Option<u64>,
    origin: ImageOrigin,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pulled: Option<PullLine>,
    #[serde(flatten)]
    history: UseHistory,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PullLine {
    bytes: u64,
    nanos: u64,
    at: u64,
}

/// The file of version 1: replaced whole, with wall-clock times.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FirstFile {
    observed_since: Option<u64>,
    last_pass: Option<u64>,
    containers: usize,
    images: BTreeMap<String, FirstLine>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FirstLine {
    first_seen: Option<u64>,
    last_used: Option<u64>,
}

/// The writer of the file, and the state in which it left the file.
#[derive(Debug)]
pub(in crate::inventory) struct Writer {
    directory: StateDir,
    /// `None`: the next write replaces the file.
    left: Option<Left>,
    /// Part of the file was unreadable: a replacement keeps the old file.
    is_damaged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    inode: u64,
    length: u64,
    /// File length after the last whole write.
    whole: u64,
}

/// The lock for writing, with the changes of other processes.
pub(in crate::inventory) struct Turn<'a> {
    writer: &'a mut Writer,
    _lock: File,
    /// Changes by another process since the last read.
    pub(in crate::inventory) others: Option<Content>,
    pub(in crate::inventory) wants_whole: bool,
}

impl Writer {
    pub(in crate::inventory) fn open(directory: StateDir) -> io::Result<(Self, Content)> {
        let mut writer = Self { directory, left: None, is_damaged: false };
        let content = writer.read()?;
        Ok((writer, content))
    }

    /// Excludes other writers until dropped. `None`: the directory is read-only.
    pub(in crate::inventory) fn turn(&mut self) -> io::Result<Option<Turn<'_>>> {
        if self.directory.is_read_only() {
            return Ok(None);
        }
        let lock = self.directory.lock()?;
        let is_ours = match (self.left, fs::metadata(self.directory.path().join(LEDGER))) {
            (Some(left), Ok(now)) => (left.inode, left.length) == (now.ino(), now.len()),
            (None, Err(error)) => error.kind() == io::ErrorKind::NotFound,
            _ => false,
        };
        let others = if is_ours { None } else { Some(self.read()?) };
        let wants_whole =
            others.is_some() || self.left.is_none_or(|left| left.length - left.whole > left.whole.max(CHANGES_MIN));
        Ok(Some(Turn { writer: self, _lock: lock, others, wants_whole }))
    }

    fn read(&mut self) -> io::Result<Content> {
        self.left = None;
        self.is_damaged = false;
        let path = self.directory.path().join(LEDGER);
        let mut text = Vec::new();
        match File::open(&path) {
            Ok(file) => file.take(FILE_SIZE_MAX + 1).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.read_first(),
            Err(error) => return Err(error),
        };
        let parsed = if text.len() as u64 > FILE_SIZE_MAX { Err("larger than any such file") } else { parse(&text) };
        match parsed {
            Ok(parsed) => {
                self.is_damaged = parsed.damaged > 0;
                if parsed.damaged > 0 {
                    tracing::error!(path = %path.display(), lines = parsed.damaged, "passed over damaged lines");
                }
                if parsed.is_torn {
                    tracing::warn!(path = %path.display(), "passed over the last line, which was written in part");
                }
                let metadata = fs::metadata(&path)?;
                if parsed.is_sound && metadata.len() == text.len() as u64 {
                    self.left = Some(Left { inode: metadata.ino(), length: metadata.len(), whole: metadata.len() });
                }
                Ok(parsed.content)
            }
            Err(why) if self.directory.is_read_only() => {
                tracing::error!(path = %path.display(), why, "a file that is no ledger is passed over");
                Ok(Content::default())
            }
            Err(why) => {
                let aside = crate::inventory::ledger::files::set_aside(&path)?;
                let (path, aside) = (path.display(), aside.display());
                tracing::error!(%path, %aside, why, "set a file that is no ledger aside; starting without");
                Ok(Content::default())
            }
        }
    }

    fn read_first(&self) -> io::Result<Content> {
        let file: FirstFile = self.directory.read(LEDGER_1)?;
        let images = file.images.into_iter().take(IMAGES_MAX).map(|(key, line)| {
            let history = UseHistory { uses: u64::from(line.last_used.is_some()), ..UseHistory::default() };
            let remembered = ImageUsage {
                first_seen: line.first_seen.map(time),
                last_used: line.last_used.map(time),
                history,
                ..ImageUsage::default()
            };
            (ImageKey::parse(&key), remembered)
        });
        let pass =
            PassLine { since: file.observed_since, at: file.last_pass, containers: file.containers, anchor: None };
        Ok(Content { pass, images: images.collect() })
    }
}

impl Turn<'_> {
    /// Writes a batch; it is on disk on return.
    pub(in crate::inventory) fn write(mut self, batch: &Batch) -> io::Result<()> {
        let text = lines(batch)?;
        let written =
            if batch.is_whole || self.writer.left.is_none() { self.replace(&text) } else { self.append(&text) };
        if written.is_err() {
            // The state of the file is unknown after a failed write.
            self.writer.left = None;
        }
        written
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let path = self.writer.directory.path().join(LEDGER);
        let mut file = File::options().append(true).open(path)?;
        file.write_all(text)?;
        Step::StateWritten.reach();
        file.sync_data()?;
        Step::StateSynced.reach();
        if let Some(left) = &mut self.writer.left {
            left.length += text.len() as u64;
        }
        Ok(())
    }

    fn replace(&mut self, text: &[u8]) -> io::Result<()> {
        let directory = &self.writer.directory;
        if self.writer.is_damaged {
            directory.keep_damaged(LEDGER, ASIDE_MAX);
        }
        let file = directory.replace(LEDGER, text)?;
        let metadata = file.metadata()?;
        let length = metadata.len();
        self.writer.left = Some(Left { inode: metadata.ino(), length, whole: length });
        self.writer.is_damaged = false;
        // The new file has its content.
        directory.remove(LEDGER_1)
    }
}

fn lines(batch: &Batch) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(256 * (batch.images.len() + 2));
    if batch.is_whole {
        push(&mut text, &Line::Ledger(Header { version: VERSION, reader: VERSION }))?;
    }
    for (key, remembered) in batch.images.iter().take(IMAGES_MAX) {
        push(&mut text, &Line::Image(ImageLine::of(key, remembered)))?;
    }
    for key in &batch.forgotten {
        push(&mut text, &Line::Forgotten(key.to_string()))?;
    }
    push(&mut text, &Line::Pass(batch.pass.clone()))?;
    Ok(text)
}

fn push(text: &mut Vec<u8>, line: &Line) -> io::Result<()> {
    let start = text.len();
    text.extend_from_slice(b"00000000 ");
    serde_json::to_writer(&mut *text, line).map_err(io::Error::other)?;
    if text.len() - start >= LINE_LENGTH_MAX {
        // An id this long is invalid and is not stored.
        text.truncate(start);
        return Ok(());
    }
    let sum = checksum(&text[start + 9..]);
    text[start..start + 8].copy_from_slice(&sum);
    text.push(b'\n');
    Ok(())
}

fn checksum(line: &[u8]) -> [u8; 8] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, line);
    let mut sum = [b'0'; 8];
    for (pair, byte) in sum.chunks_mut(2).zip(digest.as_ref()) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    sum
}

struct Parsed {
    content: Content,
    /// The file ends with a whole line, and all checksums match.
    is_sound: bool,
    /// Damaged lines, without a torn last one.
    damaged: usize,
    /// The last line is torn by a crash.
    is_torn: bool,
}

fn parse(text: &[u8]) -> Result<Parsed, &'static str> {
    let mut parsed = Parsed { content: Content::default(), is_sound: true, damaged: 0, is_torn: false };
    let mut good = 0_usize;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n');
        let line = &rest[..end.unwrap_or(rest.len())];
        rest = end.map_or(&[], |end| &rest[end + 1..]);
        let body = line
            .split_at_checked(9)
            .filter(|(sum, body)| line.len() < LINE_LENGTH_MAX && sum[8] == b' ' && sum[..8] == checksum(body));
        let Some((_, body)) = body.filter(|_| end.is_some()) else {
            parsed.is_sound = false;
            parsed.damaged += usize::from(end.is_some());
            parsed.is_torn = end.is_none();
            continue;
        };
        good += 1;
        match serde_json::from_slice(body) {
            Ok(Line::Ledger(header)) if header.reader > VERSION => {
                return Err("of a version that this one cannot read");
            }
            Ok(line) => parsed.content.take(line),
            Err(error) => tracing::debug!(%error, "passing over a line that another version wrote"),
        }
    }
    if good == 0 && !text.is_empty() { Err("no line of it is a ledger's") } else { Ok(parsed) }
}

impl Content {
    fn take(&mut self, line: Line) {
        match line {
            Line::Ledger(_) => {}
            Line::Pass(pass) => self.pass = pass,
            Line::Forgotten(key) => {
                self.images.remove(&ImageKey::parse(&key));
            }
            Line::Image(line) => {
                let key = ImageKey::parse(&line.key);
                if self.images.len() < IMAGES_MAX || self.images.contains_key(&key) {
                    self.images.insert(key, line.into());
                }
            }
        }
    }
}

impl ImageLine {
    fn of(key: &ImageKey, remembered: &ImageUsage) -> Self {
        let pulled = remembered.pulled.map(|cost| PullLine {
            bytes: cost.bytes.0,
            nanos: u64::try_from(cost.duration.as_nanos()).unwrap_or(u64::MAX),
            at: nanos(cost.at),
        });
        Self {
            key: key.to_string(),
            first_seen: remembered.first_seen.map(nanos),
            last_used: remembered.last_used.map(nanos),
            in_use: remembered.in_use,
            begun: remembered.begun.map(nanos),
            gone: remembered.gone.map(nanos),
            origin: remembered.origin,
            user: remembered.user.clone(),
            pulled,
            history: remembered.history.clone(),
        }
    }
}

impl From<ImageLine> for ImageUsage {
    fn from(line: ImageLine) -> Self {
        let pulled = line.pulled.map(|cost| PullCost {
            bytes: ByteSize(cost.bytes),
            duration: Duration::from_nanos(cost.nanos),
            at: time(cost.at),
        });
        Self {
            first_seen: line.first_seen.map(time),
            last_used: line.last_used.map(time),
            in_use: line.in_use,
            begun: line.begun.map(time),
            gone: line.gone.map(time),
            origin: line.origin,
            user: line.user,
            pulled,
            history: line.history,
            credits: 0,
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod crash_tests;
