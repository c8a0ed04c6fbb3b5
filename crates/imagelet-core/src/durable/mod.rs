//! Reads and replaces whole files. A crash at any point leaves the old file or the new file.

mod state_dir;

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

pub(crate) use self::state_dir::{StateDir, misread, nanos, time};
use crate::{failpoint, image::ByteSize};

/// The disk on which files are changed. The disk of a test counts the changes and makes some of them fail.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Called before each change of a file or folder. If the call fails, the change fails with the same error.
    fn change(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    /// Whether a change is slow, so that it must not run on an async thread.
    fn takes_time(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug)]
pub struct MachineDisk;

impl Disk for MachineDisk {}

/// Reads a file to its end. A file longer than `length_max` fails with `FileTooLarge`.
pub fn read_at_most(file: impl Read, length_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(length_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > length_max {
        let message = format!("the file is longer than {}", ByteSize(length_max));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Replaces the content of a file. Only the owner can read the file. The change is durable on return. `beside` is the
/// path of the incomplete new file, in the same folder. A crash may leave that file, and the next call removes it.
/// `steps` is the prefix of the failpoint names.
///
/// # Errors
/// After an error the file has the old content. Only if the sync of its folder fails, it has the new content.
pub fn replace_file(path: &Path, beside: &Path, steps: &str, bytes: &[u8]) -> io::Result<()> {
    replace_file_on(&MachineDisk, path, beside, steps, |file| file.write_all(bytes))
}

/// Like [`replace_file`], on `disk`. `fill` writes the new file, and may change its owner and permissions.
pub fn replace_file_on(
    disk: &dyn Disk,
    path: &Path,
    beside: &Path,
    steps: &str,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let write = || {
        disk.change()?;
        let mut file = create_anew(beside)?;
        fill(&mut file)?;
        failpoint::reach_in(steps, "written");
        disk.sync(&file)?;
        failpoint::reach_in(steps, "synced");
        disk.change()?;
        fs::rename(beside, path)
    };
    if let Err(error) = write() {
        // The first error is more useful than an error of the cleanup.
        let _ = fs::remove_file(beside);
        return Err(error);
    }
    failpoint::reach_in(steps, "renamed");
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_folder_on(disk, folder)?;
    failpoint::reach_in(steps, "durable");
    Ok(())
}

/// Unlinks the name, then creates a new file. So a write follows no symlink and changes no other hard link.
pub(crate) fn create_anew(path: &Path) -> io::Result<File> {
    remove_file(path)?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Removes a file. An absent file is no error.
pub fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path).or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

pub fn sync_folder(path: &Path) -> io::Result<()> {
    sync_folder_on(&MachineDisk, path)
}

pub(crate) fn sync_folder_on(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    disk.change()?;
    disk.sync(&File::open(path)?)?;
    failpoint::synced(Some(path))
}

/// Creates a folder and its absent parents, durably. Only the owner can access the created folders.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    let made: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    for parent in made.into_iter().filter_map(Path::parent) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Like [`replace_file`], without syncs: the file survives the end of this process, but maybe not a power failure.
pub fn replace_file_unsynced(path: &Path, beside: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = create_anew(beside).and_then(|mut file| file.write_all(bytes));
    written.and_then(|()| fs::rename(beside, path)).inspect_err(|_| drop(fs::remove_file(beside)))
}
