//! The image that each name resolved to, with the time of the registry's answer.
//!
//! ```text
//! FILE    [{"name", "platform", "handler", "image", "verifiedAt"}]
//! ```
//!
//! If the file is missing or unreadable, no image is used during an outage until its registry answers again. To save
//! writes, times on disk may be older than in memory by a small share of the maximum age.

use std::{
    collections::HashMap,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    bounded_map::make_room,
    durable::{create_folder, read_at_most, replace_file},
    image::ImageId,
    lock::locked,
    text::file_time,
};

/// Above this limit the names with the oldest answers are dropped.
const NAMES_MAX: usize = 2048;
const FILE_LENGTH_MAX: u64 = 4 << 20;
const NAME_LENGTH_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Subject {
    /// Normalised, with tag or digest.
    pub(crate) name: String,
    /// Empty: the platform of this node.
    pub(crate) platform: String,
    pub(crate) handler: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NameLine {
    #[serde(flatten)]
    subject: Subject,
    image: String,
    verified_at: u64,
}

#[derive(Debug)]
pub(crate) struct ResolvedNames {
    path: Option<PathBuf>,
    lag_max: Duration,
    names: Mutex<KnownNames>,
    /// Locked during a write, so that an older list does not replace a newer list.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct KnownNames {
    by_subject: HashMap<Subject, (ImageId, SystemTime)>,
    /// When the file was written. `None`: the file has to be written.
    written_at: Option<SystemTime>,
}

impl ResolvedNames {
    pub(crate) fn open(path: Option<PathBuf>, lag_max: Duration) -> Self {
        let read = path.as_deref().map_or_else(|| Ok(HashMap::new()), read);
        let by_subject = read.unwrap_or_else(|error| {
            tracing::warn!(path = ?path, %error, "the names verified before do not read; they are forgotten");
            HashMap::new()
        });
        let names = Mutex::new(KnownNames { by_subject, written_at: None });
        Self { path, lag_max, names, writing: Mutex::default() }
    }

    pub(crate) fn get(&self, subject: &Subject) -> Option<(ImageId, SystemTime)> {
        locked(&self.names).by_subject.get(subject).cloned()
    }

    /// Stores an answer. Returns whether the file has to be written.
    pub(crate) fn put(&self, subject: Subject, image: &ImageId, now: SystemTime) -> bool {
        if subject.name.len() > NAME_LENGTH_MAX || subject.handler.len() > NAME_LENGTH_MAX {
            return false;
        }
        let mut names = locked(&self.names);
        make_room(&mut names.by_subject, &subject, NAMES_MAX, |(_, at)| *at);
        let before = names.by_subject.insert(subject, (image.clone(), now));
        // The file may still have the replaced entry. A changed or late entry is therefore written.
        let is_late = |at| now.duration_since(at).is_ok_and(|lag| lag > self.lag_max);
        if before.is_none_or(|(before, at)| before != *image || is_late(at)) {
            names.written_at = None;
        }
        // If the clock was set back, the times in the file are invalid.
        let is_old = names.written_at.is_none_or(|at| now.duration_since(at).map_or(true, |lag| lag > self.lag_max));
        is_old && self.path.is_some()
    }

    pub(crate) fn write(&self, now: SystemTime) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let _writing = locked(&self.writing);
        let lines: Vec<NameLine> = {
            let mut names = locked(&self.names);
            names.written_at = Some(now);
            names.by_subject.iter().map(line).collect()
        };
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = serde_json::to_vec(&lines)?;
        let written =
            create_folder(folder).and_then(|()| replace_file(path, &path.with_extension("new"), "state", &bytes));
        written.inspect_err(|_| locked(&self.names).written_at = None)
    }
}

fn line((subject, (image, at)): (&Subject, &(ImageId, SystemTime))) -> NameLine {
    let verified_at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    NameLine { subject: subject.clone(), image: image.to_string(), verified_at }
}

fn read(path: &Path) -> io::Result<HashMap<Subject, (ImageId, SystemTime)>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
        opened => opened?,
    };
    let lines: Vec<NameLine> = serde_json::from_slice(&read_at_most(file, FILE_LENGTH_MAX)?)?;
    let entry = |line: NameLine| Some((line.subject, (ImageId::new(line.image), file_time(line.verified_at)?)));
    Ok(lines.into_iter().take(NAMES_MAX).filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LAG: Duration = Duration::from_mins(1);

    fn subject(name: &str) -> Subject {
        Subject { name: name.into(), platform: String::new(), handler: String::new() }
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
            Subject { platform: "linux/arm64/v8".into(), ..subject("a:v1") },
            Subject { handler: "gvisor".into(), ..subject("a:v1") },
        ];
        assert!(names.put(subject("a:v1"), &id("a"), at(1_000)));
        for (number, other) in others.iter().enumerate() {
            assert_eq!(names.get(other), None);
            assert!(names.put(other.clone(), &id(&number.to_string()), at(2_000)));
        }
        names.write(at(2_000)).unwrap();
        let again = ResolvedNames::open(Some(path.clone()), LAG);
        assert_eq!(again.get(&subject("a:v1")), Some((id("a"), at(1_000))));
        assert_eq!(again.get(&others[1]), Some((id("1"), at(2_000))));
        assert_eq!(again.get(&subject("a:v2")), None);
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_name_is_written_when_it_is_new_moved_or_older_on_disk_than_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let names = ResolvedNames::open(Some(folder.path().join("names.json")), LAG);
        assert!(names.put(subject("a:v1"), &id("a"), at(1_000)));
        assert!(names.put(subject("a:v1"), &id("a"), at(1_001)), "it was not written yet");
        names.write(at(1_001)).unwrap();
        assert!(!names.put(subject("a:v1"), &id("a"), at(1_061)));
        assert_eq!(names.get(&subject("a:v1")).unwrap().1, at(1_061), "memory knows better than the disk");
        assert!(names.put(subject("a:v1"), &id("a"), at(1_062)));
        assert!(names.put(subject("a:v1"), &id("a"), at(500)), "the clock was put back");
        names.write(at(500)).unwrap();
        assert!(names.put(subject("a:v1"), &id("b"), at(501)), "the tag moved");
        names.write(at(501)).unwrap();
        assert!(names.put(subject("b:v1"), &id("b"), at(502)), "another name");
        names.write(at(570)).unwrap();
        assert!(names.put(subject("a:v1"), &id("b"), at(571)), "the new file has an old time");
        assert!(!ResolvedNames::open(None, LAG).put(subject("a:v1"), &id("a"), at(1)), "memory has no file");
    }

    #[test]
    fn what_does_not_read_is_forgotten_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.json");
        for text in ["", "{ torn", "{}", r#"[{"name":"a:v1","image":"sha256:00","verifiedAt":1}]"#] {
            fs::write(&path, text).unwrap();
            let names = ResolvedNames::open(Some(path.clone()), LAG);
            assert!(locked(&names.names).by_subject.is_empty(), "{text}");
            names.put(subject("a:v1"), &id("a"), at(1));
            names.write(at(2_000)).unwrap();
            assert_eq!(locked(&ResolvedNames::open(Some(path.clone()), LAG).names).by_subject.len(), 1);
        }
    }

    #[test]
    fn names_are_bounded_in_number_and_length_and_the_longest_unverified_goes() {
        let names = ResolvedNames::open(None, LAG);
        for number in 0..=NAMES_MAX {
            names.put(subject(&format!("a:v{number}")), &id("a"), at(number as u64));
        }
        let kept = locked(&names.names).by_subject.len();
        assert_eq!((kept, names.get(&subject("a:v0"))), (NAMES_MAX, None));
        names.put(subject(&"a".repeat(NAME_LENGTH_MAX + 1)), &id("a"), at(u64::from(u32::MAX)));
        assert!(names.get(&subject("a:v1")).is_some());
    }
}
