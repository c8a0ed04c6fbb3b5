//! What outlives a restart: when images were seen and used, and what is pinned.
//!
//! ```text
//! STATE_DIR/ledger.json   first seen, last used, by image key; lost: ages start anew
//! STATE_DIR/pins.json     patterns; lost: nothing is pinned by the operator
//! STATE_DIR/pins.lock     held while either file is written, and while the pins are changed, by whichever process
//! STATE_DIR/.NAME.new     a file in the making; may vanish, and is overwritten by the next
//! *.corrupt-SECONDS       a file that could not be read, set aside; may be deleted
//! ```
//!
//! Both files are replaced whole: written beside, synced, renamed. Unknown fields of newer versions are passed over.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::failpoint::Step;

/// A ledger of this size would list a quarter of a million images.
const FILE_SIZE_MAX: u64 = 64 << 20;
const LEDGER: &str = "ledger.json";
const PINS: &str = "pins.json";
const LOCK: &str = "pins.lock";

/// The ledger as it is on disk. Times are nanoseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LedgerFile {
    pub(super) version: u32,
    /// Since when images were watched without a long gap.
    pub(super) observed_since: Option<u64>,
    /// When the last pass was.
    pub(super) last_pass: Option<u64>,
    /// How many containers it saw.
    pub(super) containers: usize,
    pub(super) images: BTreeMap<String, LedgerLine>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LedgerLine {
    pub(super) first_seen: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_used: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PinsFile {
    version: u32,
    patterns: Vec<String>,
}

/// The directory both files are in.
#[derive(Clone, Debug)]
pub(super) struct StateDir {
    path: PathBuf,
    /// Its file system takes no writes: what is there is looked at, what comes is not kept, pins cannot change.
    is_read_only: bool,
}

impl StateDir {
    /// Makes the directory if need be.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        crate::records::create_folder(directory)?;
        Ok(Self { path: directory.to_owned(), is_read_only: false })
    }

    /// One on a file system that takes no writes; it need not be there.
    pub(super) fn open_read_only(directory: &Path) -> Self {
        Self { path: directory.to_owned(), is_read_only: true }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn read_ledger(&self) -> io::Result<LedgerFile> {
        read(&self.path.join(LEDGER), self.is_read_only)
    }

    pub(super) fn write_ledger(&self, ledger: &LedgerFile) -> io::Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        let _lock = self.lock()?;
        write(&self.path, LEDGER, &LedgerFile { version: 1, ..ledger.clone() })
    }

    pub(super) fn read_pins(&self) -> io::Result<Vec<String>> {
        read::<PinsFile>(&self.path.join(PINS), self.is_read_only).map(|file| file.patterns)
    }

    /// The caller holds the lock, under which it read what it changed.
    pub(super) fn write_pins(&self, patterns: Vec<String>, _lock: &File) -> io::Result<()> {
        write(&self.path, PINS, &PinsFile { version: 1, patterns })
    }

    /// Keeps others, in this process or not, from writing here until dropped.
    pub(super) fn lock(&self) -> io::Result<File> {
        if self.is_read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let file = File::options().create(true).truncate(false).write(true).open(self.path.join(LOCK))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(file)
    }
}

/// Nanoseconds since 1970; times outside 1970 to 2554 become the nearest that fits.
pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The time of [`nanos`].
pub(super) fn time(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// An absent file is an empty one; a damaged one is set aside.
pub(super) fn read<T: DeserializeOwned + Default>(path: &Path, is_read_only: bool) -> io::Result<T> {
    let mut text = Vec::new();
    match File::open(path) {
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
        if is_read_only {
            tracing::error!(path = %path.display(), error, "a damaged file is passed over");
            return Ok(T::default());
        }
        let aside = set_aside(path)?;
        tracing::error!(path = %path.display(), aside = %aside.display(), error, "set a damaged file aside; starting without");
        Ok(T::default())
    })
}

fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".corrupt-{}", nanos(SystemTime::now()) / 1_000_000_000));
    let aside = PathBuf::from(name);
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn write<T: Serialize>(directory: &Path, name: &str, content: &T) -> io::Result<()> {
    // One name for all, under the lock: what a crash leaves is overwritten and does not add up.
    let beside = directory.join(format!(".{name}.new"));
    let mut file = File::create(&beside)?;
    let written = serde_json::to_vec(content)
        .map_err(io::Error::other)
        .and_then(|text| file.write_all(&text))
        .inspect(|()| Step::StateWritten.reach())
        .and_then(|()| file.sync_all())
        .inspect(|()| Step::StateSynced.reach())
        .and_then(|()| fs::rename(&beside, directory.join(name)))
        .inspect(|()| Step::StateRenamed.reach())
        .and_then(|()| File::open(directory)?.sync_all())
        .inspect(|()| Step::StateDurable.reach());
    if written.is_err() {
        // Best effort: what is left of a full disk shall not stay behind.
        drop(fs::remove_file(&beside));
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_reads_back_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(&directory.path().join("new")).unwrap();
        let line = LedgerLine { first_seen: Some(1), last_used: Some(2) };
        let ledger = LedgerFile {
            version: 1,
            observed_since: Some(3),
            last_pass: Some(4),
            containers: 5,
            images: BTreeMap::from([("sha256:a,kata".to_owned(), line)]),
        };
        assert_eq!(state.read_ledger().unwrap(), LedgerFile::default());
        state.write_ledger(&ledger).unwrap();
        assert_eq!(state.read_ledger().unwrap(), ledger);
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_never_an_error() {
        for damage in ["", "{", "1", "{\"images\":{\"a\":{\"first_seen\":-1}}}", "\u{0}\u{0}"] {
            let directory = tempfile::tempdir().unwrap();
            let state = StateDir::open(directory.path()).unwrap();
            fs::write(directory.path().join(LEDGER), damage).unwrap();
            assert_eq!(state.read_ledger().unwrap(), LedgerFile::default(), "{damage:?}");
            let names: Vec<_> = fs::read_dir(directory.path())
                .unwrap()
                .map(|it| it.unwrap().file_name().into_string().unwrap())
                .collect();
            assert!(names.iter().all(|name| name.starts_with("ledger.json.corrupt-")), "{names:?}");
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
