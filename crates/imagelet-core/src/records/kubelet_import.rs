//! What the kubelet of the node has recorded: read, and never changed.
//!
//! A plain file named by an image's id is proof enough that it pulled the image, whatever a later version writes into it
//! or a crash left of it; only a record that can be read says since when. What says it is about another image, and
//! what is no plain file, the manager itself would pass over, too.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::fs::OFlags;

use super::{
    PulledRecord,
    cached_dir::disk::{FILE_LENGTH_MAX, PREFIX, UNFINISHED},
    file::{RecordFile as _, file_name},
};
use crate::image::ImageId;

/// Most files of one folder that are looked at; a kubelet has one for each image that it pulled.
const FILES_MAX: usize = 50_000;

/// Another manager's records of pulls, below its data root.
#[derive(Clone, Debug)]
pub struct KubeletRecords {
    pulled: PathBuf,
}

/// What they say of an image.
#[derive(Debug)]
pub enum KubeletEvidence {
    /// Nothing: it did not pull it.
    Nothing,
    /// It pulled it; since when it is recorded, where the record says so.
    Pulled(Option<SystemTime>),
    /// It pulled it, and what it wrote of it cannot be read.
    Unreadable(io::Error),
}

/// All they say.
#[derive(Debug, Default)]
pub struct KubeletRecordList {
    /// Images it pulled, and since when each is recorded.
    pub dated: Vec<(ImageId, SystemTime)>,
    /// Records that cannot be read, or that say they are about another image: by file, and why.
    pub passed_over: Vec<(String, io::Error)>,
}

impl KubeletRecords {
    /// Those below this data root; it need not be there.
    pub fn below(root: &Path) -> Self {
        Self { pulled: root.join("image_manager").join("pulled") }
    }

    /// What they say of one image.
    pub fn of(&self, id: &ImageId) -> KubeletEvidence {
        if id.as_str().is_empty() {
            return KubeletEvidence::Nothing;
        }
        match self.read(&file_name(id.as_str())) {
            Ok(None) => KubeletEvidence::Nothing,
            Ok(Some(record)) if record.image_ref == id.as_str() => KubeletEvidence::Pulled(record.updated),
            Ok(Some(_)) => KubeletEvidence::Nothing,
            Err(error) => KubeletEvidence::Unreadable(error),
        }
    }

    /// All they say, as far as it can be read.
    ///
    /// # Errors
    /// When the folder is there and cannot be read.
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

    /// `None` where there is no plain file of this name.
    fn read(&self, name: &str) -> io::Result<Option<PulledRecord>> {
        // A pipe must not block, and a link says nothing of its origin.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(self.pulled.join(name)) {
            Err(error) if is_absent(&error) => return Ok(None),
            file => file?,
        };
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut content = Vec::new();
        file.take(FILE_LENGTH_MAX + 1).read_to_end(&mut content)?;
        if content.len() as u64 > FILE_LENGTH_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        PulledRecord::decode(&content).map(|decoded| Some(decoded.content)).map_err(io::Error::other)
    }
}

/// Not there, or a link.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
        || error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, time::Duration};

    use super::*;

    const GOOD: &str = "sha256:1";

    fn record(image: &str) -> Vec<u8> {
        let updated = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        PulledRecord { image_ref: image.to_owned(), updated, ..PulledRecord::default() }.encode()
    }

    #[test]
    fn a_plain_file_of_its_name_proves_that_an_image_was_pulled_and_nothing_else_does() {
        let root = tempfile::tempdir().unwrap();
        let records = KubeletRecords::below(root.path());
        assert!(matches!(records.of(&ImageId::new(GOOD)), KubeletEvidence::Nothing));
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

        let of = |image: &str| match records.of(&ImageId::new(image)) {
            KubeletEvidence::Nothing => "nothing",
            KubeletEvidence::Pulled(Some(_)) => "dated",
            KubeletEvidence::Pulled(None) => "pulled",
            KubeletEvidence::Unreadable(_) => "unreadable",
        };
        let told: Vec<&str> = (1..10).map(|number| of(&format!("sha256:{number}"))).collect();
        let (no, bad) = ("nothing", "unreadable");
        assert_eq!(told, ["dated", bad, bad, no, no, no, bad, no, no]);
        assert_eq!(of(""), "nothing");
        let all = records.all().unwrap();
        let dated: Vec<&str> = all.dated.iter().map(|(id, _)| id.as_str()).collect();
        let mut passed: Vec<&str> = all.passed_over.iter().map(|(name, _)| name.as_str()).collect();
        passed.sort_unstable();
        let mut expected = ["sha256:2", "sha256:3", "sha256:4", "sha256:7"].map(file_name);
        expected.sort_unstable();
        assert_eq!((dated, passed), (vec![GOOD], expected.iter().map(String::as_str).collect()));
    }
}
