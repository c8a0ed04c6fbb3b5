//! Small files that survive a crash, in the kubelet's folder.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::failpoint::Step;

/// A full record has some hundred entries of some hundred bytes.
pub(crate) const FILE_LENGTH_MAX: u64 = 4 * 1024 * 1024;
pub(crate) const PREFIX: &str = "sha256-";
pub(crate) const UNFINISHED: &str = ".tmp";
/// A write takes milliseconds; an unfinished file older than this is the remains of a crash.
const UNFINISHED_AGE: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Counted once at open; the folder has one owner.
    files: AtomicUsize,
    /// The file system is read-only: reads work, a change is skipped and reported as success.
    is_read_only: bool,
    #[cfg(test)]
    faults: crate::records::tests::faults::Faults,
}

impl Folder {
    /// Creates the folder with owner-only access and removes files left by crashes, unless the file system is read-only.
    pub(crate) fn open(path: PathBuf, is_read_only: bool) -> io::Result<Self> {
        let folder = Self {
            path,
            files: AtomicUsize::default(),
            is_read_only,
            #[cfg(test)]
            faults: crate::records::tests::faults::Faults::of_this_thread(),
        };
        if !is_read_only {
            create_folder(&folder.path)?;
            folder.drop_unfinished()?;
        }
        folder.files.store(folder.names()?.len(), Ordering::Relaxed);
        Ok(folder)
    }

    pub(crate) fn count(&self) -> usize {
        self.files.load(Ordering::Relaxed)
    }

    fn drop_unfinished(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let is_unfinished = entry.file_name().as_encoded_bytes().ends_with(UNFINISHED.as_bytes());
            let age = || entry.metadata()?.modified()?.elapsed().map_err(io::Error::other);
            if is_unfinished && age().is_ok_and(|age| age > UNFINISHED_AGE) {
                // The next start retries a failed removal.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    pub(crate) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match File::open(self.path.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => read(file?).map(Some),
        }
    }

    pub(crate) fn read_all(&self) -> io::Result<Vec<(String, io::Result<Vec<u8>>)>> {
        Ok(self
            .names()?
            .into_iter()
            .map(|name| (name.clone(), File::open(self.path.join(name)).and_then(read)))
            .collect())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_read_only => return Ok(names),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with(PREFIX) && !name.ends_with(UNFINISHED) && !entry.file_type()?.is_dir() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Writes a temporary file, syncs, renames and syncs the folder: after a crash the file is the old or the new one.
    /// Called with the lock of the file.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        create_folder(&self.path)?;
        let (unfinished, finished) = (self.path.join(format!("{name}{UNFINISHED}")), self.path.join(name));
        let is_new = fs::symlink_metadata(&finished).is_err();
        let written = self.write_synced(&unfinished, content).and_then(|()| {
            Step::RecordSynced.reach();
            self.effect()?;
            fs::rename(&unfinished, finished)
        });
        if let Err(error) = written {
            // The next write overwrites the temporary file, so a failed removal changes nothing.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        if is_new {
            self.files.fetch_add(1, Ordering::Relaxed);
        }
        Step::RecordRenamed.reach();
        self.effect()?;
        self.sync(&File::open(&self.path)?)?;
        Step::RecordDurable.reach();
        Ok(())
    }

    /// A power cut may restore the file until [`Self::sync_removals`]. Without an error the file is absent.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        self.effect()?;
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed?,
        }
        self.files.fetch_sub(1, Ordering::Relaxed);
        Step::RecordRemoved.reach();
        Ok(())
    }

    /// Makes the removals until now durable, by one sync of the folder.
    pub(crate) fn sync_removals(&self) -> io::Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        self.effect()?;
        self.sync(&File::open(&self.path)?)
    }

    fn write_synced(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.effect()?;
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(content)?;
        Step::RecordWritten.reach();
        self.sync(&file)
    }

    /// Whether a change waits for a disk; with injected faults it does not, which keeps tests deterministic.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "a test's folder knows which disk fails"))]
    pub(crate) fn waits(&self) -> bool {
        #[cfg(test)]
        if self.faults.are_armed() {
            return false;
        }
        true
    }

    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "a test's folder knows which disk fails"))]
    fn sync(&self, file: &File) -> io::Result<()> {
        #[cfg(test)]
        if self.faults.are_armed() {
            self.faults.synced();
            return Ok(());
        }
        file.sync_all()
    }

    /// Injection point of the next disk change: a test can fail it or end the process before it.
    #[cfg_attr(
        not(test),
        expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "a test's folder knows which disk fails")
    )]
    fn effect(&self) -> io::Result<()> {
        #[cfg(test)]
        self.faults.effect()?;
        Ok(())
    }
}

/// Creates a folder and its missing parents with owner-only access. Durable on return.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    let made: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    for parent in made.into_iter().filter_map(Path::parent) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(FILE_LENGTH_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > FILE_LENGTH_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than a record can be"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::records::faults::Faults;

    #[test]
    fn what_a_crash_left_unfinished_goes_with_a_later_start() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        drop(Folder::open(path.clone(), false).unwrap());
        let old = File::create(path.join("sha256-old.tmp")).unwrap();
        old.set_modified(SystemTime::now() - 2 * UNFINISHED_AGE).unwrap();
        for name in ["sha256-young.tmp", "sha256-whole"] {
            File::create(path.join(name)).unwrap();
        }
        let folder = Folder::open(path.clone(), false).unwrap();
        let mut left: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["sha256-whole", "sha256-young.tmp"]);
        assert_eq!(folder.read_all().unwrap().len(), 1);
    }

    #[test]
    fn a_record_is_synced_before_its_rename_and_its_folder_after_it() {
        let (root, faults) = (tempfile::tempdir().unwrap(), Faults::arm());
        let folder = Folder::open(root.path().join("pulled"), false).unwrap();
        folder.write("sha256-a", b"kept").unwrap();
        Faults::disarm();
        // Changes: the file, its rename, its folder.
        assert_eq!((faults.effects(), faults.syncs()), (3, vec![1, 3]), "else a power cut takes the record");
    }

    #[test]
    fn a_folder_that_takes_no_writes_is_read_and_never_touched() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pulled");
        assert_eq!(Folder::open(path.clone(), true).unwrap().count(), 0, "it need not be there");
        assert!(!path.exists());
        Folder::open(path.clone(), false).unwrap().write("sha256-a", b"kept").unwrap();
        let folder = Folder::open(path.clone(), true).unwrap();
        assert_eq!((folder.count(), folder.read("sha256-a").unwrap()), (1, Some(b"kept".to_vec())));
        folder.write("sha256-b", b"new").unwrap();
        folder.remove("sha256-a").unwrap();
        let names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["sha256-a"]);
    }

    #[test]
    fn a_record_that_cannot_be_removed_is_no_record_that_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path().to_owned(), false).unwrap();
        folder.write("sha256-a", b"{}").unwrap();
        // A folder of that name cannot be removed as a file.
        fs::create_dir(root.path().join("sha256-b")).unwrap();
        folder.remove("sha256-b").unwrap_err();
        folder.remove("sha256-absent").unwrap();
        assert_eq!(folder.count(), 1);
    }

    #[test]
    fn records_that_cannot_be_listed_are_no_empty_list() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("records");
        let folder = Folder::open(path.clone(), false).unwrap();
        fs::remove_dir(&path).unwrap();
        assert_eq!(folder.read_all().unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "no folder").unwrap();
        folder.read_all().unwrap_err();
    }

    #[test]
    fn the_longest_record_is_read_and_one_byte_more_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("sha256-a");
        let file = File::create(&path).unwrap();
        file.set_len(FILE_LENGTH_MAX).unwrap();
        assert_eq!(read(File::open(&path).unwrap()).unwrap().len() as u64, FILE_LENGTH_MAX);
        file.set_len(FILE_LENGTH_MAX + 1).unwrap();
        assert_eq!(read(File::open(&path).unwrap()).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
