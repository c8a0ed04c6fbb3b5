//! What outlives a restart: when images were seen and used, and what is pinned.
//!
//! ```text
//! STATE_DIR/ledger.log    what is remembered of images, as `ledger.rs` says; lost: ages and histories start anew
//! STATE_DIR/ledger.json   the same as version 1 wrote it; read where there is no other, and removed after the first write
//! STATE_DIR/pins.json     patterns; lost: nothing is pinned by the operator
//! STATE_DIR/pins.lock     held while either file is written, and while the pins are changed, by whichever process
//! STATE_DIR/.NAME.new     a file in the making; may vanish, and is overwritten by the next
//! *.corrupt-SECONDS       a file that could not be read, set aside; may be deleted
//! ```
//!
//! Files are replaced whole: written beside, synced, renamed. Unknown fields of newer versions are passed over.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::failpoint::Step;

/// A ledger of this size would list a quarter of a million images.
pub(in crate::inventory) const FILE_SIZE_MAX: u64 = 64 << 20;
pub(in crate::inventory) const LEDGER: &str = "ledger.log";
pub(in crate::inventory) const LEDGER_1: &str = "ledger.json";
const PINS: &str = "pins.json";
const LOCK: &str = "pins.lock";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PinsFile {
    version: u32,
    patterns: Vec<String>,
}

#[derive(Clone, Debug)]
pub(in crate::inventory) struct StateDir {
    path: PathBuf,
    /// A read-only file system: existing files are read, nothing is stored, pins cannot change.
    is_read_only: bool,
}

impl StateDir {
    pub(in crate::inventory) fn open(directory: &Path) -> io::Result<Self> {
        crate::records::create_folder(directory)?;
        Ok(Self { path: directory.to_owned(), is_read_only: false })
    }

    /// A state directory on a read-only file system; it may be absent.
    pub(in crate::inventory) fn open_read_only(directory: &Path) -> Self {
        Self { path: directory.to_owned(), is_read_only: true }
    }

    pub(in crate::inventory) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::inventory) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(in crate::inventory) fn read_pins(&self) -> io::Result<Vec<String>> {
        self.read::<PinsFile>(PINS).map(|file| file.patterns)
    }

    /// The caller holds the lock, and has read the patterns under it.
    pub(in crate::inventory) fn write_pins(&self, patterns: Vec<String>, _lock: &File) -> io::Result<()> {
        let text = serde_json::to_vec(&PinsFile { version: 1, patterns }).map_err(io::Error::other)?;
        self.replace(PINS, &text).map(drop)
    }

    /// Excludes writers of this and other processes until dropped.
    pub(in crate::inventory) fn lock(&self) -> io::Result<File> {
        if self.is_read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let file = File::options().create(true).truncate(false).write(true).open(self.path.join(LOCK))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// An absent file is empty; a damaged one is set aside.
    pub(in crate::inventory) fn read<T: DeserializeOwned + Default>(&self, name: &str) -> io::Result<T> {
        let path = self.path.join(name);
        let mut text = Vec::new();
        match File::open(&path) {
            Ok(file) => file.take(FILE_SIZE_MAX + 1).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
            Err(error) => return Err(error),
        };
        let parsed = if text.len() as u64 > FILE_SIZE_MAX {
            Err("larger than any such file".to_owned())
        } else {
            serde_json::from_slice(&text).map_err(|error| error.to_string())
        };
        parsed.or_else(|error| {
            if self.is_read_only {
                tracing::error!(path = %path.display(), error, "a damaged file is passed over");
                return Ok(T::default());
            }
            let aside = set_aside(&path)?;
            let (path, aside) = (path.display(), aside.display());
            tracing::error!(%path, %aside, error, "set a damaged file aside; starting without");
            Ok(T::default())
        })
    }

    /// Replaces a whole file; it is on disk on return. The caller holds the lock.
    pub(in crate::inventory) fn replace(&self, name: &str, text: &[u8]) -> io::Result<File> {
        // One name for all writes: the next write overwrites the remains of a crash.
        let beside = self.path.join(format!(".{name}.new"));
        let mut file = File::create(&beside)?;
        let written = file
            .write_all(text)
            .inspect(|()| Step::StateWritten.reach())
            .and_then(|()| file.sync_all())
            .inspect(|()| Step::StateSynced.reach())
            .and_then(|()| fs::rename(&beside, self.path.join(name)))
            .inspect(|()| Step::StateRenamed.reach())
            .and_then(|()| File::open(&self.path)?.sync_all())
            .inspect(|()| Step::StateDurable.reach());
        if written.is_err() {
            // The first error says more than a failed cleanup.
            let _ = fs::remove_file(&beside);
        }
        written.map(|()| file)
    }

    /// Removes a file; an absent one is a success.
    pub(in crate::inventory) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Keeps a second name of a damaged file before its replacement, up to a limit.
    pub(in crate::inventory) fn keep_damaged(&self, name: &str, aside_max: usize) {
        let path = self.path.join(name);
        let prefix = format!("{name}.corrupt-");
        let is_aside = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
        let aside = fs::read_dir(&self.path).map(|found| found.filter_map(Result::ok).filter(is_aside).count());
        if aside.is_ok_and(|count| count < aside_max)
            && let Err(error) = fs::hard_link(&path, aside_name(&path))
        {
            tracing::warn!(path = %path.display(), %error, "could not keep a damaged file");
        }
    }
}

/// Nanoseconds since 1970, clamped to 1970 to 2554.
pub(in crate::inventory) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(in crate::inventory) fn time(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// Renames a damaged file, so that it is not read again.
pub(in crate::inventory) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = aside_name(path);
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn aside_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".corrupt-{}", nanos(SystemTime::now()) / 1_000_000_000));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_set_aside_and_never_an_error() {
        for damage in ["", "{", "1", "{\"patterns\":[1]}", "\u{0}\u{0}"] {
            let directory = tempfile::tempdir().unwrap();
            let state = StateDir::open(directory.path()).unwrap();
            fs::write(directory.path().join(PINS), damage).unwrap();
            assert_eq!(state.read_pins().unwrap(), Vec::<String>::new(), "{damage:?}");
            let names: Vec<_> = fs::read_dir(directory.path())
                .unwrap()
                .map(|it| it.unwrap().file_name().into_string().unwrap())
                .collect();
            assert!(names.iter().all(|name| name.starts_with("pins.json.corrupt-")), "{names:?}");
            assert_eq!(names.len(), 1);
        }
    }

    #[test]
    fn fields_of_a_newer_version_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        fs::write(directory.path().join(PINS), r#"{"version":9,"patterns":["a"],"why":{}}"#).unwrap();
        assert_eq!(state.read_pins().unwrap(), ["a"]);
    }
}
