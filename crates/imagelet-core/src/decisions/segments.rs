//! The files of the log: lines are added to the youngest, the oldest is dropped whole.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use super::{
    entry::Entry,
    line::{decode, encode},
};
use crate::failpoint::Step;

/// A log consists of about this many segments, so that dropping one loses a quarter of what is known.
const SEGMENTS: u64 = 4;
/// The version that this program writes, and the newest it reads.
const VERSION: u32 = 1;
const LOCK: &str = "lock";
const SUFFIX: &str = ".log";
/// How far back a cut-off line is looked for at once.
const TAIL_LENGTH: u64 = 64 << 10;

/// The folder of a log, for writing.
#[derive(Debug)]
pub(super) struct Segments {
    directory: PathBuf,
    bytes_max: u64,
}

/// The youngest segment, while nobody else may write.
#[derive(Debug)]
pub(super) struct Youngest<'a> {
    segments: &'a Segments,
    _lock: File,
    number: u64,
    file: File,
    length: u64,
    /// Bytes of a line cut off by a crash, which are gone now.
    pub(super) torn: u64,
}

impl Segments {
    /// Nothing is made or opened before the first line.
    pub(super) fn new(directory: &Path, bytes_max: u64) -> Self {
        Self { directory: directory.to_owned(), bytes_max }
    }

    /// The longest line that is written.
    pub(super) fn line_length_max(&self) -> u64 {
        self.bytes_max / SEGMENTS
    }

    /// Waits for its turn among the processes that write here, and begins a segment where the youngest is full.
    pub(super) fn youngest(&self) -> io::Result<Youngest<'_>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let lock = File::options().create(true).truncate(false).write(true).open(self.directory.join(LOCK))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let mut torn = 0;
        if let Some((number, path)) = list(&self.directory)?.pop() {
            let mut file = File::options().read(true).append(true).open(&path)?;
            torn = cut_tail(&mut file)?;
            let length = file.metadata()?.len();
            if length > 0 && length < self.bytes_max / SEGMENTS {
                return Ok(Youngest { segments: self, _lock: lock, number, file, length, torn });
            }
            return self.begin(lock, number + 1, torn);
        }
        self.begin(lock, 1, torn)
    }

    fn begin(&self, lock: File, number: u64, torn: u64) -> io::Result<Youngest<'_>> {
        let path = self.directory.join(format!("{number:010}{SUFFIX}"));
        let file = File::options().read(true).append(true).create(true).open(&path)?;
        let length = file.metadata()?.len();
        let mut youngest = Youngest { segments: self, _lock: lock, number, file, length, torn };
        if length == 0 {
            youngest.append(&encode(&Entry::Segment { version: VERSION })?)?;
            File::open(&self.directory)?.sync_all()?;
        }
        Ok(youngest)
    }
}

impl Youngest<'_> {
    /// Which it is; counts up.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Adds lines, all or none, after dropping as many of the oldest segments as they need.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let all = list(&self.segments.directory)?;
        let mut sizes: Vec<(PathBuf, u64)> = Vec::with_capacity(all.len());
        for (_, path) in all {
            let length = fs::metadata(&path).map_or(0, |it| it.len());
            sizes.push((path, length));
        }
        let mut total: u64 = sizes.iter().map(|(_, length)| length).sum();
        let older = sizes.len().saturating_sub(1);
        for (path, length) in sizes.into_iter().take(older) {
            if total + lines.len() as u64 <= self.segments.bytes_max {
                break;
            }
            fs::remove_file(&path)?;
            total -= length;
        }
        // In two writes, so that a test can end the process between them.
        let half = if crate::failpoint::COMPILED_IN { lines.len() / 2 } else { 0 };
        let written = self
            .file
            .write_all(&lines[..half])
            .inspect(|()| Step::DecisionHalfWritten.reach())
            .and_then(|()| self.file.write_all(&lines[half..]));
        if let Err(error) = written {
            // What is left of it would be cut by whoever comes next, too.
            drop(self.file.set_len(self.length));
            return Err(error);
        }
        self.length += lines.len() as u64;
        Step::DecisionWritten.reach();
        Ok(())
    }

    /// Waits until the lines are on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// All segments, oldest first. An absent folder has none.
pub(super) fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)).and_then(|name| name.parse().ok());
        found.extend(number.map(|number: u64| (number, entry.path())));
    }
    found.sort();
    Ok(found)
}

/// How many bytes a log takes.
pub(super) fn size(directory: &Path) -> u64 {
    let all = list(directory).unwrap_or_default();
    all.iter().filter_map(|(_, path)| Some(fs::metadata(path).ok()?.len())).sum()
}

/// Whether the first line of a segment says that this program can read it.
pub(super) fn is_readable(line: &[u8]) -> bool {
    matches!(decode(line), Some(Entry::Segment { version }) if version <= VERSION)
}

/// Cuts off a last line without an end, which a crash left; answers its length.
fn cut_tail(file: &mut File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let mut end = length;
    let mut tail = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(TAIL_LENGTH);
        tail.clear();
        file.seek(SeekFrom::Start(start))?;
        file.take(end - start).read_to_end(&mut tail)?;
        if let Some(place) = tail.iter().rposition(|byte| *byte == b'\n') {
            end = start + place as u64 + 1;
            break;
        }
        end = start;
    }
    if end < length {
        file.set_len(end)?;
    }
    Ok(length - end)
}
