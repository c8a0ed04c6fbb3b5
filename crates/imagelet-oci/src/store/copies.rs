//! Copies of all records in one file, so that a start does not have to open each of ten thousand.
//!
//! ```text
//! ROOT/records.cache   magic, inode of ROOT, copies, checksum of all before; may vanish at any time
//! ROOT/records.new     the next of these in the making; removed at start
//!
//! a copy:  kind, folder, what the folder was, what the record's file was, the bytes of that file
//! ```
//!
//! **The records' own files stay the truth.** A copy is believed only while its record's file and the folder around it are
//! the inodes they were, of the size they had, and nobody has changed either since: the kernel notes each change of
//! content or names in a time that no program can set. So a record that was written, replaced, marked as damaged, removed
//! or restored from elsewhere after the copy is read itself, as all are where this file is missing, torn, garbled or of
//! another store. What changed in the last moment before the copy was made is not copied: two changes of one moment would
//! look like one. The file is not synced. Nothing depends on it, and what a power cut leaves of it fails the checksum.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};
use twox_hash::xxhash3_128::Hasher;

use super::{Store, disk::create_anew, reading};

/// The file's name.
pub(super) const COPIES: &str = "records.cache";
/// What becomes the file.
pub(super) const COPIES_NEW: &str = "records.new";
/// Another layout has another number.
const MAGIC: &[u8] = b"imagelet records 1\n";
const CHECKSUM_LENGTH: usize = 16;
/// Half a million records; what is larger is not ours.
const FILE_SIZE_MAX: u64 = 512 << 20;
/// Two changes within this time may carry one mark: file systems count time in steps of up to two seconds.
pub(super) const MOMENT: Duration = Duration::from_secs(2);
/// Fewer records are read as quickly as they are copied.
const UNCOPIED_MIN: usize = 64;
/// A new file is worth its writing when it differs in one of so many records.
const UNCOPIED_SHARE: usize = 16;

/// Whose record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Layer,
    Image,
}

/// What a file or folder was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    size: u64,
    /// When content, names or rights changed last: seconds and nanoseconds.
    changed: (i64, u32),
}

/// The file as it was found.
#[derive(Debug, Default)]
pub(super) struct Copies {
    bytes: Vec<u8>,
    /// Where the copy of a folder begins, by the first digits of its name.
    places: HashMap<(Kind, u128), usize>,
    believed: AtomicUsize,
    missed: AtomicUsize,
}

/// One copy.
#[derive(Debug, PartialEq, Eq)]
struct RecordCopy<'a> {
    kind: Kind,
    folder: &'a str,
    around: Stamp,
    own: Stamp,
    record: &'a [u8],
}

impl Kind {
    /// The file of its record.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Layer => "layer.json",
            Self::Image => "image.json",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Layer => "layers",
            Self::Image => "images",
        }
    }
}

impl Stamp {
    /// What stands at a path now. `None`: nothing, or its file system does not tell enough.
    pub(super) fn of(place: &File, path: &str) -> Option<Self> {
        let wanted = StatxFlags::INO.union(StatxFlags::SIZE).union(StatxFlags::CTIME);
        let found = statx(place, path, AtFlags::SYMLINK_NOFOLLOW, wanted).ok()?;
        let changed = (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec);
        let is_told = found.stx_mask & wanted.bits() == wanted.bits();
        is_told.then_some(Self { inode: found.stx_ino, size: found.stx_size, changed })
    }

    /// Whether it was this for so long at a time of the same clock.
    fn is_older_than(&self, moment: Duration, now: (i64, i64)) -> bool {
        let seconds = i64::try_from(moment.as_secs()).unwrap_or(i64::MAX);
        (self.changed.0.saturating_add(seconds), i64::from(self.changed.1)) <= now
    }

    fn write(self, out: &mut Vec<u8>) {
        for number in [self.inode, self.size, self.changed.0.cast_unsigned()] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.changed.1.to_le_bytes());
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let [inode, size, seconds] = [take_u64(from)?, take_u64(from)?, take_u64(from)?];
        Some(Self { inode, size, changed: (seconds.cast_signed(), take_u32(from)?) })
    }
}

impl Copies {
    /// Reads the file of a store. What is wrong with it makes it empty.
    pub(super) fn load(root: &Path) -> Self {
        match Self::read(root) {
            Ok(Some(copies)) => copies,
            Ok(None) => {
                tracing::debug!("the copies of the records are not of this store, or not whole; each record is read");
                Self::default()
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::debug!(%error, "the copies of the records do not read; each record is read");
                }
                Self::default()
            }
        }
    }

    fn read(root: &Path) -> io::Result<Option<Self>> {
        let nonblock = OFlags::NONBLOCK.bits().cast_signed();
        let file = fs::OpenOptions::new().read(true).custom_flags(nonblock).open(root.join(COPIES))?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() > FILE_SIZE_MAX {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default() + 1);
        file.take(FILE_SIZE_MAX).read_to_end(&mut bytes)?;
        Ok(Self::parse(bytes, fs::metadata(root)?.ino()))
    }

    fn parse(mut bytes: Vec<u8>, inode: u64) -> Option<Self> {
        let end = bytes.len().checked_sub(CHECKSUM_LENGTH)?;
        let (covered, checksum) = bytes.split_at(end);
        if checksum != Hasher::oneshot(covered).to_le_bytes() {
            return None;
        }
        let mut rest = covered.strip_prefix(MAGIC)?;
        if take_u64(&mut rest)? != inode {
            return None;
        }
        let mut places = HashMap::with_capacity(usize::try_from(take_u64(&mut rest)?).ok()?.min(end / 64));
        while !rest.is_empty() {
            let place = end - rest.len();
            let copy = RecordCopy::read(&mut rest)?;
            places.insert((copy.kind, first_digits(copy.folder)?), place);
        }
        bytes.truncate(end);
        Some(Self { bytes, places, ..Self::default() })
    }

    /// The record of a folder, if the copy of it holds.
    pub(super) fn of(&self, kind: Kind, place: Option<&File>, folder: &str) -> Option<&[u8]> {
        let found = place.and_then(|place| {
            let copy = self.find(kind, folder)?;
            (now(place, kind, folder)? == (copy.around, copy.own)).then_some(copy.record)
        });
        let counter = if found.is_some() { &self.believed } else { &self.missed };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// A copy turned out to be of no use.
    pub(super) fn regret(&self) {
        self.believed.fetch_sub(1, Ordering::Relaxed);
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    fn find(&self, kind: Kind, folder: &str) -> Option<RecordCopy<'_>> {
        let place = *self.places.get(&(kind, first_digits(folder)?))?;
        RecordCopy::read(&mut self.bytes.get(place..)?).filter(|copy| copy.folder == folder)
    }

    /// In how many records the file and the store differ, once all of the store were asked for.
    pub(super) fn differences(&self) -> usize {
        let unused = self.places.len().saturating_sub(self.believed.load(Ordering::Relaxed));
        unused.max(self.missed.load(Ordering::Relaxed))
    }
}

impl<'a> RecordCopy<'a> {
    fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        out.push(match self.kind {
            Kind::Layer => 0,
            Kind::Image => 1,
        });
        let lengths = (u8::try_from(self.folder.len()).ok()?, u32::try_from(self.record.len()).ok()?);
        out.push(lengths.0);
        out.extend_from_slice(&lengths.1.to_le_bytes());
        out.extend_from_slice(self.folder.as_bytes());
        self.around.write(out);
        self.own.write(out);
        out.extend_from_slice(self.record);
        Some(())
    }

    fn read(from: &mut &'a [u8]) -> Option<Self> {
        let kind = match take(from, 1)? {
            [0] => Kind::Layer,
            [1] => Kind::Image,
            _ => return None,
        };
        let folder_length = usize::from(*take(from, 1)?.first()?);
        let record_length = usize::try_from(take_u32(from)?).ok()?;
        let folder = std::str::from_utf8(take(from, folder_length)?).ok()?;
        let (around, own) = (Stamp::read(from)?, Stamp::read(from)?);
        Some(Self { kind, folder, around, own, record: take(from, record_length)? })
    }
}

impl Store {
    /// So many records changed that are not in the file of copies.
    pub(super) fn note_uncopied(&self, records: usize) {
        self.uncopied.fetch_add(records, Ordering::Relaxed);
    }

    /// Whether the next start would have to read many records one by one.
    pub(crate) fn wants_copies(&self) -> bool {
        let uncopied = self.uncopied.load(Ordering::Relaxed);
        uncopied >= UNCOPIED_MIN && !self.is_read_only() && {
            let index = self.index();
            uncopied >= (index.images.len() + index.layers.len()) / UNCOPIED_SHARE
        }
    }

    /// Writes the file of copies if that is worth it. Blocks on the disk; the store can be used meanwhile.
    ///
    /// # Errors
    /// When the disk refuses; the file of before then stays.
    pub(crate) fn copy_records(&self) -> io::Result<()> {
        let _alone = self.copying.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !self.wants_copies() {
            return Ok(());
        }
        // What changes from here on may or may not be in it.
        let uncopied = self.uncopied.swap(0, Ordering::Relaxed);
        write(&self.root, MOMENT).map(drop).inspect_err(|_| self.note_uncopied(uncopied))
    }
}

/// Copies what lies in a store; answers how many records that are.
pub(super) fn write(root: &Path, moment: Duration) -> io::Result<usize> {
    let (path, beside) = (root.join(COPIES), root.join(COPIES_NEW));
    let mut file = create_anew(&beside)?;
    let written = (|| {
        // The time of this file system, whose clock may be another machine's.
        file.write_all(MAGIC)?;
        let metadata = file.metadata()?;
        let (bytes, count) = copied(root, moment, (metadata.ctime(), metadata.ctime_nsec()))?;
        file.write_all(&bytes[MAGIC.len()..])?;
        drop(file);
        fs::rename(&beside, &path)?;
        Ok(count)
    })();
    written.inspect_err(|_| {
        // The error says more than that it could not be cleaned up after.
        let _ = fs::remove_file(&beside);
    })
}

fn copied(root: &Path, moment: Duration, now_is: (i64, i64)) -> io::Result<(Vec<u8>, usize)> {
    let before = Copies::load(root);
    let mut bytes = Vec::with_capacity(before.bytes.len() + (1 << 16));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&fs::metadata(root)?.ino().to_le_bytes());
    let at = bytes.len();
    bytes.extend_from_slice(&0_u64.to_le_bytes());
    let mut count = 0_usize;
    for kind in [Kind::Layer, Kind::Image] {
        let path = root.join(kind.folder());
        let place = File::open(&path)?;
        for folder in reading::folders(&path).map_err(io::Error::other)? {
            let Some((around, own)) = now(&place, kind, &folder) else { continue };
            if !around.is_older_than(moment, now_is) || !own.is_older_than(moment, now_is) {
                continue;
            }
            let known = before.find(kind, &folder).filter(|copy| (copy.around, copy.own) == (around, own));
            let known = known.map(|copy| copy.record);
            let read = if known.is_some() { None } else { reading::record_to_copy(&path, kind, &folder) };
            let Some(record) = known.or(read.as_deref()) else { continue };
            // It was the same before and after it was read.
            if known.is_some() || now(&place, kind, &folder) == Some((around, own)) {
                let copy = RecordCopy { kind, folder: &folder, around, own, record };
                count += usize::from(copy.write(&mut bytes).is_some());
            }
        }
    }
    bytes[at..at + 8].copy_from_slice(&(count as u64).to_le_bytes());
    let checksum = Hasher::oneshot(&bytes).to_le_bytes();
    bytes.extend_from_slice(&checksum);
    Ok((bytes, count))
}

/// What a folder and the record in it are now.
fn now(place: &File, kind: Kind, folder: &str) -> Option<(Stamp, Stamp)> {
    Some((Stamp::of(place, folder)?, Stamp::of(place, &format!("{folder}/{}", kind.file()))?))
}

/// Tells folders apart but for one chance in 2^128; the whole name decides.
fn first_digits(folder: &str) -> Option<u128> {
    u128::from_str_radix(folder.get(..32)?, 16).ok()
}

fn take<'a>(from: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(taken)
}

fn take_u64(from: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(from, 8)?.try_into().ok()?))
}

fn take_u32(from: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(from, 4)?.try_into().ok()?))
}

#[cfg(test)]
#[path = "copies_tests.rs"]
mod tests;
