//! The files of the audit log. Lines are appended to the newest file. The oldest files are removed as a whole.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _},
    path::{Path, PathBuf},
};

use super::record::{Act, Line};
use crate::{failpoint, image::ByteSize};

/// The number of files of a full log. Removing one file removes a quarter of the history.
const FILES: u64 = 4;
pub(super) const RECENT_BYTES_MAX: u64 = 4 << 20;
const LOCK: &str = "lock";
const SUFFIX: &str = ".jsonl";

#[derive(Debug)]
pub(super) struct LogFiles {
    directory: PathBuf,
    bytes_max: u64,
}

impl LogFiles {
    pub(super) fn new(directory: &Path, bytes_max: u64) -> Self {
        Self { directory: directory.to_owned(), bytes_max }
    }

    /// Appends all lines or none, under a lock that all writing processes take. A new file begins if the newest file is
    /// full. If the log would be too large, its oldest files are removed first.
    pub(super) fn append(&self, lines: &[Line], is_synced: bool) -> io::Result<()> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line).map_err(io::Error::other)?;
            text.push(b'\n');
        }
        let file_bytes_max = self.bytes_max / FILES;
        if text.len() as u64 > file_bytes_max {
            let (length, limit) = (ByteSize(text.len() as u64), ByteSize(file_bytes_max));
            return Err(io::Error::other(format!("lines of {length}; the limit is {limit}")));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let lock = File::options().create(true).truncate(false).write(true).open(self.directory.join(LOCK))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let mut older = list(&self.directory)?;
        let (mut number, mut length) = (1, 0);
        if let Some((youngest, path)) = older.pop() {
            (number, length) = (youngest, fs::metadata(&path)?.len());
            if length >= file_bytes_max {
                older.push((youngest, path));
                (number, length) = (youngest + 1, 0);
            }
        }
        let lengths: Vec<u64> = older.iter().map(|(_, path)| fs::metadata(path).map_or(0, |it| it.len())).collect();
        let mut total = lengths.iter().sum::<u64>() + length + text.len() as u64;
        for ((_, path), length) in older.iter().zip(lengths) {
            if total <= self.bytes_max {
                break;
            }
            fs::remove_file(path)?;
            total -= length;
        }
        let path = self.directory.join(format!("{number:010}{SUFFIX}"));
        let file = File::options().read(true).append(true).create(true).open(path)?;
        if length == 0 {
            File::open(&self.directory)?.sync_all()?;
        }
        append(&file, length, &text)?;
        if is_synced { file.sync_data() } else { Ok(()) }
    }
}

fn append(mut file: &File, before: u64, text: &[u8]) -> io::Result<()> {
    let mut last = [b'\n'];
    if before > 0 {
        file.read_exact_at(&mut last, before - 1)?;
    }
    // The text is written in two parts, so that a test can abort the process in between.
    let half = if crate::failpoint::COMPILED_IN { text.len() / 2 } else { 0 };
    // Ends the torn line that a crash left. Readers skip that line.
    let end: &[u8] = if last == [b'\n'] { b"" } else { b"\n" };
    let written = file
        .write_all(end)
        .and_then(|()| file.write_all(&text[..half]))
        .inspect(|()| failpoint!("decision.half-written"))
        .and_then(|()| file.write_all(&text[half..]));
    if let Err(error) = written {
        // If the truncation also fails, readers skip the torn line.
        drop(file.set_len(before));
        return Err(error);
    }
    failpoint!("decision.written");
    Ok(())
}

/// Reads all lines, the oldest first. Returns the number of skipped lines: torn lines, and lines that this version cannot
/// parse. Takes no lock, so a line may be half-written.
pub(super) fn read(directory: &Path, mut take: impl FnMut(Line)) -> io::Result<u64> {
    let files = list(directory)?;
    Ok(files.iter().map(|(_, path)| read_file(path, 0, &mut take)).sum())
}

/// The last `max` acts in the last [`RECENT_BYTES_MAX`] bytes, the latest first. Reads only as many files as needed.
pub(super) fn recent(directory: &Path, max: usize) -> io::Result<Vec<Act>> {
    let (mut recent, mut bytes_left) = (Vec::new(), RECENT_BYTES_MAX);
    for (_, path) in list(directory)?.into_iter().rev() {
        let wanted = max - recent.len();
        if wanted == 0 || bytes_left == 0 {
            break;
        }
        let length = fs::metadata(&path).map_or(0, |it| it.len());
        let mut of_file = VecDeque::new();
        // The first line may be cut. A cut line is not a JSON document and is skipped.
        read_file(&path, length.saturating_sub(bytes_left), &mut |line| {
            if let Line::Act(act) = line {
                if of_file.len() == wanted {
                    of_file.pop_front();
                }
                of_file.push_back(act);
            }
        });
        bytes_left = bytes_left.saturating_sub(length);
        recent.extend(of_file.into_iter().rev());
    }
    Ok(recent)
}

fn read_file(path: &Path, from: u64, take: &mut impl FnMut(Line)) -> u64 {
    let mut skipped = 0;
    let mut read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        for line in BufReader::new(file).split(b'\n') {
            match serde_json::from_slice(&line?) {
                Ok(line) => take(line),
                Err(_) => skipped += 1,
            }
        }
        Ok::<_, io::Error>(())
    };
    // The writing process may have removed the file in the meantime.
    if let Err(error) = read()
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "a file of the audit log cannot be read and is skipped");
    }
    skipped
}

/// The numbers and paths of the files of the log, the oldest first. The list is empty if the directory is absent.
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
