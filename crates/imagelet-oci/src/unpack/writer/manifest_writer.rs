//! Lists what is written while it is written, so that a later check need not trust the disk.
//!
//! A line says what the disk said right after the entry was finished, not what the archive asked for. The digest of a
//! file's content is taken from the same bytes that are written, in the same pass, and never covers a hole.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
};

use rustix::{
    fs::{FileType, Stat},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use twox_hash::xxhash3_128::Hasher;

use super::whiteout::look;
use crate::unpack::error::Fault;

/// The largest list of names, and the largest value, that the kernel gives.
const XATTR_MAX: usize = 64 * 1024;

/// A digest that finds accidents: XXH3 with 128 bits. It does not protect against intent.
pub(crate) type Sum = u128;

/// What became of a path. A later record for a path takes the place of an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileRecord {
    /// This stands there.
    Entry(FileEntry),
    /// It is one more name of what this path names now.
    HardLink(Vec<u8>),
    /// It is gone, with all that was below it.
    Removed,
}

/// Takes each record as its path is finished.
pub(crate) type FileManifest<'a> = &'a mut dyn FnMut(&[u8], FileRecord) -> io::Result<()>;

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) kind: FileEntryKind,
    /// Permission bits, set-id bits and sticky bit.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// When it was last changed: seconds since 1970 and nanoseconds.
    pub(crate) mtime: (i64, u32),
    /// Digest of its extended attributes; `None` when it has none that layers may set.
    pub(crate) xattrs: Option<Sum>,
}

/// What something is, with all that only its kind has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileEntryKind {
    /// A file without holes that matter.
    File {
        size: u64,
        content: Sum,
    },
    /// A file that has data in some ranges and reads as zeros elsewhere.
    Sparse {
        size: u64,
        /// Digest of the data of all ranges, one after the other.
        content: Sum,
        /// Offset and length of each range, in order, not overlapping.
        ranges: Vec<(u64, u64)>,
    },
    Directory,
    Symlink(Vec<u8>),
    Fifo,
    /// A device node; a character device 0:0 is a whiteout.
    Device {
        /// Block device, else character device.
        block: bool,
        major: u32,
        minor: u32,
    },
    /// A socket, which no archive can hold.
    Socket,
}

impl FileEntry {
    /// What a `stat` says, with a kind made by the caller.
    pub(crate) fn of(stat: &Stat, kind: FileEntryKind, xattrs: Option<Sum>) -> Self {
        let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or_default();
        Self {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: (stat.st_mtime, nanos),
            xattrs,
        }
    }
}

impl FileEntryKind {
    /// The kind of what is neither file nor link; those have content of their own.
    pub(crate) fn of_special(stat: &Stat) -> Self {
        let device = |block| FileEntryKind::Device {
            block,
            major: rustix::fs::major(stat.st_rdev),
            minor: rustix::fs::minor(stat.st_rdev),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => FileEntryKind::Directory,
            FileType::Fifo => FileEntryKind::Fifo,
            FileType::CharacterDevice => device(false),
            FileType::BlockDevice => device(true),
            FileType::Symlink => FileEntryKind::Symlink(Vec::new()),
            FileType::RegularFile => {
                FileEntryKind::File { size: stat.st_size.cast_unsigned(), content: Hasher::oneshot(&[]) }
            }
            _ => FileEntryKind::Socket,
        }
    }
}

/// Digest of the extended attributes of an open file or directory.
pub(crate) fn xattrs_of(file: impl AsFd) -> Result<Option<Sum>, Errno> {
    xattrs_by(|names| rustix::fs::flistxattr(&file, names), |name, value| rustix::fs::fgetxattr(&file, name, value))
}

/// Digest of the extended attributes of what is called `name` in `parent`, and must not or cannot be opened.
pub(crate) fn xattrs_at(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Sum>, Errno> {
    // There is no call that takes a directory and a name; the first part leads to the directory we hold.
    let mut path = format!("/proc/self/fd/{}/", parent.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    xattrs_by(
        |names| rustix::fs::llistxattr(path.as_slice(), names),
        |name, value| rustix::fs::lgetxattr(path.as_slice(), name, value),
    )
}

fn xattrs_by(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
) -> Result<Option<Sum>, Errno> {
    // Most have none, and the names of few are long.
    let mut short = [0; 256];
    let mut long = Vec::new();
    let names = match list(&mut short) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(None),
        Ok(length) => &short[..length],
        Err(Errno::RANGE) => {
            long.resize(XATTR_MAX, 0);
            let length = list(&mut long)?;
            &long[..length]
        }
        Err(errno) => return Err(errno),
    };
    let mut counted: Vec<&[u8]> = names.split(|&byte| byte == 0).filter(|name| counts(name)).collect();
    if counted.is_empty() {
        return Ok(None);
    }
    counted.sort_unstable();
    let mut hasher = Hasher::new();
    let mut value = vec![0; XATTR_MAX];
    for name in counted {
        let size = get(name, &mut value)?;
        hasher.write(name);
        hasher.write(&[0]);
        hasher.write(&(size as u64).to_le_bytes());
        hasher.write(&value[..size]);
    }
    Ok(Some(hasher.finish_128()))
}

/// Attributes that layers have, and overlayfs' marks. Labels of the host's security module are not the layer's.
fn counts(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"trusted.")
        || name == b"security.capability"
        || name.starts_with(b"system.posix_acl_")
}

/// Follows the writer, and tells the listing.
pub(crate) struct ManifestWriter<'a> {
    listing: Option<FileManifest<'a>>,
    /// The store's own folders pass attributes on, so that none can be ruled out without looking.
    inherits: bool,
    content: Content,
}

/// The content of the file being written.
struct Content {
    expected: u64,
    /// Of small files, whose data comes in one piece.
    at_once: Option<Sum>,
    hasher: Option<Hasher>,
}

impl Content {
    fn of(expected: u64) -> Self {
        Self { expected, at_once: None, hasher: None }
    }

    fn sum(&self) -> Sum {
        match (&self.hasher, self.at_once) {
            (Some(hasher), _) => hasher.finish_128(),
            (None, Some(sum)) => sum,
            (None, None) => Hasher::oneshot(&[]),
        }
    }
}

impl<'a> ManifestWriter<'a> {
    pub(crate) fn new(listing: Option<FileManifest<'a>>, root: BorrowedFd<'_>) -> Result<Self, Fault> {
        let inherits =
            listing.is_some() && xattrs_of(root).map_err(Fault::io("read the attributes of the root for"))?.is_some();
        Ok(Self { listing, inherits, content: Content::of(0) })
    }

    /// A file begins of which `stored` bytes will be written.
    pub(crate) fn begin(&mut self, stored: u64) {
        self.content = Content::of(stored);
    }

    /// These bytes of it were written.
    pub(crate) fn wrote(&mut self, bytes: &[u8]) {
        if self.listing.is_none() {
            return;
        }
        let content = &mut self.content;
        if content.hasher.is_none() && bytes.len() as u64 == content.expected {
            content.at_once = Some(Hasher::oneshot(bytes));
        } else {
            content.hasher.get_or_insert_with(Hasher::new).write(bytes);
        }
    }

    /// The file is finished. `ranges`: where its data lies, when it has holes.
    pub(crate) fn file(
        &mut self,
        path: impl FnOnce() -> Vec<u8>,
        file: impl AsFd,
        ranges: Option<Vec<(u64, u64)>>,
        has_xattrs: bool,
    ) -> Result<(), Fault> {
        if self.listing.is_none() {
            return Ok(());
        }
        let listed = || -> Result<FileEntry, Errno> {
            let stat = rustix::fs::fstat(&file)?;
            let (size, content) = (stat.st_size.cast_unsigned(), self.content.sum());
            let kind = match ranges {
                None => FileEntryKind::File { size, content },
                Some(ranges) => FileEntryKind::Sparse { size, content, ranges },
            };
            let xattrs = if has_xattrs || self.inherits { xattrs_of(&file)? } else { None };
            Ok(FileEntry::of(&stat, kind, xattrs))
        };
        let listed = listed().map_err(Fault::io("list"))?;
        self.record(&path(), FileRecord::Entry(listed))
    }

    /// Something is finished that was not opened: a link, a node, a whiteout.
    pub(crate) fn special(
        &mut self,
        path: impl FnOnce() -> Vec<u8>,
        (parent, name): (BorrowedFd<'_>, &[u8]),
        link: &[u8],
        has_xattrs: bool,
    ) -> Result<(), Fault> {
        if self.listing.is_none() {
            return Ok(());
        }
        let stat = look(parent, name)?.ok_or(Fault::Io { action: "find again", errno: Errno::NOENT })?;
        let kind = match FileEntryKind::of_special(&stat) {
            FileEntryKind::Symlink(_) => FileEntryKind::Symlink(link.to_vec()),
            kind => kind,
        };
        let read = has_xattrs || self.inherits;
        let xattrs = if read { xattrs_at(parent, name).map_err(Fault::io("list"))? } else { None };
        self.record(&path(), FileRecord::Entry(FileEntry::of(&stat, kind, xattrs)))
    }

    /// A directory is finished, with all that is in it.
    pub(crate) fn directory(&mut self, path: &[u8], directory: impl AsFd) -> Result<(), Fault> {
        if self.listing.is_none() {
            return Ok(());
        }
        let listed = || -> Result<FileEntry, Errno> {
            let stat = rustix::fs::fstat(&directory)?;
            Ok(FileEntry::of(&stat, FileEntryKind::Directory, xattrs_of(&directory)?))
        };
        let listed = listed().map_err(Fault::io("list the directory"))?;
        self.record(path, FileRecord::Entry(listed))
    }

    pub(crate) fn record(&mut self, path: &[u8], record: FileRecord) -> Result<(), Fault> {
        let Some(listing) = &mut self.listing else { return Ok(()) };
        listing(path, record).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Fault::Io { action: "list", errno }
        })
    }

    pub(crate) fn is_on(&self) -> bool {
        self.listing.is_some()
    }
}
