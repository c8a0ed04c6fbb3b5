//! Reads the pull records of the node's kubelet, and never changes them. A regular file for an image id proves that the
//! kubelet pulled the image, even if the file has a later format or a crash cut it off. Only a readable record has a
//! time. Symlinks, pipes and records about another image are skipped, as in the kubelet.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use rustix::fs::OFlags;

use super::{
    PulledRecord,
    file::{PullIntent, RecordFile as _, file_name},
    folder::{PREFIX, RecordFolder, UNFINISHED, read},
};
use crate::{durable::MachineDisk, image::ImageId};

/// The maximum number of files read per folder. A kubelet has one file for each image that it pulled.
const FILES_MAX: usize = 50_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletRecords {
    pulled: PathBuf,
}

#[derive(Debug, Default)]
pub struct KubeletRecordList {
    pub dated: Vec<(ImageId, SystemTime)>,
    /// The skipped files, each with the reason: the record is unreadable or is about another image.
    pub passed_over: Vec<(String, io::Error)>,
}

impl KubeletRecords {
    /// The records below this data root. The data root may be missing.
    pub fn below(root: &Path) -> Self {
        Self { pulled: root.join("image_manager").join("pulled") }
    }

    /// Whether the kubelet has a record of an image. Fails if the record is unreadable.
    pub fn include(&self, id: &ImageId) -> io::Result<bool> {
        let record = self.read(&file_name(id.as_str()))?;
        Ok(!id.as_str().is_empty() && record.is_some_and(|record| record.image_ref == id.as_str()))
    }

    /// The intents of pulls that the kubelet began and has not ended. Fails if an intent is unreadable.
    pub(super) fn intents(&self) -> io::Result<Vec<Arc<PullIntent>>> {
        let folder = RecordFolder::open(self.pulled.with_file_name("pulling"), true, Arc::new(MachineDisk))?;
        let (intents, _) = folder.list();
        match folder.unreadable().first() {
            None => Ok(intents),
            Some((file, error)) => Err(io::Error::other(format!("{file}: {error}"))),
        }
    }

    pub fn all(&self) -> io::Result<KubeletRecordList> {
        let mut list = KubeletRecordList::default();
        let entries = match fs::read_dir(&self.pulled) {
            Err(error) if is_absent(&error) => return Ok(list),
            entries => entries?,
        };
        for entry in entries.take(FILES_MAX) {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            if !name.starts_with(PREFIX) || name.ends_with(UNFINISHED) {
                continue;
            }
            match self.read(&name) {
                Ok(Some(record)) if file_name(&record.image_ref) == name => {
                    list.dated.extend(record.updated.map(|updated| (ImageId::new(&record.image_ref), updated)));
                }
                Ok(Some(record)) => {
                    let other = io::Error::other(format!("it is about `{}`", record.image_ref));
                    list.passed_over.push((name, other));
                }
                Ok(None) => {}
                Err(error) => list.passed_over.push((name, error)),
            }
        }
        Ok(list)
    }

    /// Reads the record in a file. `None`: there is no regular file with this name.
    fn read(&self, name: &str) -> io::Result<Option<PulledRecord>> {
        // Without `NONBLOCK`, a pipe could block the open. A symlink does not prove that the kubelet wrote the file.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(self.pulled.join(name)) {
            Err(error) if is_absent(&error) => return Ok(None),
            file => file?,
        };
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        PulledRecord::decode(&read(file)?).map(|(content, _)| Some(content)).map_err(io::Error::other)
    }
}

/// Whether the error means that the file is missing, a symlink or a socket.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
        || error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, time::Duration};

    use super::*;
    use crate::records::folder::FILE_LENGTH_MAX;

    const GOOD: &str = "sha256:1";

    fn record(image: &str) -> Vec<u8> {
        let updated = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        PulledRecord { image_ref: image.to_owned(), updated, ..PulledRecord::default() }.encode()
    }

    #[test]
    fn a_plain_file_of_its_name_proves_that_an_image_was_pulled_and_nothing_else_does() {
        let root = tempfile::tempdir().unwrap();
        let records = KubeletRecords::below(root.path());
        assert!(!records.include(&ImageId::new(GOOD)).unwrap());
        assert!(records.all().unwrap().dated.is_empty(), "no folder is no failure");
        let folder = root.path().join("image_manager/pulled");
        fs::create_dir_all(&folder).unwrap();
        let place = |image: &str| folder.join(file_name(image));
        fs::write(place(GOOD), record(GOOD)).unwrap();
        let later = String::from_utf8(record("sha256:2")).unwrap().replace("v1beta1", "v2");
        fs::write(place("sha256:2"), later).unwrap();
        fs::write(place("sha256:3"), "").unwrap();
        fs::write(place("sha256:4"), record(GOOD)).unwrap();
        symlink(place(GOOD), place("sha256:5")).unwrap();
        fs::create_dir(place("sha256:6")).unwrap();
        fs::write(place("sha256:7"), vec![b' '; usize::try_from(FILE_LENGTH_MAX).unwrap() + 1]).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, place("sha256:8"), rustix::fs::Mode::RUSR).unwrap();
        fs::write(folder.join("README"), "not a record").unwrap();
        fs::write(folder.join(format!("{}.tmp", file_name("sha256:9"))), record("sha256:9")).unwrap();

        let of = |image: &str| match records.include(&ImageId::new(image)) {
            Ok(false) => "nothing",
            Ok(true) => "pulled",
            Err(_) => "unreadable",
        };
        let found: Vec<&str> = (1..10).map(|number| of(&format!("sha256:{number}"))).collect();
        let (no, bad) = ("nothing", "unreadable");
        assert_eq!(found, ["pulled", bad, bad, no, no, no, bad, no, no]);
        assert_eq!(of(""), "nothing");
        let all = records.all().unwrap();
        let dated: Vec<&str> = all.dated.iter().map(|(id, _)| id.as_str()).collect();
        let mut passed: Vec<&str> = all.passed_over.iter().map(|(name, _)| name.as_str()).collect();
        passed.sort_unstable();
        let mut expected = ["sha256:2", "sha256:3", "sha256:4", "sha256:7"].map(file_name);
        expected.sort_unstable();
        assert_eq!((dated, passed), (vec![GOOD], expected.iter().map(String::as_str).collect()));

        // The longest file that is read, to its last byte.
        let good = record(GOOD);
        let good = good.trim_ascii_end();
        let mut longest = vec![b' '; usize::try_from(FILE_LENGTH_MAX).unwrap() - good.len()];
        longest.extend(good);
        fs::write(place(GOOD), longest).unwrap();
        assert_eq!(of(GOOD), "pulled");
    }

    #[test]
    fn a_folder_that_cannot_be_asked_for_is_a_failure_and_no_lack_of_records() {
        let records = KubeletRecords::below(Path::new("no\0path"));
        records.include(&ImageId::new(GOOD)).unwrap_err();
        records.all().unwrap_err();
    }
}
