//! Notes of mounts on disk: `mounts/KEY.json` and the overlay's folder `mounts/KEY/`.
//!
//! KEY is the hexadecimal part of the image's id and 16 digits that no other mount has. So a note that cannot be read
//! still names its image and its mount, whose source in the kernel's table ends in the same digits. A KEY of 64 digits
//! alone was the digest of a path, and its note has neither boot nor device.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use imagelet_core::image::{Digest, ImageId};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::{
    failpoint::Step,
    overlay::OverlayFolder,
    store::{remove_tree, replace_file},
};

/// A note is below 5 KiB: a path is 4096 bytes at most.
const NOTE_BYTES_MAX: u64 = 64 * 1024;
/// Digits at a key's end that belong to the mount alone.
const SERIAL_LENGTH: usize = 16;
/// Above the notes of stores that take no writes.
const VOLATILE_MOUNTS: &str = "/run/imagelet/mounts";
/// What the kernel's table shows as the source of our mounts, before the serial.
const SOURCE: &str = "imagelet";

/// What is noted of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// Where it was mounted, for people: bytes that are not UTF-8 are replaced.
    pub(super) target: String,
    /// The image's id.
    pub(super) image: String,
    /// Whether it can be written.
    pub(super) writable: bool,
    /// When, in seconds since 1970.
    pub(super) mounted_at: u64,
    /// The boot of the machine. Absent in notes of older versions, as what follows.
    #[serde(default)]
    pub(super) boot: Option<String>,
    /// The inode of the mount namespace it was mounted in.
    #[serde(default)]
    pub(super) namespace: Option<u64>,
    /// The overlay's device, `MAJOR:MINOR`.
    #[serde(default)]
    pub(super) device: Option<String>,
}

/// A mount of which there is a note, whole or damaged.
#[derive(Clone, Debug)]
pub(super) struct NotedMount {
    folder: OverlayFolder,
    key: String,
    content: Result<Note, Damage>,
}

/// Why a note cannot be read, and the image that can be made out of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Damage {
    pub(super) problem: String,
    image: Option<String>,
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        Self { problem: error.to_string(), image: None }
    }
}

impl NotedMount {
    /// The note beside a folder, with what it says.
    pub(super) fn of(folder: PathBuf, content: Result<Note, Damage>) -> Self {
        let key = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { folder: OverlayFolder::at(folder), key, content }
    }

    /// What it says, where it can be read.
    pub(super) fn note(&self) -> Option<&Note> {
        self.content.as_ref().ok()
    }

    /// What is wrong with it.
    pub(super) fn damage(&self) -> Option<&Damage> {
        self.content.as_ref().err()
    }

    /// The image's id; `None`: the note is damaged, and of an older version.
    pub(super) fn image(&self) -> Option<String> {
        self.image_of_key().or_else(|| match &self.content {
            Ok(note) => Some(note.image.clone()),
            Err(damage) => damage.image.clone(),
        })
    }

    /// The image's id, as the note's name has it.
    fn image_of_key(&self) -> Option<String> {
        let hex = self.key.get(..self.key.len().checked_sub(SERIAL_LENGTH)?)?;
        match hex.len() {
            64 => Some(format!("sha256:{hex}")),
            128 => Some(format!("sha512:{hex}")),
            _ => None,
        }
    }

    /// Whether the name of the note is the digest of a path.
    pub(super) fn is_of_old_version(&self) -> bool {
        self.image_of_key().is_none()
    }

    /// The mount's source, as the kernel's table shows it.
    pub(super) fn source(&self) -> String {
        source(&self.key)
    }

    /// Its overlay's folder.
    pub(super) fn folder(&self) -> &OverlayFolder {
        &self.folder
    }

    /// Where the note is.
    pub(super) fn path(&self) -> PathBuf {
        note_of(&self.folder)
    }
}

/// A mount of an image that is about to be made: a key of its own, and a folder to make it in.
pub(super) fn new_folder(folder: &Path, id: &ImageId, target: &Path) -> io::Result<OverlayFolder> {
    let digest: Digest = id.as_str().parse().map_err(|_error| io::ErrorKind::InvalidInput)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let unique = Digest::of(format!("{} {} {}", std::process::id(), now.as_nanos(), target.display()).as_bytes());
    make_folder(folder, Path::new(VOLATILE_MOUNTS))?;
    let serial = unique.hex().get(..SERIAL_LENGTH).unwrap_or_default();
    Ok(OverlayFolder::at(folder.join(format!("{}{serial}", digest.hex()))))
}

/// Makes the folder of a store's mounts. `volatile` lies beside the daemon's socket, whose folder other users pass through,
/// and holds folders of stores of several users: each finds its own there, and no list of them.
fn make_folder(folder: &Path, volatile: &Path) -> io::Result<()> {
    if let Some(shared) = volatile.parent().filter(|_| folder.starts_with(volatile)) {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(shared)?;
        fs::DirBuilder::new().recursive(true).mode(0o711).create(volatile)?;
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The source of a mount over this folder.
pub(super) fn source_of(folder: &OverlayFolder) -> String {
    source(&folder.path().file_name().unwrap_or_default().to_string_lossy())
}

fn source(key: &str) -> String {
    match key.len().checked_sub(SERIAL_LENGTH).and_then(|at| key.get(at..)) {
        Some(serial) if key.len() != 64 => format!("{SOURCE}:{serial}"),
        _ => SOURCE.to_owned(),
    }
}

/// Writes the note beside an overlay's folder, durably.
pub(super) fn write(folder: &OverlayFolder, note: &Note) -> io::Result<()> {
    replace_file(&note_of(folder), &serde_json::to_vec(note)?)
}

/// Removes the note of a folder, then the folder.
pub(super) fn discard(folder: &OverlayFolder) -> io::Result<()> {
    remove_tree(&note_of(folder))?;
    Step::UnmountNote.reach();
    remove_tree(folder.path())?;
    // The last note of a store takes its folder along; an error says that it was not the last.
    if let Some(store) = folder.path().parent().filter(|parent| parent.starts_with(VOLATILE_MOUNTS)) {
        let _ = fs::remove_dir(store);
    }
    Ok(())
}

fn note_of(folder: &OverlayFolder) -> PathBuf {
    folder.path().with_extension("json")
}

/// Where a store that takes no writes has its mounts noted; gone after a reboot, as they are.
pub(super) fn volatile_folder(root: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    Path::new(VOLATILE_MOUNTS).join(Digest::of(root.as_os_str().as_bytes()).hex())
}

/// All notes in a folder, which need not be there. Names that are not ours are not looked at.
pub(super) fn read_all(folder: &Path) -> io::Result<Vec<NotedMount>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    let mut noted = Vec::new();
    for entry in entries {
        let name = entry.file_name();
        let Some(key) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
        if key.len() < 64 || !key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            continue;
        }
        match read(&entry.path()) {
            Ok(bytes) => noted.push(NotedMount::of(folder.join(key), parse(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => noted.push(NotedMount::of(folder.join(key), Err(error.into()))),
        }
    }
    Ok(noted)
}

/// A file that is none, a link, or one without end must not hold up the list.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(NOTE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > NOTE_BYTES_MAX) {
        return Err(io::Error::other(format!("larger than {NOTE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> Result<Note, Damage> {
    serde_json::from_slice(bytes).map_err(|error| {
        let loose: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
        Damage { problem: error.to_string(), image: loose.get("image").and_then(|id| id.as_str()).map(str::to_owned) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"{"target":"/mnt/a","image":"sha256:12","writable":true,"mounted_at":5}"#;

    #[test]
    fn a_note_of_the_old_version_is_read() {
        let note = parse(OLD.as_bytes()).unwrap();
        assert_eq!((note.target.as_str(), note.writable, note.boot, note.device), ("/mnt/a", true, None, None));
    }

    #[test]
    fn the_image_is_made_out_of_a_damaged_note_or_of_its_name() {
        let id: ImageId = ImageId::new(Digest::of(b"image").as_str());
        let folder = tempfile::tempdir().unwrap();
        let new = new_folder(folder.path(), &id, Path::new("/mnt")).unwrap();
        let damaged = NotedMount::of(new.path().to_owned(), Err(Damage::default()));
        assert_eq!(damaged.image().as_deref(), Some(id.as_str()));
        assert!(!damaged.is_of_old_version());
        assert_eq!(damaged.source(), source_of(&new));

        let old = |text: &str| NotedMount::of(folder.path().join("c".repeat(64)), parse(text.as_bytes()));
        assert_eq!(old(OLD).image().as_deref(), Some("sha256:12"));
        assert_eq!(old(r#"{"image":"sha256:34","target":7}"#).image().as_deref(), Some("sha256:34"));
        assert_eq!(old(r#"{"image":"#).image(), None);
        assert!(old(OLD).is_of_old_version());
        assert_eq!(old(OLD).source(), "imagelet");
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
        fs::write(at("6"), OLD).unwrap();
        fs::write(folder.path().join("strange.json"), "{").unwrap();
        let mut found: Vec<(String, bool)> = read_all(folder.path())
            .unwrap()
            .iter()
            .map(|noted| (noted.key[..1].to_owned(), noted.damage().is_none()))
            .collect();
        found.sort();
        let expected = [("1", false), ("2", false), ("3", false), ("4", false), ("5", false), ("6", true)];
        assert_eq!(found, expected.map(|(digit, whole)| (digit.to_owned(), whole)));
        assert!(read_all(&folder.path().join("absent")).unwrap().is_empty());
    }
}
