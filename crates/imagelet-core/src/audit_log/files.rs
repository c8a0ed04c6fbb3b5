//! The files of the log: lines are added to the youngest, the oldest is removed whole, and all are read in order.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Write as _},
    ops::ControlFlow,
    os::unix::fs::{DirBuilderExt as _, FileExt as _},
    path::{Path, PathBuf},
};

use super::record::Line;
use crate::{failpoint::Step, image::ByteSize};

/// The number of files of a full log; removing one loses a quarter of the history.
const FILES: u64 = 4;
const LOCK: &str = "lock";
const SUFFIX: &str = ".jsonl";
/// What a reader from the end reads at once, and more for a longer line.
pub(super) const BLOCK_BYTES: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct LogFiles {
    pub(super) directory: PathBuf,
    bytes_max: u64,
}

/// The youngest file, locked against other writers.
#[derive(Debug)]
pub(super) struct Youngest {
    _lock: File,
    /// Increases with every file.
    pub(super) number: u64,
    file: File,
    pub(super) length: u64,
}

/// Lines and files that a reader skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Torn lines, and lines that this version cannot parse.
    pub lines: u64,
    /// Unreadable files.
    pub files: u64,
}

impl LogFiles {
    pub(super) fn new(directory: &Path, bytes_max: u64) -> Self {
        Self { directory: directory.to_owned(), bytes_max }
    }

    /// Limit of one file and of one append.
    pub(super) fn file_bytes_max(&self) -> u64 {
        self.bytes_max / FILES
    }

    /// Waits for the lock of the writing processes, and starts a new file when the youngest is full.
    pub(super) fn youngest(&self) -> io::Result<Youngest> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let lock = File::options().create(true).truncate(false).write(true).open(self.directory.join(LOCK))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let (number, length) = match list(&self.directory)?.pop() {
            Some((number, path)) => (number, fs::metadata(path)?.len()),
            None => (1, 0),
        };
        let number = number + u64::from(length >= self.file_bytes_max());
        let path = self.directory.join(format!("{number:010}{SUFFIX}"));
        let file = File::options().read(true).append(true).create(true).open(&path)?;
        let length = file.metadata()?.len();
        if length == 0 {
            File::open(&self.directory)?.sync_all()?;
        }
        Ok(Youngest { _lock: lock, number, file, length })
    }

    /// Appends all lines or none, after removing as many of the oldest files as they need.
    pub(super) fn append(&self, youngest: &mut Youngest, lines: &[Line]) -> io::Result<()> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line).map_err(io::Error::other)?;
            text.push(b'\n');
        }
        if text.len() as u64 > self.file_bytes_max() {
            let (length, limit) = (ByteSize(text.len() as u64), ByteSize(self.file_bytes_max()));
            return Err(io::Error::other(format!("lines of {length}; the limit is {limit}")));
        }
        let mut older = list(&self.directory)?;
        older.retain(|(number, _)| *number < youngest.number);
        let lengths: Vec<u64> = older.iter().map(|(_, path)| fs::metadata(path).map_or(0, |it| it.len())).collect();
        let mut total = lengths.iter().sum::<u64>() + youngest.length + text.len() as u64;
        for ((_, path), length) in older.iter().zip(lengths) {
            if total <= self.bytes_max {
                break;
            }
            fs::remove_file(path)?;
            total -= length;
        }
        youngest.append(&text)
    }
}

impl Youngest {
    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let before = self.length;
        let mut last = [b'\n'];
        if before > 0 {
            self.file.read_exact_at(&mut last, before - 1)?;
        }
        // Two writes, so that a test can end the process between them.
        let half = if crate::failpoint::COMPILED_IN { text.len() / 2 } else { 0 };
        // Terminates a torn line of a crash, which readers skip.
        let end: &[u8] = if last == [b'\n'] { b"" } else { b"\n" };
        let written = self
            .file
            .write_all(end)
            .and_then(|()| self.file.write_all(&text[..half]))
            .inspect(|()| Step::DecisionHalfWritten.reach())
            .and_then(|()| self.file.write_all(&text[half..]));
        if let Err(error) = written {
            // If the truncation fails as well, readers skip the torn line.
            drop(self.file.set_len(before));
            return Err(error);
        }
        self.length += (end.len() + text.len()) as u64;
        Step::DecisionWritten.reach();
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Reads every line with the number of its file, oldest first. Takes no lock: a line in progress counts as damaged.
///
/// # Errors
/// When the directory cannot be read; an absent one is an empty log.
pub(super) fn read(directory: &Path, mut take: impl FnMut(u64, Line)) -> io::Result<Damage> {
    let mut damage = Damage::default();
    for (number, path) in list(directory)? {
        match File::open(&path).and_then(|file| read_file(file, number, &mut damage, &mut take)) {
            Ok(()) => {}
            Err(error) => damage.files += u64::from(is_damaged(&path, &error)),
        }
    }
    Ok(damage)
}

/// Reads lines from the last one backwards, until `take` breaks or `bytes_max` are read. Takes no lock, and skips what is
/// damaged.
///
/// # Errors
/// As [`read`].
pub(super) fn read_back(
    directory: &Path,
    bytes_max: u64,
    mut take: impl FnMut(Line) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut left = bytes_max;
    for (_, path) in list(directory)?.into_iter().rev() {
        match File::open(&path).and_then(|file| read_file_back(&file, &mut left, &mut take)) {
            Ok(ControlFlow::Break(())) => break,
            Ok(ControlFlow::Continue(())) => {}
            Err(error) => {
                let _ = is_damaged(&path, &error);
            }
        }
    }
    Ok(())
}

fn read_file_back(
    file: &File,
    left: &mut u64,
    take: &mut impl FnMut(Line) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut start = file.metadata()?.len();
    // What is read and not taken: the end of a line that begins before `start`.
    let mut text = Vec::new();
    while start > 0 {
        // Doubled for a long line, so that it is not searched for its beginning once for each block.
        let length = BLOCK_BYTES.max(text.len()).min(usize::try_from(start.min(*left)).unwrap_or(usize::MAX));
        if length == 0 {
            return Ok(ControlFlow::Break(()));
        }
        (start, *left) = (start - length as u64, *left - length as u64);
        let mut block = vec![0; length];
        file.read_exact_at(&mut block, start)?;
        block.append(&mut text);
        text = block;
        while let Some(end) = text.iter().rposition(|byte| *byte == b'\n') {
            if let Ok(line) = serde_json::from_slice(&text[end + 1..])
                && take(line).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            text.truncate(end);
        }
    }
    Ok(serde_json::from_slice(&text).map_or(ControlFlow::Continue(()), take))
}

/// Whether a file that cannot be read is damaged, which is logged: the writing process may have removed it meanwhile.
fn is_damaged(path: &Path, error: &io::Error) -> bool {
    let is_damaged = error.kind() != io::ErrorKind::NotFound;
    if is_damaged {
        tracing::warn!(file = %path.display(), %error, "a file of the audit log cannot be read and is skipped");
    }
    is_damaged
}

fn read_file(file: File, number: u64, damage: &mut Damage, take: &mut impl FnMut(u64, Line)) -> io::Result<()> {
    for line in BufReader::new(file).split(b'\n') {
        match serde_json::from_slice(&line?) {
            Ok(line) => take(number, line),
            Err(_) => damage.lines += 1,
        }
    }
    Ok(())
}

/// All files of the log, oldest first; none for an absent directory.
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
