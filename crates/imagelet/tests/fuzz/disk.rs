//! Reads back what stands on disk after a layer was unpacked.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::Path,
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

use imagelet_oci::fuzzing::xattrs_sum;

/// All below a root, by path; the root itself is the empty one.
pub(crate) type Nodes = BTreeMap<Vec<u8>, Node>;

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: FileType,
    pub(crate) stat: DiskEntry,
    /// Of a file that we may read, or where a link leads.
    pub(crate) content: Option<Vec<u8>>,
    /// By full name.
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// Their digest, as listings have it.
    pub(crate) xattrs_sum: Option<u128>,
}

/// The numbers that are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskEntry {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) device: u64,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: (i64, u32),
    /// Any change shows here: it cannot be set.
    pub(crate) ctime: (i64, u64),
}

impl Node {
    /// Hides what lower layers have at its path.
    pub(crate) fn is_whiteout(&self) -> bool {
        let device = self.kind == FileType::CharacterDevice && self.stat.device == 0;
        device || self.xattrs.contains_key("user.overlay.whiteout")
    }

    /// Hides what lower layers have below its path.
    pub(crate) fn is_opaque(&self) -> bool {
        ["trusted.overlay.opaque", "user.overlay.opaque"]
            .iter()
            .any(|name| self.xattrs.get(*name).is_some_and(|value| value == b"y"))
    }
}

/// Reads all below a directory, by descriptors: paths may be longer than the kernel takes in one call.
pub(crate) fn read(root: &Path) -> Nodes {
    let directory = File::open(root).expect("the root can be opened");
    let mut nodes = Nodes::new();
    let stat = rustix::fs::fstat(&directory).expect("the root can be looked at");
    nodes.insert(Vec::new(), node(directory.as_fd(), b".", &stat));
    read_below(directory.as_fd(), b"", &mut nodes);
    nodes
}

fn read_below(directory: BorrowedFd<'_>, prefix: &[u8], nodes: &mut Nodes) {
    for entry in Dir::read_from(directory).expect("a directory can be read") {
        let entry = entry.expect("a directory can be read");
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).expect("what is there can be seen");
        let path = [prefix, name].concat();
        let found = node(directory, name, &stat);
        if found.kind == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = rustix::fs::openat(directory, name, flags, Mode::empty()).expect("a directory can be opened");
            read_below(below.as_fd(), &[&path[..], b"/"].concat(), nodes);
        }
        nodes.insert(path, found);
    }
}

fn node(directory: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Node {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let content = match kind {
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(directory, name, flags, Mode::empty());
            opened.ok().map(|file| {
                let mut content = Vec::new();
                File::from(file).read_to_end(&mut content).expect("an open file can be read");
                content
            })
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(directory, name, Vec::new()).expect("a link can be read");
            Some(target.into_bytes())
        }
        _ => None,
    };
    // There is no call that takes a directory and a name.
    let reach = [format!("/proc/self/fd/{}/", directory.as_raw_fd()).as_bytes(), name].concat();
    let reach = reach.as_slice();
    // Some kernels have no attributes on links and devices, some file systems none at all.
    let mut list = vec![0; rustix::fs::llistxattr_query(reach).unwrap_or(0)];
    if !list.is_empty() {
        rustix::fs::llistxattr(reach, &mut list[..]).expect("attributes can be listed");
    }
    let names = list.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let xattrs = names
        .map(|name| {
            let length = rustix::fs::lgetxattr_query(reach, name).expect("a listed attribute can be read");
            let mut value = vec![0; length];
            if length > 0 {
                rustix::fs::lgetxattr(reach, name, &mut value[..]).expect("a listed attribute can be read");
            }
            (String::from_utf8_lossy(name).into_owned(), value)
        })
        .collect();
    let seen = DiskEntry {
        inode: stat.st_ino,
        size: stat.st_size.cast_unsigned(),
        mode: stat.st_mode & 0o7777,
        device: stat.st_rdev,
        owner: (stat.st_uid, stat.st_gid),
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).expect("less than a second")),
        ctime: (stat.st_ctime, stat.st_ctime_nsec),
    };
    Node { kind, stat: seen, content, xattrs, xattrs_sum: xattrs_sum(directory, name) }
}
