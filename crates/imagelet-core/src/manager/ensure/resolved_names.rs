//! The image that each name resolved to, with the time of the registry's answer.
//!
//! ```text
//! FILE    {"version": 1, "names": [{"name", "platform"?, "handler"?, "image", "verifiedAt"}]}
//! ```
//!
//! One file, replaced by temporary file, sync and rename. A missing or unreadable file is empty: no image is used
//! during an outage before its registry has answered again. Times on disk lag behind memory by a small share of the
//! bound, which saves writes; a restart makes images older, never younger.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    bounded_map::make_room,
    durable::{create_folder, replace_file},
    image::{ImageId, Platform},
    text::file_time,
};

/// Beyond this the names with the oldest answer are dropped.
const NAMES_MAX: usize = 2048;
/// So many names of a kilobyte each.
const FILE_LENGTH_MAX: u64 = 4 << 20;
/// Longer names and handlers are not stored.
const NAME_LENGTH_MAX: usize = 1024;
const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Subject {
    /// Normalised, with tag or digest.
    pub(crate) name: String,
    /// `None`: the platform of this node.
    pub(crate) platform: Option<Platform>,
    pub(crate) handler: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) image: ImageId,
    pub(crate) at: SystemTime,
    /// The time in the file; `None`: not in the file.
    pub(crate) on_disk: Option<SystemTime>,
}

#[derive(Debug)]
pub(crate) struct ResolvedNames {
    /// `None`: memory only.
    path: Option<PathBuf>,
    lag_max: Duration,
    names: Mutex<HashMap<Subject, Resolved>>,
    /// Keeps an older file from replacing a newer one.
    writing: Mutex<()>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Document {
    version: u32,
    names: Vec<Line>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    platform: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    handler: String,
    image: String,
    verified_at: u64,
}

impl ResolvedNames {
    pub(crate) fn open(path: Option<PathBuf>, lag_max: Duration) -> Self {
        let read = path.as_deref().map_or_else(|| Ok(HashMap::new()), read);
        let names = read.unwrap_or_else(|error| {
            tracing::warn!(path = ?path, %error, "the names verified before do not read; they are forgotten");
            HashMap::new()
        });
        Self { path, lag_max, names: Mutex::new(names), writing: Mutex::default() }
    }

    pub(crate) fn get(&self, subject: &Subject) -> Option<Resolved> {
        self.lock().get(subject).cloned()
    }

    /// Stores an answer. Returns whether the file has to be written.
    pub(crate) fn put(&self, subject: Subject, image: ImageId, now: SystemTime) -> bool {
        if subject.name.len() > NAME_LENGTH_MAX || subject.handler.len() > NAME_LENGTH_MAX {
            return false;
        }
        let mut names = self.lock();
        let known = names.get(&subject).filter(|entry| entry.image == image);
        let on_disk = known.and_then(|entry| entry.on_disk);
        // A clock that was set back invalidates the file's time.
        let is_old = on_disk.is_none_or(|at| now.duration_since(at).map_or(true, |lag| lag > self.lag_max));
        make_room(&mut names, &subject, NAMES_MAX, |entry| entry.at);
        names.insert(subject, Resolved { image, at: now, on_disk });
        is_old && self.path.is_some()
    }

    pub(crate) fn write(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let names = self.lock().clone();
        let document = Document { version: VERSION, names: names.iter().filter_map(line).collect() };
        create_folder(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        replace_file(path, &path.with_extension("new"), "state", &serde_json::to_vec(&document)?)?;
        let mut kept = self.lock();
        for (subject, written) in names {
            if let Some(entry) = kept.get_mut(&subject)
                && entry.image == written.image
            {
                entry.on_disk = Some(written.at);
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Subject, Resolved>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn line((subject, entry): (&Subject, &Resolved)) -> Option<Line> {
    Some(Line {
        name: subject.name.clone(),
        platform: subject.platform.as_ref().map(ToString::to_string),
        handler: subject.handler.clone(),
        image: entry.image.to_string(),
        verified_at: entry.at.duration_since(UNIX_EPOCH).ok()?.as_secs(),
    })
}

fn read(path: &Path) -> io::Result<HashMap<Subject, Resolved>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_LENGTH_MAX + 1).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
        Err(error) => return Err(error),
    };
    if bytes.len() as u64 > FILE_LENGTH_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let document: Document = serde_json::from_slice(&bytes)?;
    if document.version != VERSION {
        return Err(io::Error::other(format!("its version is {}, not {VERSION}", document.version)));
    }
    let entry = |line: Line| {
        let at = file_time(line.verified_at)?;
        let platform = line.platform.map(|text| text.parse()).transpose().ok()?;
        let subject = Subject { name: line.name, platform, handler: line.handler };
        Some((subject, Resolved { image: ImageId::new(line.image), at, on_disk: Some(at) }))
    };
    Ok(document.names.into_iter().take(NAMES_MAX).filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LAG: Duration = Duration::from_mins(1);

    fn subject(name: &str) -> Subject {
        Subject { name: name.into(), platform: None, handler: String::new() }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn id(name: &str) -> ImageId {
        ImageId::new(crate::image::Digest::of(name.as_bytes()).as_str())
    }

    #[test]
    fn what_was_written_is_there_after_a_restart_with_machine_and_handler_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/verified-names.json");
        let names = ResolvedNames::open(Some(path.clone()), LAG);
        let others = [
            Subject { platform: Some("linux/arm64/v8".parse().unwrap()), ..subject("a:v1") },
            Subject { handler: "gvisor".into(), ..subject("a:v1") },
        ];
        assert!(names.put(subject("a:v1"), id("a"), at(1_000)));
        for (number, other) in others.iter().enumerate() {
            assert_eq!(names.get(other), None);
            assert!(names.put(other.clone(), id(&number.to_string()), at(2_000)));
        }
        names.write().unwrap();
        let again = ResolvedNames::open(Some(path.clone()), LAG);
        assert_eq!(
            again.get(&subject("a:v1")),
            Some(Resolved { image: id("a"), at: at(1_000), on_disk: Some(at(1_000)) })
        );
        assert_eq!(again.get(&others[1]), Some(Resolved { image: id("1"), at: at(2_000), on_disk: Some(at(2_000)) }));
        assert_eq!(again.get(&subject("a:v2")), None);
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_name_is_written_when_it_is_new_moved_or_older_on_disk_than_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let names = ResolvedNames::open(Some(folder.path().join("names.json")), LAG);
        assert!(names.put(subject("a:v1"), id("a"), at(1_000)));
        assert!(names.put(subject("a:v1"), id("a"), at(1_001)), "it was not written yet");
        names.write().unwrap();
        assert!(!names.put(subject("a:v1"), id("a"), at(1_061)));
        assert_eq!(names.get(&subject("a:v1")).unwrap().at, at(1_061), "memory knows better than the disk");
        assert!(names.put(subject("a:v1"), id("a"), at(1_062)));
        assert!(names.put(subject("a:v1"), id("a"), at(500)), "the clock was put back");
        names.write().unwrap();
        assert!(names.put(subject("a:v1"), id("b"), at(501)), "the tag moved");
        assert!(!ResolvedNames::open(None, LAG).put(subject("a:v1"), id("a"), at(1)), "memory has no file");
    }

    #[test]
    fn what_does_not_read_is_forgotten_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.json");
        let line = r#"{"name":"a:v1","image":"sha256:00","verifiedAt":1}"#;
        for text in ["", "{ torn", r#"{"version":2,"names":[]}"#, &format!(r#"{{"version":2,"names":[{line}]}}"#)] {
            fs::write(&path, text).unwrap();
            let names = ResolvedNames::open(Some(path.clone()), LAG);
            assert!(names.lock().is_empty(), "{text}");
            names.put(subject("a:v1"), id("a"), at(1));
            names.write().unwrap();
            assert_eq!(ResolvedNames::open(Some(path.clone()), LAG).lock().len(), 1);
        }
    }

    #[test]
    fn names_are_bounded_in_number_and_length_and_the_longest_unverified_goes() {
        let names = ResolvedNames::open(None, LAG);
        for number in 0..=NAMES_MAX {
            names.put(subject(&format!("a:v{number}")), id("a"), at(number as u64));
        }
        let kept = names.lock().len();
        assert_eq!((kept, names.get(&subject("a:v0"))), (NAMES_MAX, None));
        names.put(subject(&"a".repeat(NAME_LENGTH_MAX + 1)), id("a"), at(u64::from(u32::MAX)));
        assert!(names.get(&subject("a:v1")).is_some());
    }
}
