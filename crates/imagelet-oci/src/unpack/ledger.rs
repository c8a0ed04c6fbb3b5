//! What must be remembered about written paths until the end: directories' metadata, whiteouts, owners not applied.

use std::{collections::BTreeMap, ops::Bound};

use serde::{Deserialize, Serialize};

use super::{error::Fault, pax::Time, whiteout::Opacity};

/// What an entry takes besides its path, roughly: a tree node's share and the fixed fields.
const NOTE_COST: usize = 256;

/// An owner, mode, device or xattr that the archive gives and the disk does not have.
///
/// Paths without a record are owned by 0:0 and have their mode on disk, where owners are recorded at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnershipRecord {
    /// From the layer's root, without a leading slash; bytes that are not printable ASCII, and `%`, percent-encoded.
    pub path: String,
    /// The archive's user.
    pub uid: u32,
    /// The archive's group.
    pub gid: u32,
    /// The archive's permission bits.
    pub mode: u32,
    /// A device node that could not be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceRecord>,
    /// Names of xattrs that could not be set, encoded as the path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<String>,
}

/// A device node that could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Block device, else character device.
    pub block: bool,
    /// Major number, as the archive has it.
    pub major: i64,
    /// Minor number, as the archive has it.
    pub minor: i64,
}

/// Notes by path; a path's note goes when what was at the path is removed.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    notes: BTreeMap<Vec<u8>, Note>,
    cost: usize,
    cost_max: usize,
}

/// What is remembered of one path.
#[derive(Debug, Default)]
pub(super) struct Note {
    /// A whiteout stands there.
    pub(super) whiteout: bool,
    pub(super) opacity: Opacity,
    /// A directory that no entry names (yet).
    pub(super) implicit: bool,
    /// A directory's metadata, applied at the end: what is written below would change its times.
    pub(super) directory: Option<DirectoryMeta>,
    pub(super) record: Option<OwnershipRecord>,
}

/// A directory's metadata.
#[derive(Debug)]
pub(super) struct DirectoryMeta {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: Time,
    pub(super) atime: Time,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Ledger {
    pub(super) fn new(cost_max: usize) -> Self {
        Ledger { cost_max, ..Ledger::default() }
    }

    pub(super) fn get(&self, path: &[u8]) -> Option<&Note> {
        self.notes.get(path)
    }

    /// The note of a path, made where there is none. `extra` is what the caller is about to add, in bytes.
    pub(super) fn note(&mut self, path: &[u8], extra: usize) -> Result<&mut Note, Fault> {
        if !self.notes.contains_key(path) {
            self.cost = self.cost.saturating_add(path.len() + NOTE_COST);
            self.notes.insert(path.to_vec(), Note::default());
        }
        self.cost = self.cost.saturating_add(extra);
        if self.cost > self.cost_max {
            return Err(Fault::limit(format!("more than {} bytes to remember until the end", self.cost_max)));
        }
        Ok(self.notes.get_mut(path).expect("was inserted above"))
    }

    /// Forgets that a device was left out at a path, because something else takes its place.
    pub(super) fn forget_device(&mut self, path: &[u8]) {
        if let Some(note) = self.notes.get_mut(path) {
            note.record.take_if(|record| record.device.is_some());
        }
    }

    /// Forgets a path and all below it. What it cost stays counted: a bound needs no refunds.
    pub(super) fn forget(&mut self, path: &[u8]) {
        if self.notes.is_empty() {
            return;
        }
        self.notes.remove(path);
        let below = |end: u8| [path, &[end]].concat();
        let range = (Bound::Included(below(b'/')), Bound::Excluded(below(b'/' + 1)));
        let keys: Vec<Vec<u8>> = self.notes.range(range).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.notes.remove(&key);
        }
    }

    /// All notes, by path.
    pub(super) fn into_notes(self) -> BTreeMap<Vec<u8>, Note> {
        self.notes
    }
}

/// Bytes of a path, as a record keeps them.
pub(super) fn encoded(path: &[u8]) -> String {
    const KEPT: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS.add(b'%');
    percent_encoding::percent_encode(path, KEPT).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_path_is_forgotten_with_all_below_and_nothing_beside() {
        let mut ledger = Ledger::new(1 << 20);
        for path in ["a", "a/b", "a/b/c", "a!", "a0", "ab"] {
            ledger.note(path.as_bytes(), 0).unwrap();
        }
        ledger.forget(b"a");
        let left: Vec<_> = ledger.into_notes().into_keys().collect();
        assert_eq!(left, [b"a!".to_vec(), b"a0".to_vec(), b"ab".to_vec()]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut ledger = Ledger::new(3 * NOTE_COST);
        ledger.note(b"a", 0).unwrap();
        ledger.note(b"b", 0).unwrap();
        assert!(matches!(ledger.note(b"c", 0), Err(Fault::Limit(_))));
    }
}
