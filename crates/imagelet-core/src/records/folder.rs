//! One folder of records of the same kind, in the kubelet's format. All records are also in memory.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::file::{RecordFile, file_name};
use crate::{
    durable::{Disk, MachineDisk, create_folder, read_at_most, replace_file_on, sync_folder_on},
    failpoint,
    lock::locked,
};

/// The maximum length of a file. The largest record has some hundred entries of some hundred bytes each.
pub(super) const FILE_LENGTH_MAX: u64 = 4 * 1024 * 1024;
pub(super) const PREFIX: &str = "sha256-";
pub(super) const UNFINISHED: &str = ".tmp";
/// A temporary file that is older than this is left from a crash: a write takes milliseconds.
const UNFINISHED_AGE: Duration = Duration::from_mins(1);

type Files<T> = HashMap<String, Result<Arc<T>, Arc<io::Error>>>;

/// The records of one folder. A change is written to the disk, then to memory. [`Self::find`] reads only memory.
#[derive(Debug)]
pub(super) struct RecordFolder<T> {
    /// `None`: the records are only in memory.
    path: Option<PathBuf>,
    /// `true`: changes are only in memory.
    is_read_only: bool,
    disk: Arc<dyn Disk>,
    /// Locked during each change and the decision that leads to it.
    turn: Mutex<()>,
    /// File name → record, or the error if the file cannot be read. Locked for moments, never during disk I/O.
    files: Mutex<Files<T>>,
}

impl<T: RecordFile> RecordFolder<T> {
    /// Reads a folder. If changes are allowed, creates the folder with access only for its owner, removes temporary
    /// files that a crash left, and rewrites files of an older version.
    pub(super) fn open(path: PathBuf, is_read_only: bool, disk: Arc<dyn Disk>) -> io::Result<Self> {
        if !is_read_only {
            create_folder(&path)?;
            drop_unfinished(&path)?;
        }
        let names = match names(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_read_only => Vec::new(),
            names => names?,
        };
        let folder = Self { path: Some(path), is_read_only, disk, ..Self::in_memory() };
        for name in names {
            let file = folder.read(&name);
            if let Ok((content, true)) = &file {
                folder.rewrite(&name, content);
            }
            folder.files().insert(name, file.map(|(content, _)| Arc::new(content)).map_err(Arc::new));
        }
        Ok(folder)
    }

    pub(super) fn in_memory() -> Self {
        let (turn, files) = (Mutex::default(), Mutex::default());
        Self { path: None, is_read_only: false, disk: Arc::new(MachineDisk), turn, files }
    }

    pub(super) fn takes_time(&self) -> bool {
        self.path.is_some() && self.disk.takes_time()
    }

    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        locked(&self.turn)
    }

    pub(super) fn find(&self, key: &str) -> Result<Option<Arc<T>>, Arc<io::Error>> {
        let found = self.files().get(&file_name(key)).cloned().transpose()?;
        // A file with the record of another key does not count as a record of this key.
        Ok(found.filter(|found| found.key() == key))
    }

    pub(super) fn find_again(&self, key: &str) -> Result<Option<Arc<T>>, Arc<io::Error>> {
        self.find(key).or_else(|_| {
            self.read_again(&file_name(key));
            self.find(key)
        })
    }

    pub(super) fn any(&self, mut wanted: impl FnMut(&T) -> bool) -> bool {
        self.files().values().flatten().any(|record| wanted(record))
    }

    /// All records, and an error for each unreadable file. Unreadable files are read again: they may be repaired.
    pub(super) fn list(&self) -> (Vec<Arc<T>>, Vec<Arc<io::Error>>) {
        let failures = self.unreadable().iter().filter_map(|(name, _)| self.read_again(name)).collect();
        (self.files().values().flatten().cloned().collect(), failures)
    }

    pub(super) fn unreadable(&self) -> Vec<(String, Arc<io::Error>)> {
        let broken =
            |(name, file): (&String, &Result<_, Arc<io::Error>>)| Some((name.clone(), file.as_ref().err()?.clone()));
        self.files().iter().filter_map(broken).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.files().len()
    }

    /// After a crash, the file has the old content or the new content.
    pub(super) fn write(&self, record: T) -> io::Result<()> {
        let name = file_name(record.key());
        if let Some(path) = self.writable() {
            create_folder(path)?;
            self.replace(path, &name, &record.encode())?;
        }
        self.files().insert(name, Ok(Arc::new(record)));
        Ok(())
    }

    /// Removes a record, if it exists. Until [`Self::sync_removals`], a power failure may restore the file.
    pub(super) fn remove(&self, key: &str) -> io::Result<()> {
        let name = file_name(key);
        if let Some(path) = self.writable() {
            self.disk.change()?;
            match fs::remove_file(path.join(&name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => {
                    removed?;
                    failpoint!("record.removed");
                }
            }
        }
        self.files().remove(&name);
        Ok(())
    }

    /// Makes all removals so far durable, with one sync of the folder.
    pub(super) fn sync_removals(&self) -> io::Result<()> {
        self.writable().map_or(Ok(()), |path| sync_folder_on(&*self.disk, path))
    }

    fn writable(&self) -> Option<&Path> {
        self.path.as_deref().filter(|_| !self.is_read_only)
    }

    fn replace(&self, path: &Path, name: &str, content: &[u8]) -> io::Result<()> {
        let beside = path.join(format!("{name}{UNFINISHED}"));
        replace_file_on(&*self.disk, &path.join(name), &beside, "record", |file| file.write_all(content))
    }

    fn read(&self, name: &str) -> io::Result<(T, bool)> {
        let path = self.path.as_deref().unwrap_or(Path::new(""));
        T::decode(&read(File::open(path.join(name))?)?).map_err(io::Error::other)
    }

    fn rewrite(&self, name: &str, content: &T) {
        if let Some(path) = self.writable()
            && let Err(error) = self.replace(path, name, &content.encode())
        {
            tracing::warn!(file = name, %error, "a pull record of an older version could not be rewritten");
        }
    }

    /// Reads an unreadable file again. If a record replaced the file in the meantime, this record stays in memory.
    fn read_again(&self, name: &str) -> Option<Arc<io::Error>> {
        let file = match self.read(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            file => Some(file.map(|(content, _)| Arc::new(content)).map_err(Arc::new)),
        };
        let mut files = self.files();
        if files.get(name).is_some_and(Result::is_err) {
            files.remove(name);
            files.extend(file.map(|file| (name.to_owned(), file)));
        }
        files.get(name)?.as_ref().err().cloned()
    }

    fn files(&self) -> MutexGuard<'_, Files<T>> {
        locked(&self.files)
    }
}

fn drop_unfinished(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
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

fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with(PREFIX) && !name.ends_with(UNFINISHED) && !entry.file_type()?.is_dir() {
            names.push(name);
        }
    }
    Ok(names)
}

pub(super) fn read(file: File) -> io::Result<Vec<u8>> {
    read_at_most(file, FILE_LENGTH_MAX)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::records::{PullIntent, faults::Faults};

    fn open(path: &Path) -> RecordFolder<PullIntent> {
        RecordFolder::open(path.to_owned(), false, Arc::new(MachineDisk)).unwrap()
    }

    #[test]
    fn what_a_crash_left_unfinished_goes_with_a_later_start() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        open(&path).write(PullIntent::new("whole")).unwrap();
        let old = File::create(path.join("sha256-old.tmp")).unwrap();
        old.set_modified(SystemTime::now() - 2 * UNFINISHED_AGE).unwrap();
        File::create(path.join("sha256-young.tmp")).unwrap();
        let folder = open(&path);
        let mut left: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [file_name("whole").as_str(), "sha256-young.tmp"]);
        assert_eq!(folder.list().0.len(), 1);
    }

    #[test]
    fn a_record_is_synced_before_its_rename_and_its_folder_after_it() {
        let (root, faults) = (tempfile::tempdir().unwrap(), Faults::new());
        let folder = RecordFolder::open(root.path().join("pulled"), false, Arc::new(faults.clone())).unwrap();
        folder.write(PullIntent::new("a")).unwrap();
        // Changes: the file, its rename, its folder.
        assert_eq!((faults.effects(), faults.syncs()), (3, vec![1, 3]), "else a power cut takes the record");
    }

    #[test]
    fn a_folder_that_takes_no_writes_is_read_and_never_touched() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pulled");
        let read_only = || RecordFolder::<PullIntent>::open(path.clone(), true, Arc::new(MachineDisk)).unwrap();
        assert_eq!(read_only().count(), 0, "it need not be there");
        assert!(!path.exists());
        open(&path).write(PullIntent::new("a")).unwrap();
        let folder = read_only();
        folder.write(PullIntent::new("b")).unwrap();
        folder.remove("a").unwrap();
        assert!(folder.find("b").unwrap().is_some() && folder.find("a").unwrap().is_none(), "for this process");
        let names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [file_name("a").as_str()]);
    }

    #[test]
    fn a_record_that_cannot_be_removed_is_no_record_that_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let (folder, path) = (open(root.path()), root.path().join(file_name("a")));
        folder.write(PullIntent::new("a")).unwrap();
        // A folder of that name cannot be removed as a file.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        folder.remove("a").unwrap_err();
        folder.remove("absent").unwrap();
        assert_eq!(folder.count(), 1);
    }

    #[test]
    fn records_that_cannot_be_listed_are_no_empty_list() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("records");
        fs::write(&path, "no folder").unwrap();
        RecordFolder::<PullIntent>::open(path, true, Arc::new(MachineDisk)).unwrap_err();
    }

    #[test]
    fn an_unreadable_record_is_read_again_once_it_is_repaired() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(file_name("a"));
        fs::write(&path, "{").unwrap();
        let folder = open(root.path());
        assert!(folder.find("a").is_err() && folder.list().1.len() == 1);
        fs::write(&path, PullIntent::new("a").encode()).unwrap();
        assert!(folder.find("a").is_err(), "memory alone says nothing new");
        assert!(folder.find_again("a").unwrap().is_some() && folder.list().1.is_empty());
    }

    #[test]
    fn an_unreadable_record_that_is_deleted_is_no_record() {
        let root = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|key| root.path().join(file_name(key)));
        for path in &paths {
            fs::write(path, "{").unwrap();
        }
        let folder = open(root.path());
        assert!(folder.find("a").is_err() && folder.list().1.len() == 2);
        for path in &paths {
            fs::remove_file(path).unwrap();
        }
        assert_eq!((folder.list().1.len(), folder.count()), (0, 0));
        assert!(folder.find("a").unwrap().is_none());
    }

    #[test]
    fn only_a_start_rewrites_a_record_of_an_older_version() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(file_name("a"));
        fs::write(&path, "{").unwrap();
        let folder = open(root.path());
        let old = String::from_utf8(PullIntent::new("a").encode()).unwrap().replace("v1beta1", "v1alpha1");
        fs::write(&path, &old).unwrap();
        assert_eq!(folder.list().0.len(), 1);
        assert_eq!(fs::read_to_string(&path).unwrap(), old, "a list has no turn to write");
        open(root.path());
        assert_eq!(fs::read(&path).unwrap(), PullIntent::new("a").encode());
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
