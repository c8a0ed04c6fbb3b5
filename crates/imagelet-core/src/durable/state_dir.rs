//! The state directory of the inventory: usage history, leases and pins, which outlive a restart.
//!
//! ```text
//! STATE_DIR/ledger        the usage history, described in `inventory/ledger`; lost: ages and histories start again
//! STATE_DIR/leases.json   the last request of each leased image; lost: images of waiting pods may be removed
//! STATE_DIR/pins.json     patterns; lost: the pins of the operator
//! STATE_DIR/set-pins.json pins of `ImageSet` objects; lost: their pins, until the agent knows them again
//! STATE_DIR/pins.lock     locked while any process writes a file or changes the pins
//! STATE_DIR/.NAME.new     the next content of a file; a crash may leave it
//! *.corrupt-SECONDS       a damaged file, renamed; may be deleted
//! ```
//!
//! `lost` is followed by the consequence of a lost file. Unknown fields of newer versions are ignored.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use serde_json::error::Category;

use super::{create_folder, read_at_most, replace_file};
use crate::image::ByteSize;

/// The maximum size of a file in bytes. The ledger of about 250,000 images has this size.
const FILE_SIZE_MAX: u64 = 64 << 20;
const PINS: &str = "pins.json";
const LOCK: &str = "pins.lock";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PinsFile {
    version: u32,
    patterns: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct StateDir {
    pub(crate) path: PathBuf,
    /// The file system is read-only: existing files are read, no file is written, and pins cannot change.
    pub(crate) is_read_only: bool,
}

impl StateDir {
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        create_folder(directory)?;
        Ok(Self { path: directory.to_owned(), is_read_only: false })
    }

    pub(crate) fn open_read_only(directory: &Path) -> Self {
        Self { path: directory.to_owned(), is_read_only: true }
    }

    pub(crate) fn read_pins(&self) -> io::Result<Vec<String>> {
        let parse = |text: &[u8]| serde_json::from_slice(text).map_err(|error| misread(&error));
        self.read(PINS, parse).map(|file: PinsFile| file.patterns)
    }

    /// Replaces the patterns. `_lock`: the caller has held the lock since it read the patterns, so no change is lost.
    pub(crate) fn write_pins(&self, patterns: Vec<String>, _lock: &File) -> io::Result<()> {
        let text = serde_json::to_vec(&PinsFile { version: 1, patterns }).map_err(io::Error::other)?;
        self.replace(PINS, &text)
    }

    /// Waits for the lock. Until the returned file is dropped, no other thread or process can take the lock.
    pub(crate) fn lock(&self) -> io::Result<File> {
        if self.is_read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let file = File::options().create(true).truncate(false).write(true).open(self.path.join(LOCK))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(file)
    }

    pub(crate) fn content(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match File::open(self.path.join(name)) {
            Ok(file) => read_at_most(file, FILE_SIZE_MAX).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a file. An absent or damaged file gives the default. Renames a damaged file to `NAME.corrupt-SECONDS`.
    pub(crate) fn read<T: Default>(&self, name: &str, parse: impl FnOnce(&[u8]) -> Result<T, String>) -> io::Result<T> {
        let path = self.path.join(name);
        let parsed = match self.content(name) {
            Ok(content) => content.map_or_else(|| Ok(T::default()), |content| parse(&content)),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Err(error.to_string()),
            Err(error) => return Err(error),
        };
        parsed.or_else(|error| {
            if self.is_read_only {
                tracing::error!(path = %path.display(), error, "ignored a damaged file");
                return Ok(T::default());
            }
            let mut aside = path.clone().into_os_string();
            aside.push(format!(".corrupt-{}", nanos(SystemTime::now()) / 1_000_000_000));
            fs::rename(&path, &aside)?;
            let aside = Path::new(&aside).display();
            tracing::error!(path = %path.display(), %aside, error, "set a damaged file aside; starting without");
            Ok(T::default())
        })
    }

    /// Replaces a file. The change is durable on return. The caller holds the lock.
    pub(crate) fn replace(&self, name: &str, text: &[u8]) -> io::Result<()> {
        if text.len() as u64 > FILE_SIZE_MAX {
            let (size, limit) = (ByteSize(text.len() as u64), ByteSize(FILE_SIZE_MAX));
            let message = format!("`{name}` would have {size}; the limit is {limit}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        // All writes of a file use this name, so the next write overwrites the file that a crash left.
        let beside = self.path.join(format!(".{name}.new"));
        replace_file(&self.path.join(name), &beside, "state", text)
    }
}

/// The kind and position of a JSON error. The parser's message is omitted, because it may repeat any text of the file.
pub(crate) fn misread(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        Category::Data => "a value does not fit",
        Category::Eof => "it ends early",
        Category::Syntax | Category::Io => "it is no JSON",
    };
    format!("{what} at line {}, column {}", error.line(), error.column())
}

/// Nanoseconds since 1970, limited to the years 1970 to 2554.
pub(crate) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn time(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
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
