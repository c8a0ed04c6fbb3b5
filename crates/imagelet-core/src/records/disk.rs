//! Small files that survive a crash, in the kubelet's folder.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::failpoint::Step;

/// Longest file that is read. A full record has some hundred entries of some hundred bytes.
const FILE_LENGTH_MAX: u64 = 4 * 1024 * 1024;
const PREFIX: &str = "sha256-";
const UNFINISHED: &str = ".tmp";

/// One folder of small files.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes the folder, for its owner only.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let folder = Self { path };
        folder.make()?;
        Ok(folder)
    }

    fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)
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
        self.make()?;
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
