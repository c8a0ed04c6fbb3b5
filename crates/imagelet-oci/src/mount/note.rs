//! Notes of mounts on the disk: `mounts/KEY.json` and the overlay's folder `mounts/KEY/`.
//!
//! KEY is the hexadecimal part of the image's id and a serial of 16 digits. So the name of an unreadable note still
//! identifies its image and its mount, because the mount's source in the kernel's table ends in the serial.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use imagelet_core::{
    failpoint,
    image::{Digest, ImageId},
};
use serde::{Deserialize, Serialize};

use crate::{
    overlay::OverlayFolder,
    store::{digest_named, read_json, remove_tree, replace_file, seal},
};

const SERIAL_LENGTH: usize = 16;
const VOLATILE_MOUNTS: &str = "/run/imagelet/mounts";
/// The start of a mount's source in the kernel's table; the serial follows.
const SOURCE: &str = "imagelet";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// The mount point, for messages. Bytes that are not UTF-8 are replaced.
    pub(super) target: String,
    pub(super) image: String,
    pub(super) writable: bool,
    pub(super) mounted_at: u64,
    #[serde(default)]
    pub(super) boot: Option<String>,
    pub(super) device: String,
}

#[derive(Clone, Debug)]
pub(super) struct NotedMount {
    pub(super) folder: OverlayFolder,
    pub(super) image: String,
    note: Result<Note, String>,
}

impl NotedMount {
    pub(super) fn of(folder: PathBuf, note: Result<Note, String>) -> Option<Self> {
        let key = folder.file_name()?.to_str()?;
        let (image, serial) = key.split_at_checked(key.len().checked_sub(SERIAL_LENGTH)?)?;
        let image = digest_named(image)?.to_string();
        let is_key = serial.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_key.then_some(Self { folder: OverlayFolder(folder), image, note })
    }

    pub(super) fn note(&self) -> Option<&Note> {
        self.note.as_ref().ok()
    }

    pub(super) fn damage(&self) -> Option<&str> {
        self.note.as_ref().err().map(String::as_str)
    }

    pub(super) fn source(&self) -> String {
        source_of(&self.folder)
    }

    pub(super) fn path(&self) -> PathBuf {
        note_of(&self.folder)
    }
}

pub(super) fn new_folder(folder: &Path, id: &ImageId, target: &Path) -> io::Result<OverlayFolder> {
    let digest: Digest = id.as_str().parse().map_err(|_error| io::ErrorKind::InvalidInput)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let unique = Digest::of(format!("{} {} {}", std::process::id(), now.as_nanos(), target.display()).as_bytes());
    make_folder(folder, Path::new(VOLATILE_MOUNTS))?;
    let serial = unique.hex().get(..SERIAL_LENGTH).unwrap_or_default();
    Ok(OverlayFolder(folder.join(format!("{}{serial}", digest.hex()))))
}

/// Creates the folder of a store's mounts. The folder `volatile` is next to the daemon's socket. Other users may
/// traverse it to their own stores' folders, but not list it.
fn make_folder(folder: &Path, volatile: &Path) -> io::Result<()> {
    if let Some(shared) = volatile.parent().filter(|_| folder.starts_with(volatile)) {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(shared)?;
        fs::DirBuilder::new().recursive(true).mode(0o711).create(volatile)?;
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

pub(super) fn source_of(folder: &OverlayFolder) -> String {
    let key = folder.0.file_name().unwrap_or_default().to_string_lossy();
    format!("{SOURCE}:{}", &key[key.len().saturating_sub(SERIAL_LENGTH)..])
}

pub(super) fn write(folder: &OverlayFolder, note: &Note) -> io::Result<()> {
    replace_file(&note_of(folder), &seal(note))
}

pub(super) fn discard(folder: &OverlayFolder) -> io::Result<()> {
    remove_tree(&note_of(folder))?;
    failpoint!("unmount.note");
    remove_tree(&folder.0)?;
    // Removes the store's folder after its last note. The call fails while the folder has other notes.
    if let Some(store) = folder.0.parent().filter(|parent| parent.starts_with(VOLATILE_MOUNTS)) {
        let _ = fs::remove_dir(store);
    }
    Ok(())
}

fn note_of(folder: &OverlayFolder) -> PathBuf {
    folder.0.with_extension("json")
}

/// The folder for notes of a read-only store. A reboot removes the folder and the mounts.
pub(super) fn volatile_folder(root: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    Path::new(VOLATILE_MOUNTS).join(Digest::of(root.as_os_str().as_bytes()).hex())
}

/// All notes in a folder; the folder may be missing. Files with other names are ignored.
pub(super) fn read_all(folder: &Path) -> io::Result<Vec<NotedMount>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    let mut noted = Vec::new();
    for entry in entries {
        let name = entry.file_name();
        let Some(key) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
        let note = match read_json(&entry.path()) {
            Ok(note) => Ok(note),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => Err(error.to_string()),
        };
        noted.extend(NotedMount::of(folder.join(key), note));
    }
    Ok(noted)
}

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;

    use super::*;

    const NOTE: &str =
        r#"{"target":"/mnt/a","image":"sha256:12","writable":true,"mounted_at":5,"boot":"b1","device":"0:50"}"#;

    #[test]
    fn the_image_and_the_source_are_made_out_of_the_name_of_a_damaged_note() {
        let id: ImageId = ImageId::new(Digest::of(b"image").as_str());
        let folder = tempfile::tempdir().unwrap();
        let new = new_folder(folder.path(), &id, Path::new("/mnt")).unwrap();
        let damaged = NotedMount::of(new.0.clone(), Err(String::new())).unwrap();
        assert_eq!(damaged.image, id.as_str());
        assert_eq!(damaged.source(), source_of(&new));
        assert!(NotedMount::of(folder.path().join("c".repeat(64)), Err(String::new())).is_none());
    }

    #[test]
    fn a_mount_before_the_first_daemon_leaves_the_folder_of_its_socket_open_to_other_users() {
        use std::os::unix::fs::PermissionsExt as _;
        let run = tempfile::tempdir().unwrap();
        let at = |path: &str| run.path().join(path);
        let mode = |path: &str| fs::metadata(at(path)).unwrap().permissions().mode() & 0o777;
        make_folder(&at("imagelet/mounts/store"), &at("imagelet/mounts")).unwrap();
        assert_eq!((mode("imagelet"), mode("imagelet/mounts"), mode("imagelet/mounts/store")), (0o755, 0o711, 0o700));
        make_folder(&at("store/mounts"), &at("imagelet/mounts")).unwrap();
        assert_eq!((mode("store"), mode("store/mounts")), (0o700, 0o700));
    }

    #[test]
    fn a_note_that_is_no_file_or_too_large_is_damaged_and_holds_nothing_up() {
        let folder = tempfile::tempdir().unwrap();
        let at = |digit: &str| folder.path().join(format!("{}.json", digit.repeat(80)));
        fs::create_dir(at("1")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("2"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("3")).unwrap();
        fs::write(at("4"), vec![b' '; 1 << 20]).unwrap();
        fs::write(at("5"), b"\xff{").unwrap();
        fs::write(at("6"), NOTE).unwrap();
        fs::write(folder.path().join("strange.json"), "{").unwrap();
        let mut found: Vec<(String, bool)> = read_all(folder.path())
            .unwrap()
            .iter()
            .map(|noted| (noted.source()[SOURCE.len() + 1..][..1].to_owned(), noted.damage().is_none()))
            .collect();
        found.sort();
        let expected = [("1", false), ("2", false), ("3", false), ("4", false), ("5", false), ("6", true)];
        assert_eq!(found, expected.map(|(digit, whole)| (digit.to_owned(), whole)));
        assert!(read_all(&folder.path().join("absent")).unwrap().is_empty());
    }
}
