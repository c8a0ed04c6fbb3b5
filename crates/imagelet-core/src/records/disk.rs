//! Small files that survive a crash, in the kubelet's folder.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::failpoint::Step;

/// Longest file that is read. A full record has some hundred entries of some hundred bytes.
const FILE_LENGTH_MAX: u64 = 4 * 1024 * 1024;
const PREFIX: &str = "sha256-";
const UNFINISHED: &str = ".tmp";
/// A write takes milliseconds; what has lain unfinished for this long was left by a crash, not by another process.
const UNFINISHED_AGE: Duration = Duration::from_mins(1);

/// One folder of small files.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes the folder, for its owner only, and removes what crashes left in it.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let folder = Self { path };
        create_folder(&folder.path)?;
        folder.drop_unfinished()?;
        Ok(folder)
    }

    fn drop_unfinished(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let is_unfinished = entry.file_name().as_encoded_bytes().ends_with(UNFINISHED.as_bytes());
            let age = || entry.metadata()?.modified()?.elapsed().map_err(io::Error::other);
            if is_unfinished && age().is_ok_and(|age| age > UNFINISHED_AGE) {
                // Left once more, it is tried again at the next start, and harms nobody meanwhile.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// Reads all files: name and content, or why it could not be read.
    pub(super) fn read_all(&self) -> io::Result<Vec<(String, io::Result<Vec<u8>>)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with(PREFIX) && !name.ends_with(UNFINISHED) && !entry.file_type()?.is_dir() {
                let content = read(&entry.path());
                files.push((name, content));
            }
        }
        Ok(files)
    }

    /// Writes a file beside, syncs it, renames it, syncs the folder: afterwards it is there whole, or as it was before.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        create_folder(&self.path)?;
        let unfinished = self.path.join(format!("{name}{UNFINISHED}"));
        let written = write_synced(&unfinished, content).and_then(|()| {
            Step::RecordSynced.reach();
            fs::rename(&unfinished, self.path.join(name))
        });
        if let Err(error) = written {
            // What is left of a failed write is overwritten by the next, so failing to remove it changes nothing.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        Step::RecordRenamed.reach();
        File::open(&self.path)?.sync_all()?;
        Step::RecordDurable.reach();
        Ok(())
    }

    /// Removes a file. Absent is success.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                Step::RecordRemoved.reach();
                Ok(())
            }
        }
    }
}

/// Makes a folder and what lacks above it, for the owner only. Durable on return.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    let made: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    for parent in made.into_iter().filter_map(Path::parent) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(FILE_LENGTH_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > FILE_LENGTH_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than a record can be"));
    }
    Ok(content)
}

fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    Step::RecordWritten.reach();
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_a_crash_left_unfinished_goes_with_a_later_start() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        drop(Folder::open(path.clone()).unwrap());
        let old = File::create(path.join("sha256-old.tmp")).unwrap();
        old.set_modified(SystemTime::now() - 2 * UNFINISHED_AGE).unwrap();
        for name in ["sha256-young.tmp", "sha256-whole"] {
            File::create(path.join(name)).unwrap();
        }
        let folder = Folder::open(path.clone()).unwrap();
        let mut left: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["sha256-whole", "sha256-young.tmp"]);
        assert_eq!(folder.read_all().unwrap().len(), 1);
    }
}
