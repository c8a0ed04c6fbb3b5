//! Records each path while it is written, so that a later check need not trust the disk.
//!
//! A record describes the disk after the entry was finished, not the archive. The digest of a file's content is
//! computed from the written bytes, and never covers a hole.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
};

use rustix::{
    buffer::spare_capacity,
    fs::{AtFlags, FileType, Stat},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use twox_hash::xxhash3_128::Hasher;

use super::xattr;
use crate::unpack::{disk_usage::DiskUsage, error::Fault};

const NAMES_USUAL: usize = 256;

/// An XXH3 digest of 128 bits, which detects accidental changes, not attacks.
pub(crate) type Sum = u128;

/// A record of a path in the file manifest. A later record of the path replaces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileRecord {
    Entry(FileEntry),
    HardLink(Vec<u8>),
    Removed,
}

pub(crate) type FileManifest<'a> = &'a mut dyn FnMut(&[u8], FileRecord) -> io::Result<()>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) kind: FileEntryKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: (i64, u32),
    /// The digest of the extended attributes; `None` if the path has no attribute that layers may set.
    pub(crate) xattrs: Option<Sum>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileEntryKind {
    File {
        size: u64,
        content: Sum,
    },
    Sparse {
        size: u64,
        /// The digest of the data of all ranges, in order.
        content: Sum,
        ranges: Vec<(u64, u64)>,
    },
    Directory,
    Symlink(Vec<u8>),
    Fifo,
    /// A character device 0:0 is a whiteout.
    Device {
        block: bool,
        major: u32,
        minor: u32,
    },
    /// A socket on the disk. Archives cannot contain sockets.
    Socket,
}

impl FileEntry {
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

pub(crate) fn xattrs_of(file: impl AsFd) -> Result<Option<Sum>, Errno> {
    xattrs_by(
        |names| rustix::fs::flistxattr(&file, spare_capacity(names)),
        |name, value| rustix::fs::fgetxattr(&file, name, spare_capacity(value)),
    )
}

pub(crate) fn xattrs_at(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Sum>, Errno> {
    // No system call lists attributes by directory and name. `/proc/self/fd` leads to the open directory.
    let mut path = format!("/proc/self/fd/{}/", parent.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    xattrs_by(
        |names| rustix::fs::llistxattr(path.as_slice(), spare_capacity(names)),
        |name, value| rustix::fs::lgetxattr(path.as_slice(), name, spare_capacity(value)),
    )
}

fn xattrs_by(
    list: impl Fn(&mut Vec<u8>) -> Result<usize, Errno>,
    get: impl Fn(&[u8], &mut Vec<u8>) -> Result<usize, Errno>,
) -> Result<Option<Sum>, Errno> {
    // The first buffer is small, because most entries have no attributes, and long lists are rare.
    let mut names = Vec::with_capacity(NAMES_USUAL);
    let mut listed = list(&mut names);
    if listed == Err(Errno::RANGE) {
        names.reserve(xattr::NAMES_MAX);
        listed = list(&mut names);
    }
    match listed {
        Err(Errno::NOTSUP) => return Ok(None),
        listed => listed?,
    };
    let mut counted: Vec<&[u8]> = names.split(|&byte| byte == 0).filter(|name| counts(name)).collect();
    if counted.is_empty() {
        return Ok(None);
    }
    counted.sort_unstable();
    let mut hasher = Hasher::new();
    let mut value = Vec::with_capacity(xattr::VALUE_MAX);
    for name in counted {
        value.clear();
        let size = get(name, &mut value)?;
        hasher.write(name);
        hasher.write(&[0]);
        hasher.write(&(size as u64).to_le_bytes());
        hasher.write(&value);
    }
    Ok(Some(hasher.finish_128()))
}

/// Whether an attribute belongs to a layer or to overlayfs. Labels of the host's security module do not count.
fn counts(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"trusted.")
        || name == b"security.capability"
        || name.starts_with(b"system.posix_acl_")
}

pub(crate) struct ManifestWriter<'a> {
    listing: Option<FileManifest<'a>>,
    /// Whether new entries may inherit attributes from the root, so that each entry must be checked.
    inherits: bool,
    /// The bytes of the current file in the archive, and the digest of a file that comes in one piece or is known. One
    /// piece is hashed several times faster.
    stored: u64,
    at_once: Sum,
    hasher: Option<Hasher>,
    /// The disk usage of the recorded paths. It is `None` if there is no listing, if a path was or may be replaced, or
    /// if a usage is unknown (see [`DiskUsage::with_finished`]).
    allocated: Option<DiskUsage>,
}

impl<'a> ManifestWriter<'a> {
    pub(crate) fn new(listing: Option<FileManifest<'a>>, root: BorrowedFd<'_>) -> Result<Self, Fault> {
        let inherits =
            listing.is_some() && xattrs_of(root).map_err(Fault::io("read the attributes of the root for"))?.is_some();
        let allocated = listing.is_some().then(DiskUsage::default);
        Ok(Self { listing, inherits, stored: 0, at_once: Sum::default(), hasher: None, allocated })
    }

    pub(crate) fn begin(&mut self, stored: u64) {
        (self.stored, self.at_once, self.hasher) = (stored, Hasher::oneshot(&[]), None);
    }

    pub(crate) fn begin_known(&mut self, content: Sum) {
        (self.at_once, self.hasher) = (content, None);
    }

    pub(crate) fn wrote(&mut self, bytes: &[u8]) {
        if self.listing.is_none() {
            return;
        }
        if self.hasher.is_none() && bytes.len() as u64 == self.stored {
            self.at_once = Hasher::oneshot(bytes);
        } else {
            self.hasher.get_or_insert_with(Hasher::new).write(bytes);
        }
    }

    /// Records a file. Closes the file first, because a file system such as XFS then frees its preallocated space.
    pub(crate) fn file(
        &mut self,
        path: &[u8],
        (parent, name): (BorrowedFd<'_>, &[u8]),
        file: File,
        ranges: Option<&[(u64, u64)]>,
        has_xattrs: bool,
    ) -> Result<(), Fault> {
        self.list(path, |own| {
            let xattrs = if has_xattrs || own.inherits { xattrs_of(&file)? } else { None };
            drop(file);
            let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let size = stat.st_size.cast_unsigned();
            let content = own.hasher.as_ref().map_or(own.at_once, Hasher::finish_128);
            let kind = match ranges {
                None => FileEntryKind::File { size, content },
                Some(ranges) => FileEntryKind::Sparse { size, content, ranges: ranges.to_vec() },
            };
            Ok((stat, kind, xattrs))
        })
    }

    /// Records a whiteout. The disk usage is then unknown: a directory may replace the whiteout without a record.
    pub(crate) fn whiteout(&mut self, path: &[u8], at: (BorrowedFd<'_>, &[u8])) -> Result<(), Fault> {
        self.allocated = None;
        self.special(path, at, &[], true)
    }

    pub(crate) fn special(
        &mut self,
        path: &[u8],
        (parent, name): (BorrowedFd<'_>, &[u8]),
        link: &[u8],
        has_xattrs: bool,
    ) -> Result<(), Fault> {
        self.list(path, |own| {
            let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = match FileEntryKind::of_special(&stat) {
                FileEntryKind::Symlink(_) => FileEntryKind::Symlink(link.to_vec()),
                kind => kind,
            };
            let xattrs = if has_xattrs || own.inherits { xattrs_at(parent, name)? } else { None };
            Ok((stat, kind, xattrs))
        })
    }

    pub(crate) fn directory(&mut self, path: &[u8], directory: impl AsFd) -> Result<(), Fault> {
        self.list(path, |_| {
            let stat = rustix::fs::fstat(&directory)?;
            Ok((stat, FileEntryKind::Directory, xattrs_of(&directory)?))
        })
    }

    fn list(
        &mut self,
        path: &[u8],
        read: impl FnOnce(&Self) -> Result<(Stat, FileEntryKind, Option<Sum>), Errno>,
    ) -> Result<(), Fault> {
        if self.listing.is_none() {
            return Ok(());
        }
        let (stat, kind, xattrs) = read(self).map_err(Fault::io("list"))?;
        self.allocated = self.allocated.and_then(|allocated| allocated.with_finished(&stat));
        self.record(path, FileRecord::Entry(FileEntry::of(&stat, kind, xattrs)))
    }

    pub(crate) fn allocated(&self) -> Option<DiskUsage> {
        self.allocated
    }

    pub(crate) fn record(&mut self, path: &[u8], record: FileRecord) -> Result<(), Fault> {
        if record == FileRecord::Removed {
            self.allocated = None;
        }
        let Some(listing) = &mut self.listing else { return Ok(()) };
        listing(path, record).map_err(Fault::io("list"))
    }
}
