//! `files.list`: what a layer's tree held when it was unpacked, written in one pass and read back to check the tree.
//!
//! ```text
//! "imagelet files 1\n", then records: LENGTH of what follows, TAG, PATH, fields by tag
//!   -                                   nothing is at the path any more, nor below it
//!   h  TARGET                           one more name of what stands at TARGET at this point of the list
//!   f  META SIZE SUM                    a file
//!   s  META SIZE SUM COUNT (SKIP LENGTH)…   a file with holes; SKIP counts from the end of the range before
//!   d p u  META                         directory, pipe, socket
//!   l  META TARGET                      symbolic link
//!   c b  META MAJOR MINOR               device
//! META = MODE UID GID SECONDS NANOS XATTRS
//! ```
//!
//! Numbers are LEB128 (SECONDS zigzag), texts are a length and bytes, SUM is 16 bytes of XXH3-128, XATTRS is 0 or 1 and
//! a SUM. A later record for a path takes the place of an earlier one. The list's own SHA-256 is in `layer.json`.

use std::{fs::File, io, io::Write as _};

use imagelet_core::image::{Digest, DigestAlgorithm};

use crate::{
    hash::Hash,
    unpack::{FileEntry, FileEntryKind, FileManifest, Sum},
};

pub(crate) const LIST: &str = "files.list";
pub(crate) const MAGIC: &[u8] = b"imagelet files 1\n";
/// A record with the largest map of a sparse file stays below this.
pub(crate) const RECORD_MAX: u64 = 4 << 20;
/// Bytes gathered before they are hashed and written.
const BUFFER: usize = 64 << 10;

/// Writes a list as it grows. Memory does not grow with it.
pub(crate) struct FileManifestWriter {
    file: File,
    hash: Hash,
    buffer: Vec<u8>,
    record: Vec<u8>,
    bytes: u64,
}

impl FileManifestWriter {
    pub(crate) fn new(file: File) -> Self {
        let mut buffer = Vec::with_capacity(BUFFER);
        buffer.extend_from_slice(MAGIC);
        Self { file, hash: Hash::new(DigestAlgorithm::Sha256), buffer, record: Vec::new(), bytes: 0 }
    }

    /// Writes the rest; answers the digest and the length of the whole.
    pub(crate) fn finish(mut self) -> io::Result<(Digest, u64)> {
        self.flush()?;
        Ok((self.hash.finish(), self.bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hash.update(&self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    fn put(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.record.clear();
        fill(&mut self.record);
        number(&mut self.buffer, self.record.len() as u64);
        self.buffer.extend_from_slice(&self.record);
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }
}

impl FileManifest for FileManifestWriter {
    fn entry(&mut self, path: &[u8], entry: &FileEntry) -> io::Result<()> {
        self.put(|record| write_entry(record, path, entry))
    }

    fn hard_link(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        self.put(|record| {
            record.push(b'h');
            text(record, path);
            text(record, target);
        })
    }

    fn removed(&mut self, path: &[u8]) -> io::Result<()> {
        self.put(|record| {
            record.push(b'-');
            text(record, path);
        })
    }
}

fn write_entry(record: &mut Vec<u8>, path: &[u8], entry: &FileEntry) {
    record.push(match &entry.kind {
        FileEntryKind::File { .. } => b'f',
        FileEntryKind::Sparse { .. } => b's',
        FileEntryKind::Directory => b'd',
        FileEntryKind::Symlink(_) => b'l',
        FileEntryKind::Fifo => b'p',
        FileEntryKind::Socket => b'u',
        FileEntryKind::Device { block: false, .. } => b'c',
        FileEntryKind::Device { block: true, .. } => b'b',
    });
    text(record, path);
    for field in [entry.mode, entry.uid, entry.gid] {
        number(record, field.into());
    }
    let (seconds, nanos) = entry.mtime;
    number(record, ((seconds << 1) ^ (seconds >> 63)).cast_unsigned());
    number(record, nanos.into());
    match entry.xattrs {
        None => record.push(0),
        Some(sum) => {
            record.push(1);
            record.extend_from_slice(&sum.to_le_bytes());
        }
    }
    match &entry.kind {
        FileEntryKind::File { size, content } => {
            number(record, *size);
            record.extend_from_slice(&content.to_le_bytes());
        }
        FileEntryKind::Sparse { size, content, ranges } => {
            number(record, *size);
            record.extend_from_slice(&content.to_le_bytes());
            number(record, ranges.len() as u64);
            let mut end = 0;
            for (offset, length) in ranges {
                number(record, offset - end);
                number(record, *length);
                end = offset + length;
            }
        }
        FileEntryKind::Symlink(target) => text(record, target),
        FileEntryKind::Device { major, minor, .. } => {
            number(record, (*major).into());
            number(record, (*minor).into());
        }
        FileEntryKind::Directory | FileEntryKind::Fifo | FileEntryKind::Socket => {}
    }
}

fn number(record: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            record.push(low);
            return;
        }
        record.push(low | 0x80);
    }
}

fn text(record: &mut Vec<u8>, bytes: &[u8]) {
    number(record, bytes.len() as u64);
    record.extend_from_slice(bytes);
}

/// One record, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Removed,
    HardLink(Vec<u8>),
    Entry(FileEntry),
}

/// Reads a record behind its length: the path it is about, and what it says. `None`: it is none.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Vec<u8>, Record)> {
    let mut rest = Rest(bytes);
    let tag = rest.byte()?;
    let path = rest.text()?;
    let record = match tag {
        b'-' => Record::Removed,
        b'h' => Record::HardLink(rest.text()?),
        _ => Record::Entry(rest.entry(tag)?),
    };
    rest.0.is_empty().then_some((path, record))
}

/// What is left of a record.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, length: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            value |= part.checked_shl(shift).filter(|shifted| shifted >> shift == part)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let length = self.number()?.try_into().ok()?;
        self.take(length).map(<[u8]>::to_vec)
    }

    fn sum(&mut self) -> Option<Sum> {
        self.take(16)?.try_into().ok().map(Sum::from_le_bytes)
    }

    fn entry(&mut self, tag: u8) -> Option<FileEntry> {
        let (mode, uid, gid) = (self.small()?, self.small()?, self.small()?);
        let zigzag = self.number()?;
        let seconds = (zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed());
        let mtime = (seconds, self.small()?);
        let xattrs = match self.byte()? {
            0 => None,
            1 => Some(self.sum()?),
            _ => return None,
        };
        let kind = match tag {
            b'f' => FileEntryKind::File { size: self.number()?, content: self.sum()? },
            b's' => FileEntryKind::Sparse { size: self.number()?, content: self.sum()?, ranges: self.ranges()? },
            b'd' => FileEntryKind::Directory,
            b'l' => FileEntryKind::Symlink(self.text()?),
            b'p' => FileEntryKind::Fifo,
            b'u' => FileEntryKind::Socket,
            b'c' | b'b' => FileEntryKind::Device { block: tag == b'b', major: self.small()?, minor: self.small()? },
            _ => return None,
        };
        Some(FileEntry { kind, mode, uid, gid, mtime, xattrs })
    }

    fn ranges(&mut self) -> Option<Vec<(u64, u64)>> {
        let count = usize::try_from(self.number()?).ok()?;
        let mut ranges = Vec::with_capacity(count.min(self.0.len()));
        let mut end = 0_u64;
        for _ in 0..count {
            let offset = end.checked_add(self.number()?)?;
            let length = self.number()?;
            end = offset.checked_add(length)?;
            ranges.push((offset, length));
        }
        Some(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<FileEntry> {
        let listed = |kind, mtime, xattrs| FileEntry { kind, mode: 0o4755, uid: 0, gid: u32::MAX, mtime, xattrs };
        let plain = |kind| listed(kind, (1_600_000_000, 999_999_999), None);
        vec![
            plain(FileEntryKind::File { size: 0, content: 0 }),
            listed(FileEntryKind::File { size: u64::MAX, content: Sum::MAX }, (i64::MIN, 0), Some(7)),
            plain(FileEntryKind::Sparse { size: 1 << 44, content: 5, ranges: vec![(0, 1), (1, 0), (1 << 40, 512)] }),
            listed(FileEntryKind::Directory, (-1, 1), Some(Sum::MAX)),
            plain(FileEntryKind::Symlink(b"a/\xff\n".to_vec())),
            plain(FileEntryKind::Fifo),
            plain(FileEntryKind::Socket),
            plain(FileEntryKind::Device { block: true, major: 8, minor: 1 << 20 }),
            plain(FileEntryKind::Device { block: false, major: 0, minor: 0 }),
        ]
    }

    #[test]
    fn every_kind_of_record_reads_back_and_none_reads_when_it_is_cut_or_longer() {
        for entry in every_kind() {
            let mut record = Vec::new();
            write_entry(&mut record, b"dir/\xfe", &entry);
            assert_eq!(parse(&record), Some((b"dir/\xfe".to_vec(), Record::Entry(entry.clone()))));
            for end in 0..record.len() {
                assert_eq!(parse(&record[..end]), None, "{entry:?} cut at {end}");
            }
            record.push(0);
            assert_eq!(parse(&record), None, "{entry:?} with a byte too many");
        }
    }
}
