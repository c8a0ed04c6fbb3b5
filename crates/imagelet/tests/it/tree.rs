//! Trees of files: what layers merge to, and what lies on a disk.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use crate::images::{Entry, Kind, Layer};

/// Path below the root → what lies there.
pub(crate) type Tree = BTreeMap<String, Node>;

/// One file as `stat` sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) content: Content,
    pub(crate) mode: u32,
    pub(crate) owner: (u64, u64),
    /// Seconds; `None` for directories, whose time any merge may touch.
    pub(crate) mtime: Option<u64>,
    /// Only `user.*`, which every file system of the tests has.
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// Names of the same file, this one included.
    pub(crate) links: usize,
}

/// What a file holds.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Directory,
    File(Vec<u8>),
    Symlink(String),
    /// A device, pipe or socket.
    Special,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory => f.write_str("directory"),
            Self::File(bytes) => {
                write!(f, "file of {} bytes {:?}", bytes.len(), String::from_utf8_lossy(&bytes[..bytes.len().min(24)]))
            }
            Self::Symlink(target) => write!(f, "→ {target}"),
            Self::Special => f.write_str("special"),
        }
    }
}

/// What the layers merge to: a layer's whiteouts hide only what lower layers have.
pub(crate) fn merged(layers: &[Layer]) -> Tree {
    let mut tree = Tree::new();
    for layer in layers {
        for entry in &layer.entries {
            match entry.kind {
                Kind::Whiteout => remove(&mut tree, &entry.path, true),
                Kind::Opaque => remove(&mut tree, &entry.path, false),
                _ => {}
            }
        }
        for entry in &layer.entries {
            insert(&mut tree, entry);
        }
    }
    tree
}

fn remove(tree: &mut Tree, path: &str, itself: bool) {
    let below = format!("{path}/");
    tree.retain(|name, _| !(name.starts_with(&below) || (itself && name == path)));
}

fn insert(tree: &mut Tree, entry: &Entry) {
    let content = match &entry.kind {
        Kind::Directory => Content::Directory,
        Kind::File(bytes) => Content::File(bytes.clone()),
        Kind::Symlink(target) => Content::Symlink(target.clone()),
        Kind::Hardlink(target) => {
            let target = tree.get_mut(target).expect("a hard link's target comes first");
            target.links += 1;
            let node = target.clone();
            tree.insert(entry.path.clone(), node);
            return;
        }
        Kind::Sparse(size, pieces) => {
            let mut bytes = vec![0; usize::try_from(*size).unwrap()];
            for (at, piece) in pieces {
                let at = usize::try_from(*at).unwrap();
                bytes[at..at + piece.len()].copy_from_slice(piece);
            }
            Content::File(bytes)
        }
        Kind::NullDevice | Kind::BlockDevice(..) | Kind::Fifo => Content::Special,
        Kind::Whiteout | Kind::Opaque => return,
    };
    if content != Content::Directory {
        remove(tree, &entry.path, true);
    }
    let mtime = (content != Content::Directory).then_some(entry.mtime);
    let xattrs = entry.xattrs.iter().cloned().collect();
    tree.insert(entry.path.clone(), Node { content, mode: entry.mode, owner: entry.owner, mtime, xattrs, links: 1 });
}

/// What lies below a directory, the directory itself left out.
pub(crate) fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("read {}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            let node = node(&path);
            if node.content == Content::Directory {
                pending.push(path.clone());
            }
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            tree.insert(name, node);
        }
    }
    tree
}

fn node(path: &Path) -> Node {
    let stat = fs::symlink_metadata(path).unwrap();
    let content = if stat.is_dir() {
        Content::Directory
    } else if stat.is_symlink() {
        Content::Symlink(fs::read_link(path).unwrap().to_str().unwrap().to_owned())
    } else if stat.is_file() {
        Content::File(fs::read(path).unwrap())
    } else {
        Content::Special
    };
    let is_directory = content == Content::Directory;
    Node {
        mode: stat.permissions().mode() & 0o7777,
        owner: (u64::from(stat.uid()), u64::from(stat.gid())),
        mtime: (!is_directory).then(|| u64::try_from(stat.mtime()).unwrap()),
        xattrs: if stat.is_symlink() { BTreeMap::new() } else { user_xattrs(path) },
        links: if is_directory { 1 } else { usize::try_from(stat.nlink()).unwrap() },
        content,
    }
}

fn user_xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0_u8; 4096];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name).into_owned());
    names
        .filter(|name| name.starts_with("user."))
        .map(|name| {
            let mut value = vec![0_u8; 4096];
            let length = rustix::fs::lgetxattr(path, name.as_str(), &mut value).unwrap();
            value.truncate(length);
            (name, value)
        })
        .collect()
}

/// Fails with the paths that differ, not with two whole trees.
pub(crate) fn assert_same(found: &Tree, expected: &Tree) {
    let differences = differences(found, expected);
    assert!(differences.is_empty(), "trees differ:\n{}", differences.join("\n"));
}

/// A line for each path that differs.
pub(crate) fn differences(found: &Tree, expected: &Tree) -> Vec<String> {
    let mut differences = Vec::new();
    for path in expected.keys().chain(found.keys().filter(|path| !expected.contains_key(*path))) {
        if found.get(path) != expected.get(path) {
            differences.push(format!("{path}: expected {:?}, found {:?}", expected.get(path), found.get(path)));
        }
    }
    differences
}

/// Bytes and files that a directory takes on its disk, as `du` counts them.
pub(crate) fn disk_usage(root: &Path) -> u64 {
    let mut total = 0;
    let mut seen = std::collections::BTreeSet::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(path) = pending.pop() {
        // A daemon may take files away while we look.
        let Ok(stat) = fs::symlink_metadata(&path) else { continue };
        if seen.insert((stat.dev(), stat.ino())) {
            total += stat.blocks() * 512;
        }
        if stat.is_dir() {
            pending.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    total
}

#[test]
fn whiteouts_hide_only_what_lower_layers_have() {
    let lower = Layer::gzip().directory("d", 0o755).file("d/a", "1", 0o644).file("d/b", "2", 0o644);
    let upper = Layer::gzip().whiteout("d/a").file("d/a", "3", 0o600).opaque("d").file("d/c", "4", 0o644);
    let tree = merged(&[lower, upper]);
    assert_eq!(tree.keys().collect::<Vec<_>>(), ["d", "d/a", "d/c"]);
    assert_eq!(tree["d/a"].mode, 0o600);
}
