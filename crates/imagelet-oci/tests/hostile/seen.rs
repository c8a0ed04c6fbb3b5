//! What lies on the disk, and whether it is what a case wants.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::{FileExt as _, FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use crate::case::{Kind, Node, Tree};

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// All of a file of the host that an attack could change; any change at all moves `ctime`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    content: Vec<u8>,
    numbers: [i64; 8],
    xattrs: Vec<u8>,
}

impl Trace {
    pub(crate) fn of(path: &Path, metadata: &Metadata) -> Self {
        let content = if metadata.is_file() { fs::read(path).expect("it can be read") } else { Vec::new() };
        let numbers = [
            i64::from(metadata.mode()),
            i64::from(metadata.uid()),
            i64::from(metadata.gid()),
            metadata.nlink().cast_signed(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ];
        let mut xattrs = vec![0; 4096];
        let length = rustix::fs::llistxattr(path, &mut xattrs).unwrap_or(0);
        xattrs.truncate(length);
        Self { content, numbers, xattrs }
    }
}

/// Holds a layer's folder, with `fs` and what is recorded beside it, against the tree it must have.
pub(crate) fn check(layer: &Path, tree: &Tree) -> Result<(), String> {
    let root = layer.join("fs");
    let recorded = fs::read_to_string(layer.join("ownership.json")).unwrap_or_default();
    let found = paths(&root);
    if let Some(path) = found.iter().find(|path| !tree.nodes.contains_key(*path)) {
        return Err(format!("`{}` is in the layer", String::from_utf8_lossy(path)));
    }
    for (path, node) in &tree.nodes {
        let shown = String::from_utf8_lossy(path);
        let left_out = matches!(node.kind, Kind::Device { .. }) && recorded.contains(&format!("\"path\":\"{shown}\""));
        if !found.contains(path) {
            if left_out {
                continue;
            }
            return Err(format!("`{shown}` is not in the layer: {:?}", shown_all(&found)));
        }
        check_node(&root, path, node).map_err(|why| format!("`{shown}`: {why}"))?;
    }
    Ok(())
}

fn shown_all(paths: &[Vec<u8>]) -> Vec<String> {
    paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

/// All paths below a folder.
fn paths(root: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(join(root, &folder)).expect("it can be read") {
            let entry = entry.expect("it can be read");
            let mut path = folder.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(entry.file_name().into_vec());
            if entry.file_type().expect("it has a type").is_dir() {
                open.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

fn join(root: &Path, path: &[u8]) -> PathBuf {
    root.join(std::ffi::OsStr::from_bytes(path))
}

fn check_node(root: &Path, path: &[u8], node: &Node) -> Result<(), String> {
    let place = join(root, path);
    let metadata = fs::symlink_metadata(&place).map_err(|error| error.to_string())?;
    check_kind(root, &place, &metadata, &node.kind)?;
    if matches!(node.kind, Kind::Whiteout | Kind::SameAs(_)) {
        return Ok(());
    }
    let mode = metadata.mode() & 0o7777;
    let wanted = node.mode.map(|mode| if metadata.is_dir() && !is_root() { mode | 0o700 } else { mode });
    if wanted.is_some_and(|wanted| wanted != mode) {
        return Err(format!("its mode is {mode:o}, not {:o}", wanted.unwrap_or_default()));
    }
    let owner = (metadata.uid(), metadata.gid());
    if is_root() && owner != node.owner {
        return Err(format!("its owner is {owner:?}, not {:?}", node.owner));
    }
    let mtime = (metadata.mtime(), metadata.mtime_nsec());
    if node.mtime.is_some_and(|wanted| wanted != mtime) {
        return Err(format!("its time is {mtime:?}, not {:?}", node.mtime));
    }
    for (name, wanted) in &node.xattrs {
        let mut value = [0; 1024];
        let length = rustix::fs::lgetxattr(&place, *name, &mut value).ok();
        let value = length.map(|length| value[..length].to_vec());
        if value != *wanted {
            return Err(format!("its attribute {name} is {value:?}, not {wanted:?}"));
        }
    }
    Ok(())
}

fn check_kind(root: &Path, place: &Path, metadata: &Metadata, kind: &Kind) -> Result<(), String> {
    let file_type = metadata.file_type();
    let device = |block: bool, number: u64| {
        (if block { file_type.is_block_device() } else { file_type.is_char_device() }) && metadata.rdev() == number
    };
    let right = match kind {
        Kind::Directory => file_type.is_dir(),
        // Only root can read what nobody may.
        Kind::File(content) if !is_root() && metadata.mode() & 0o400 == 0 => metadata.len() == content.len() as u64,
        Kind::File(content) => {
            file_type.is_file() && {
                let found = fs::read(place).map_err(|error| error.to_string())?;
                if found != *content {
                    let found = String::from_utf8_lossy(&found[..found.len().min(100)]);
                    return Err(format!("it has {found:?} in it"));
                }
                true
            }
        }
        Kind::Sparse { size, first, last } => return check_sparse(place, metadata, *size, first, last),
        Kind::Symlink(target) => {
            file_type.is_symlink()
                && fs::read_link(place).map_err(|error| error.to_string())?.as_os_str().as_bytes() == target
        }
        Kind::SameAs(other) => {
            let other = fs::symlink_metadata(join(root, other)).map_err(|error| error.to_string())?;
            (other.dev(), other.ino()) == (metadata.dev(), metadata.ino())
        }
        Kind::Fifo => file_type.is_fifo(),
        Kind::Device { block, major, minor } => device(*block, rustix::fs::makedev(*major, *minor)),
        Kind::Whiteout => {
            device(false, 0)
                || file_type.is_file() && rustix::fs::lgetxattr(place, "user.overlay.whiteout", &mut [0; 8]).is_ok()
        }
    };
    if right { Ok(()) } else { Err(format!("it is {file_type:?}, not {kind:?}")) }
}

fn check_sparse(place: &Path, metadata: &Metadata, size: u64, first: &[u8], last: &[u8]) -> Result<(), String> {
    /// In units of 512 bytes; the data of the cases is some bytes.
    const BLOCKS_MAX: u64 = 256;
    if !metadata.is_file() || metadata.len() != size || metadata.blocks() > BLOCKS_MAX {
        return Err(format!("it has {} bytes in {} blocks", metadata.len(), metadata.blocks()));
    }
    let file = fs::File::open(place).map_err(|error| error.to_string())?;
    for (wanted, at) in [(first, 0), (last, size - last.len() as u64)] {
        let mut found = vec![0; wanted.len()];
        file.read_exact_at(&mut found, at).map_err(|error| error.to_string())?;
        if found != wanted {
            return Err(format!("it has {found:?} at {at}"));
        }
    }
    Ok(())
}

/// What a mounted tree shows: paths, and the content of files.
pub(crate) fn merged(root: &Path) -> BTreeMap<String, Option<String>> {
    let content = |path: &[u8]| {
        let place = join(root, path);
        let is_file = fs::symlink_metadata(&place).is_ok_and(|metadata| metadata.is_file());
        is_file.then(|| String::from_utf8_lossy(&fs::read(&place).expect("it can be read")).into_owned())
    };
    paths(root).into_iter().map(|path| (String::from_utf8_lossy(&path).into_owned(), content(&path))).collect()
}

/// All below a folder, as two unpackers' trees are compared.
pub(crate) type TracedTree = BTreeMap<Vec<u8>, TracedNode>;

/// What two unpackers must agree on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TracedNode {
    /// With a link's target and a device's number.
    pub(crate) kind: String,
    pub(crate) content: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    /// Nanoseconds since 1970.
    pub(crate) mtime: i128,
    /// The least of its names, where it has several.
    pub(crate) first_name: Option<Vec<u8>>,
}

pub(crate) fn trace_tree(root: &Path) -> TracedTree {
    let mut tree = TracedTree::new();
    let mut inodes: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut found = paths(root);
    found.sort();
    for path in found {
        let place = join(root, &path);
        let metadata = fs::symlink_metadata(&place).expect("it is there");
        let kind = metadata.file_type();
        let kind = if kind.is_dir() {
            "folder".to_owned()
        } else if kind.is_symlink() {
            format!("link to {}", fs::read_link(&place).expect("a link").as_os_str().as_bytes().escape_ascii())
        } else if kind.is_file() {
            "file".to_owned()
        } else {
            format!("{kind:?} {:x}", metadata.rdev())
        };
        let several = !metadata.is_dir() && metadata.nlink() > 1;
        let first_name = several.then(|| inodes.entry(metadata.ino()).or_insert_with(|| path.clone()).clone());
        let content = if metadata.is_file() { fs::read(&place).unwrap_or_default() } else { Vec::new() };
        let mtime = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        let (mode, owner) = (metadata.mode() & 0o7777, (metadata.uid(), metadata.gid()));
        tree.insert(path, TracedNode { kind, content, mode, owner, mtime, first_name });
    }
    tree
}
