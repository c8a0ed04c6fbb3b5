//! Metadata of written paths that is applied or reported at the end: directories, whiteouts, recorded owners.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::whiteout::Opacity;
use crate::unpack::{
    archive::{TarMetadata, Xattrs},
    budget::MemoryReservation,
    error::Fault,
};

/// Maximum memory of a note in addition to its path: a slot in a half-full tree node, and a directory's metadata
/// without attributes.
const NOTE_COST: usize = 256;
/// Additional memory of a directory without an entry, and of a record: both are copied and written as text.
const IMPLICIT_COST: usize = 64;
const RECORD_COST: usize = 384;
const XATTR_COST: usize = 64;

/// An owner, mode, device or xattr that the archive has but the disk does not. With `Ownership::Record`, a path without
/// a record has the owner 0:0 in the archive and its mode on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnershipRecord {
    /// The path below the layer's root. `%` and bytes that are not printable ASCII are percent-encoded.
    pub(crate) path: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<DeviceRecord>,
    /// The names of xattrs that could not be set, encoded like the path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) xattrs: Vec<String>,
}

impl OwnershipRecord {
    pub(crate) fn new(path: &[u8], metadata: &TarMetadata, left_out: &[Vec<u8>]) -> Self {
        let TarMetadata { mode, uid, gid, .. } = *metadata;
        let xattrs = left_out.iter().map(|name| encoded(name)).collect();
        Self { path: encoded(path), uid, gid, mode, device: None, xattrs }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceRecord {
    pub(crate) block: bool,
    pub(crate) major: i64,
    pub(crate) minor: i64,
}

#[derive(Debug)]
pub(crate) struct DeferredMetadata {
    pub(crate) notes: BTreeMap<Vec<u8>, Note>,
    /// Whether a note may have the record of a device. Most layers have no devices.
    has_devices: bool,
    claim: MemoryReservation,
}

#[derive(Debug, Default)]
pub(crate) struct Note {
    pub(crate) whiteout: bool,
    pub(crate) opacity: Opacity,
    pub(crate) implicit: bool,
    /// A directory's metadata, which is set at the end, because writes below the directory change its times.
    pub(crate) directory: Option<Box<DirectoryMeta>>,
    pub(crate) record: Option<Box<OwnershipRecord>>,
}

#[derive(Debug)]
pub(crate) struct DirectoryMeta {
    pub(crate) metadata: TarMetadata,
    pub(crate) xattrs: Xattrs,
}

impl DirectoryMeta {
    fn attributes_cost(&self) -> usize {
        self.xattrs.iter().map(|(name, value)| name.len() + value.len() + XATTR_COST).sum()
    }
}

impl DeferredMetadata {
    pub(crate) fn new(claim: MemoryReservation) -> Self {
        DeferredMetadata { notes: BTreeMap::new(), has_devices: false, claim }
    }

    pub(crate) fn note(&mut self, path: &[u8]) -> Result<&mut Note, Fault> {
        if !self.notes.contains_key(path) {
            self.claim.grow(path.len() + NOTE_COST)?;
            self.notes.insert(path.to_vec(), Note::default());
        }
        Ok(self.notes.get_mut(path).expect("was inserted above"))
    }

    pub(crate) fn directory(&mut self, path: &[u8], metadata: TarMetadata, xattrs: Xattrs) -> Result<(), Fault> {
        let meta = DirectoryMeta { metadata, xattrs };
        self.claim.grow(meta.attributes_cost())?;
        let note = self.note(path)?;
        note.implicit = false;
        let replaced = note.directory.replace(Box::new(meta));
        self.claim.shrink(replaced.map_or(0, |meta| meta.attributes_cost()));
        Ok(())
    }

    pub(crate) fn implicit(&mut self, path: &[u8], opacity: Opacity) -> Result<(), Fault> {
        self.claim.grow(4 * path.len() + IMPLICIT_COST)?;
        *self.note(path)? = Note { implicit: true, opacity, ..Note::default() };
        Ok(())
    }

    pub(crate) fn record(&mut self, path: &[u8], record: OwnershipRecord) -> Result<(), Fault> {
        let names: usize = record.xattrs.iter().map(|name| 2 * name.len() + 32).sum();
        self.claim.grow(2 * record.path.len() + names + RECORD_COST)?;
        self.has_devices |= record.device.is_some();
        self.note(path)?.record = Some(Box::new(record));
        Ok(())
    }

    pub(crate) fn forget_device(&mut self, path: &[u8]) {
        if self.has_devices
            && let Some(note) = self.notes.get_mut(path)
        {
            note.record.take_if(|record| record.device.is_some());
        }
    }

    /// Removes the notes of a path and of everything below it. Releases only the memory of the attributes, so the limit
    /// is reached earlier.
    pub(crate) fn forget(&mut self, path: &[u8]) {
        let own = self.notes.remove(path);
        let below = |end: u8| [path, &[end]].concat();
        let below = self.notes.extract_if(below(b'/')..below(b'/' + 1), |_, _| true).map(|(_, note)| note);
        let directories = own.into_iter().chain(below).filter_map(|note| note.directory);
        self.claim.shrink(directories.map(|meta| meta.attributes_cost()).sum());
    }
}

pub(crate) fn encoded(path: &[u8]) -> String {
    const KEPT: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS.add(b'%');
    percent_encoding::percent_encode(path, KEPT).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unpack::LayerMemory;

    fn deferred(memory: usize) -> DeferredMetadata {
        DeferredMetadata::new(MemoryReservation::on(&LayerMemory::of_its_own(memory as u64)))
    }

    #[test]
    fn a_removed_path_is_forgotten_with_all_below_and_nothing_beside() {
        let mut deferred = deferred(1 << 20);
        for path in ["a", "a/b", "a/b/c", "a!", "a0", "ab"] {
            deferred.note(path.as_bytes()).unwrap();
        }
        deferred.forget(b"a");
        let left: Vec<_> = deferred.notes.into_keys().collect();
        assert_eq!(left, [b"a!".to_vec(), b"a0".to_vec(), b"ab".to_vec()]);
    }

    /// How many folders one MiB holds, until it is refused.
    fn held(mut remember: impl FnMut(&mut DeferredMetadata, &[u8]) -> Result<(), Fault>) -> usize {
        let mut deferred = deferred(1 << 20);
        for noted in 0.. {
            if let Err(refused) = remember(&mut deferred, format!("usr/share/some/folder-{noted}").as_bytes()) {
                assert_eq!(refused.kind, crate::unpack::UnpackErrorKind::Limit, "{refused:?}");
                return noted;
            }
        }
        unreachable!("memory is bounded")
    }

    #[test]
    fn what_is_remembered_is_bounded_at_some_hundred_bytes_a_folder() {
        let notes = held(|deferred, path| deferred.note(path).map(|_| ()));
        assert!((3_000..5_000).contains(&notes), "{notes} in a MiB");
        let implicit = held(|deferred, path| deferred.implicit(path, Opacity::Merged));
        assert!((2_000..2_600).contains(&implicit), "{implicit} in a MiB");
        let records = held(|deferred, path| {
            let xattrs = vec!["x".repeat(100); 10];
            let record = OwnershipRecord { path: encoded(path), uid: 1, gid: 1, mode: 0, device: None, xattrs };
            deferred.record(path, record)
        });
        assert!((300..400).contains(&records), "{records} in a MiB");
    }

    #[test]
    fn attributes_that_are_replaced_or_removed_are_not_counted() {
        let mut deferred = deferred(1 << 20);
        for round in 0..100 {
            deferred.directory(b"a/b", TarMetadata::default(), vec![(b"user.a".to_vec(), vec![0; 60_000])]).unwrap();
            if round % 2 == 0 {
                deferred.forget(b"a");
            }
        }
    }

    #[test]
    fn a_note_takes_no_more_than_it_is_counted_for() {
        // Tree nodes are half full after inserts in order.
        let place = 2 * (size_of::<Vec<u8>>() + size_of::<Note>());
        let heap = 16 + 16;
        assert!(place + size_of::<DirectoryMeta>() + heap <= NOTE_COST, "{place} and {}", size_of::<DirectoryMeta>());
        assert!(2 * size_of::<OwnershipRecord>() + heap <= RECORD_COST, "{}", size_of::<OwnershipRecord>());
    }
}
