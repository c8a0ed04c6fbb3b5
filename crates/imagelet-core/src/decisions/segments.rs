//! The files of the log: lines are added to the youngest, the oldest is dropped whole.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _},
    path::{Path, PathBuf},
};

use crate::failpoint::Step;

/// A log consists of about this many segments, so that dropping one loses a quarter of what is known.
const SEGMENTS: u64 = 4;
const LOCK: &str = "lock";
const SUFFIX: &str = ".jsonl";

/// The folder of a log, for writing.
#[derive(Debug)]
pub(super) struct Segments {
    pub(super) directory: PathBuf,
    bytes_max: u64,
}

/// The youngest segment, while no other process may write.
#[derive(Debug)]
pub(super) struct Youngest {
    _lock: File,
    /// Which it is; counts up.
    pub(super) number: u64,
    file: File,
    /// How long it is.
    pub(super) length: u64,
}

impl Segments {
    /// Nothing is made or opened before the first line.
    pub(super) fn new(directory: &Path, bytes_max: u64) -> Self {
        Self { directory: directory.to_owned(), bytes_max }
    }

    /// How much is written at once at most.
    pub(super) fn append_max(&self) -> u64 {
        self.bytes_max / SEGMENTS
    }

    /// Waits for its turn among the processes that write here, and begins a segment where the youngest is full.
    pub(super) fn youngest(&self) -> io::Result<Youngest> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let lock = File::options().create(true).truncate(false).write(true).open(self.directory.join(LOCK))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let (number, length) = match list(&self.directory)?.pop() {
            Some((number, path)) => (number, fs::metadata(path)?.len()),
            None => (1, 0),
        };
        let is_full = length >= self.bytes_max / SEGMENTS;
        let number = number + u64::from(is_full);
        let path = self.directory.join(format!("{number:010}{SUFFIX}"));
        let file = File::options().read(true).append(true).create(true).open(&path)?;
        let length = file.metadata()?.len();
        if length == 0 {
            File::open(&self.directory)?.sync_all()?;
        }
        Ok(Youngest { _lock: lock, number, file, length })
    }

    /// Adds lines, all or none, after dropping as many of the oldest segments as they need.
    pub(super) fn append(&self, youngest: &mut Youngest, lines: &[u8]) -> io::Result<()> {
        let mut all = list(&self.directory)?;
        all.retain(|(number, _)| *number < youngest.number);
        let sizes: Vec<u64> = all.iter().map(|(_, path)| fs::metadata(path).map_or(0, |it| it.len())).collect();
        let mut total = sizes.iter().sum::<u64>() + youngest.length + lines.len() as u64;
        for ((_, path), length) in all.iter().zip(sizes) {
            if total <= self.bytes_max {
                break;
            }
            fs::remove_file(path)?;
            total -= length;
        }
        youngest.append(lines)
    }
}

impl Youngest {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let before = self.length;
        let mut last = [b'\n'];
        if before > 0 {
            self.file.read_exact_at(&mut last, before - 1)?;
        }
        // In two writes, so that a test can end the process between them.
        let half = if crate::failpoint::COMPILED_IN { lines.len() / 2 } else { 0 };
        // A line that a crash cut off ends here, and is passed over by readers.
        let end: &[u8] = if last == [b'\n'] { b"" } else { b"\n" };
        let written = self
            .file
            .write_all(end)
            .and_then(|()| self.file.write_all(&lines[..half]))
            .inspect(|()| Step::DecisionHalfWritten.reach())
            .and_then(|()| self.file.write_all(&lines[half..]));
        if let Err(error) = written {
            // Where this fails, too, readers pass over what is left.
            drop(self.file.set_len(before));
            return Err(error);
        }
        self.length += (end.len() + lines.len()) as u64;
        Step::DecisionWritten.reach();
        Ok(())
    }

    /// Waits until the lines are on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// All segments, oldest first. An absent folder has none, and other files in it are none.
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
