//! Whether the file manifest of an unpacked layer is what stands on disk: else a whole layer would count as damaged.

use std::collections::BTreeMap;

use rustix::fs::FileType;
use serde::Deserialize;
use twox_hash::xxhash3_128::Hasher;

use super::disk::{Node, Nodes};

/// The records of `files.list`, as any reader of that file has to read them.
#[derive(Debug, Deserialize)]
enum FileRecord {
    Entry(FileEntry),
    HardLink(Vec<u8>),
    Removed,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct FileEntry {
    kind: FileEntryKind,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: (i64, u32),
    xattrs: Option<u128>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
enum FileEntryKind {
    File { size: u64, content: u128 },
    Sparse { size: u64, content: u128, ranges: Vec<(u64, u64)> },
    Directory,
    Symlink(Vec<u8>),
    Fifo,
    Device { block: bool, major: u32, minor: u32 },
    Socket,
}

/// Keeps the last record of each path.
#[derive(Debug, Default)]
pub(crate) struct Recorder(BTreeMap<Vec<u8>, FileEntry>);

impl Recorder {
    pub(crate) fn record(&mut self, path: &[u8], record: &[u8]) {
        let entry = match postcard::from_bytes(record).expect("a record can be read") {
            FileRecord::Entry(entry) => entry,
            FileRecord::HardLink(target) => {
                self.0.get(&target).cloned().unwrap_or_else(|| panic!("{target:?} is linked and was not listed"))
            }
            FileRecord::Removed => {
                let below = [path, b"/"].concat();
                return self.0.retain(|other, _| other != path && !other.starts_with(&below));
            }
        };
        self.0.insert(path.to_vec(), entry);
    }

    /// Compares all that was listed with all that stands.
    pub(crate) fn assert_lists(&self, nodes: &Nodes) {
        let (listed, standing): (Vec<_>, Vec<_>) = (self.0.keys().collect(), nodes.keys().collect());
        assert_eq!(listed, standing, "listed, and on disk");
        for (path, listed) in &self.0 {
            let node = &nodes[path];
            let wanted = FileEntry {
                kind: kind(node, &listed.kind),
                mode: node.stat.mode,
                uid: node.stat.owner.0,
                gid: node.stat.owner.1,
                mtime: node.stat.mtime,
                xattrs: node.xattrs_sum,
            };
            assert_eq!(listed, &wanted, "{path:?} as listed, and on disk");
        }
    }
}

/// The kind of a node; of a file, the listing chooses whether it has holes.
fn kind(node: &Node, listed: &FileEntryKind) -> FileEntryKind {
    let device = |block| {
        let (major, minor) = (rustix::fs::major(node.stat.device), rustix::fs::minor(node.stat.device));
        FileEntryKind::Device { block, major, minor }
    };
    let size = node.stat.size;
    let Some(content) = &node.content else {
        return match node.kind {
            FileType::Directory => FileEntryKind::Directory,
            FileType::Fifo => FileEntryKind::Fifo,
            FileType::CharacterDevice => device(false),
            FileType::BlockDevice => device(true),
            // A file that only root can read: its content is taken on trust.
            FileType::RegularFile => listed.clone(),
            _ => FileEntryKind::Socket,
        };
    };
    match (node.kind, listed) {
        (FileType::Symlink, _) => FileEntryKind::Symlink(content.clone()),
        (_, FileEntryKind::Sparse { ranges, .. }) => {
            let (data, holes) = split(content, ranges);
            assert!(holes.iter().all(|&byte| byte == 0), "a hole has data");
            FileEntryKind::Sparse { size, content: Hasher::oneshot(&data), ranges: ranges.clone() }
        }
        _ => FileEntryKind::File { size, content: Hasher::oneshot(content) },
    }
}

/// What stands in the ranges, and what stands between them.
fn split(content: &[u8], ranges: &[(u64, u64)]) -> (Vec<u8>, Vec<u8>) {
    let (mut data, mut holes) = (Vec::new(), Vec::new());
    let mut at = 0;
    for &(offset, length) in ranges {
        let start = usize::try_from(offset).expect("files are small here");
        let end = start + usize::try_from(length).expect("files are small here");
        holes.extend_from_slice(&content[at..start]);
        data.extend_from_slice(&content[start..end]);
        at = end;
    }
    holes.extend_from_slice(&content[at..]);
    (data, holes)
}
