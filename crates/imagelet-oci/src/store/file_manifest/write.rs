//! Writes `files.list`: the paths of a layer and their metadata, in one pass while it is unpacked.
//!
//! ```text
//! "imagelet files 2\n", then records: LENGTH of what follows (u32, little-endian), PATH and RECORD as postcard has them
//! ```
//!
//! A later record replaces an earlier one for the same path. The file's own SHA-256 is in `layer.json`.

use std::{
    fs::File,
    io::{self, BufWriter, IntoInnerError, Write},
};

use imagelet_core::image::{Digest, DigestAlgorithm};

use crate::{hash::Hash, unpack::FileRecord};

pub(crate) const LIST: &str = "files.list";
pub(crate) const MAGIC: &[u8] = b"imagelet files 2\n";
/// Larger than a record with the largest map of a sparse file.
pub(crate) const RECORD_MAX: u32 = 4 << 20;
const BUFFER: usize = 64 << 10;

pub(crate) struct FileManifestWriter(BufWriter<HashedFile>);

struct HashedFile {
    file: File,
    hash: Hash,
    bytes: u64,
}

impl FileManifestWriter {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let hashed = HashedFile { file, hash: Hash::new(DigestAlgorithm::Sha256), bytes: 0 };
        let mut writer = BufWriter::with_capacity(BUFFER, hashed);
        writer.write_all(MAGIC)?;
        Ok(Self(writer))
    }

    pub(crate) fn record(&mut self, path: &[u8], record: &FileRecord) -> io::Result<()> {
        let bytes = encode(path, record)?;
        self.0.write_all(&u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes())?;
        self.0.write_all(&bytes)
    }

    pub(crate) fn finish(self) -> io::Result<(Digest, u64)> {
        let HashedFile { hash, bytes, .. } = self.0.into_inner().map_err(IntoInnerError::into_error)?;
        Ok((hash.finish(), bytes))
    }
}

impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn encode(path: &[u8], record: &FileRecord) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(&(path, record)).map_err(io::Error::other)
}

pub(crate) fn decode(bytes: &[u8]) -> Option<(Vec<u8>, FileRecord)> {
    let (record, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unpack::{FileEntry, FileEntryKind, Sum};

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
        let entries = every_kind().into_iter().map(FileRecord::Entry);
        for record in entries.chain([FileRecord::HardLink(b"a/\xff".to_vec()), FileRecord::Removed]) {
            let mut bytes = encode(b"dir/\xfe", &record).unwrap();
            assert_eq!(decode(&bytes), Some((b"dir/\xfe".to_vec(), record.clone())));
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]), None, "{record:?} cut at {end}");
            }
            bytes.push(0);
            assert_eq!(decode(&bytes), None, "{record:?} with a byte too many");
        }
    }
}
