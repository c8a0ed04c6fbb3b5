//! The manifest of a layer's files, `files.list`. The reader keeps only the offsets of the records in memory.
//!
//! ```text
//! "imagelet files 2\n", then records: LENGTH of the rest (u32, little-endian), PATH and RECORD in postcard format
//! ```
//!
//! A later record for a path replaces an earlier one. `layer.json` has the SHA-256 of the manifest.

use std::{
    collections::HashMap,
    fs::{self, File},
    hash::{BuildHasher as _, RandomState},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
};

use imagelet_core::image::{Digest, DigestAlgorithm};
use twox_hash::xxhash3_128::Hasher;

use crate::{
    hash::Hash,
    unpack::{FileEntry, FileEntryKind, FileRecord},
};

pub(crate) const LIST: &str = "files.list";
const MAGIC: &[u8] = b"imagelet files 2\n";
/// Maximum bytes of a record. The largest record is the map of a sparse file.
const RECORD_MAX: u32 = 4 << 20;
const WRITE_BUFFER: usize = 64 << 10;
const READ_BUFFER: usize = 256 << 10;
const PREFIX: usize = size_of::<u32>();

pub(crate) struct FileManifestWriter {
    file: BufWriter<File>,
    hash: Hash,
}

impl FileManifestWriter {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let file = BufWriter::with_capacity(WRITE_BUFFER, file);
        let mut writer = Self { file, hash: Hash::new(DigestAlgorithm::Sha256) };
        writer.write(MAGIC)?;
        Ok(writer)
    }

    pub(crate) fn record(&mut self, path: &[u8], record: &FileRecord) -> io::Result<()> {
        let bytes = encode(path, record)?;
        self.write(&u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes())?;
        self.write(&bytes)
    }

    pub(crate) fn finish(mut self) -> io::Result<Digest> {
        self.file.flush()?;
        Ok(self.hash.finish())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.file.write_all(bytes)
    }
}

/// The file with the digest that proves knowledge of a layer's content, because no image manifest contains this digest.
pub(crate) const PROOF: &str = "content.proof";

/// A digest of all file records of a layer, without the metadata of folders, because the times of folders differ.
pub(crate) struct ContentProof(Hash);

impl ContentProof {
    pub(crate) fn new() -> Self {
        Self(Hash::new(DigestAlgorithm::Sha256))
    }

    pub(crate) fn record(&mut self, path: &[u8], record: &FileRecord) -> io::Result<()> {
        let is_folder = matches!(record, FileRecord::Entry(FileEntry { kind: FileEntryKind::Directory, .. }));
        let bytes = encode(path, if is_folder { &FileRecord::Removed } else { record })?;
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(&bytes);
        Ok(())
    }

    pub(crate) fn write(self, folder: &Path) -> io::Result<Digest> {
        let text = self.0.finish().to_string();
        fs::write(folder.join(PROOF), &text)?;
        Ok(Digest::of(text.as_bytes()))
    }
}

fn encode(path: &[u8], record: &FileRecord) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(&(path, record)).map_err(io::Error::other)
}

fn decode(bytes: &[u8]) -> Option<(Vec<u8>, FileRecord)> {
    let (record, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(record)
}

pub(crate) struct FileManifestReader {
    file: File,
    /// A secret seed for the hashes of paths, so that the manifest's author cannot make two paths collide.
    seed: u64,
    slots: HashMap<u128, Slot>,
    /// By the hash of a removed path, the offset of the record that removed the path and everything below it.
    removed: HashMap<u128, u64>,
}

#[derive(Clone, Copy)]
struct Slot {
    own: u64,
    /// The offset of the record with the content; for a hard link, the record of its target.
    content: u64,
    seen: bool,
}

impl FileManifestReader {
    pub(crate) fn open(file: File, wanted: &Digest, mut go_on: impl FnMut() -> io::Result<()>) -> io::Result<Self> {
        let mut manifest = Self {
            file: file.try_clone()?,
            seed: RandomState::new().hash_one(0),
            slots: HashMap::new(),
            removed: HashMap::new(),
        };
        let (mut reader, mut hash) = (BufReader::with_capacity(READ_BUFFER, file), Hash::new(DigestAlgorithm::Sha256));
        let mut fill = |reader: &mut BufReader<File>, bytes: &mut [u8]| {
            reader.read_exact(bytes).map_err(|_| damaged("it is cut short"))?;
            hash.update(bytes);
            Ok::<_, io::Error>(())
        };
        let mut magic = [0; MAGIC.len()];
        fill(&mut reader, &mut magic)?;
        if magic != MAGIC {
            return Err(damaged("it does not begin as a manifest does"));
        }
        let (mut at, mut record) = (MAGIC.len() as u64, Vec::new());
        while !reader.fill_buf()?.is_empty() {
            go_on()?;
            let mut prefix = [0; PREFIX];
            fill(&mut reader, &mut prefix)?;
            record.resize(length(prefix)?, 0);
            fill(&mut reader, &mut record)?;
            manifest.note(at, &record)?;
            at += (PREFIX + record.len()) as u64;
        }
        if hash.finish() != *wanted {
            return Err(damaged("its digest is not the one in layer.json"));
        }
        Ok(manifest)
    }

    fn note(&mut self, at: u64, record: &[u8]) -> io::Result<()> {
        let (path, record) = decode(record).ok_or_else(|| damaged("a record does not read"))?;
        let key = self.key(&path);
        let content = match record {
            FileRecord::Removed => {
                self.removed.insert(key, at);
                return Ok(());
            }
            FileRecord::HardLink(target) => {
                self.slots.get(&self.key(&target)).ok_or_else(|| damaged("a hard link leads nowhere"))?.content
            }
            FileRecord::Entry(_) => at,
        };
        self.slots.insert(key, Slot { own: at, content, seen: false });
        Ok(())
    }

    pub(crate) fn see(&mut self, path: &[u8]) -> io::Result<Option<FileEntry>> {
        let key = self.key(path);
        let Some(slot) = self.slots.get(&key).copied() else { return Ok(None) };
        if self.is_removed(path, slot.own) {
            return Ok(None);
        }
        let (_, record) = self.read(slot.content)?;
        self.slots.insert(key, Slot { seen: true, ..slot });
        match record {
            FileRecord::Entry(entry) => Ok(Some(entry)),
            _ => Err(damaged("a record is not what it was")),
        }
    }

    pub(crate) fn unseen(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut places: Vec<u64> = self.slots.values().filter(|slot| !slot.seen).map(|slot| slot.own).collect();
        places.sort_unstable();
        let mut paths = Vec::new();
        for place in places {
            let (path, _) = self.read(place)?;
            if !self.is_removed(&path, place) {
                paths.push(path);
            }
        }
        Ok(paths)
    }

    fn is_removed(&self, path: &[u8], place: u64) -> bool {
        if self.removed.is_empty() {
            return false;
        }
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).any(|end| self.removed.get(&self.key(&path[..end])).is_some_and(|at| *at > place))
    }

    fn read(&self, place: u64) -> io::Result<(Vec<u8>, FileRecord)> {
        let mut prefix = [0; PREFIX];
        self.file.read_exact_at(&mut prefix, place)?;
        let mut record = vec![0; length(prefix)?];
        self.file.read_exact_at(&mut record, place + PREFIX as u64)?;
        decode(&record).ok_or_else(|| damaged("a record is not what it was"))
    }

    fn key(&self, path: &[u8]) -> u128 {
        Hasher::oneshot_with_seed(self.seed, path)
    }
}

fn length(prefix: [u8; PREFIX]) -> io::Result<usize> {
    let length = u32::from_le_bytes(prefix);
    if length > RECORD_MAX {
        return Err(damaged("a record is too long"));
    }
    usize::try_from(length).map_err(io::Error::other)
}

fn damaged(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;
    use crate::unpack::Sum;

    fn file(content: Sum) -> FileEntry {
        let kind = FileEntryKind::File { size: 1, content };
        FileEntry { kind, mode: 0o644, uid: 1, gid: 2, mtime: (3, 4), xattrs: None }
    }

    fn link(length: usize) -> FileEntry {
        FileEntry { kind: FileEntryKind::Symlink(vec![b'x'; length]), ..file(0) }
    }

    fn written(fill: impl FnOnce(&mut FileManifestWriter)) -> (File, Digest) {
        let mut place = tempfile::tempfile().unwrap();
        let mut writer = FileManifestWriter::new(place.try_clone().unwrap()).unwrap();
        fill(&mut writer);
        let digest = writer.finish().unwrap();
        place.rewind().unwrap();
        (place, digest)
    }

    fn open(file: File, digest: &Digest) -> io::Result<FileManifestReader> {
        FileManifestReader::open(file, digest, || Ok(()))
    }

    #[test]
    fn a_proof_depends_on_names_and_content_and_not_on_the_times_of_folders() {
        let proof = |records: &[(&str, FileRecord)]| {
            let (mut proof, folder) = (ContentProof::new(), tempfile::tempdir().unwrap());
            for (path, record) in records {
                proof.record(path.as_bytes(), record).unwrap();
            }
            let digest = proof.write(folder.path()).unwrap();
            assert_eq!(Digest::of(&fs::read(folder.path().join(PROOF)).unwrap()), digest);
            digest
        };
        let folder = |seconds| FileEntry { kind: FileEntryKind::Directory, mtime: (seconds, 0), ..file(0) };
        let of = |path: &str, entry: FileEntry| (path.to_owned(), FileRecord::Entry(entry));
        let known = |entries: &[(String, FileRecord)]| {
            proof(&entries.iter().map(|(path, record)| (path.as_str(), record.clone())).collect::<Vec<_>>())
        };
        let first = known(&[of("d", folder(1)), of("d/a", file(1))]);
        assert_eq!(known(&[of("d", folder(2)), of("d/a", file(1))]), first);
        for other in [
            &[of("d", folder(1)), of("d/a", file(2))][..],
            &[of("d", folder(1)), of("d/b", file(1))],
            &[of("e", folder(1)), of("d/a", file(1))],
            &[of("d", folder(1)), of("d/a", link(3))],
            &[of("d/a", file(1))],
        ] {
            assert_ne!(known(other), first, "{other:?}");
        }
    }

    #[test]
    fn the_last_word_on_a_path_holds_and_a_hard_link_keeps_what_it_linked_to() {
        let (place, digest) = written(|list| {
            list.record(b"a", &FileRecord::Entry(file(1))).unwrap();
            list.record(b"b", &FileRecord::HardLink(b"a".to_vec())).unwrap();
            list.record(b"c", &FileRecord::HardLink(b"b".to_vec())).unwrap();
            list.record(b"a", &FileRecord::Removed).unwrap();
            list.record(b"a", &FileRecord::Entry(file(2))).unwrap();
            list.record(b"long", &FileRecord::Entry(link(4000))).unwrap();
        });
        let mut list = open(place, &digest).unwrap();
        assert_eq!(list.see(b"a").unwrap(), Some(file(2)));
        assert_eq!(list.see(b"c").unwrap(), Some(file(1)));
        assert_eq!(list.see(b"d").unwrap(), None);
        assert_eq!(list.unseen().unwrap(), [b"b".to_vec(), b"long".to_vec()]);
        assert_eq!(list.see(b"long").unwrap(), Some(link(4000)));
    }

    #[test]
    fn what_was_removed_with_a_directory_is_neither_wanted_nor_missing() {
        let (place, digest) = written(|list| {
            list.record(b"d/e/f", &FileRecord::Entry(file(1))).unwrap();
            list.record(b"de", &FileRecord::Entry(file(1))).unwrap();
            list.record(b"d", &FileRecord::Removed).unwrap();
            list.record(b"d/g", &FileRecord::Entry(file(2))).unwrap();
        });
        let mut list = open(place, &digest).unwrap();
        assert_eq!(list.see(b"d/e/f").unwrap(), None);
        assert_eq!(list.unseen().unwrap(), [b"de".to_vec(), b"d/g".to_vec()]);
    }

    #[test]
    fn a_flipped_or_missing_byte_anywhere_is_found() {
        let (mut place, digest) = written(|list| {
            list.record(b"a", &FileRecord::Entry(file(1))).unwrap();
            list.record(b"b", &FileRecord::HardLink(b"a".to_vec())).unwrap();
            list.record(b"b", &FileRecord::Removed).unwrap();
        });
        let mut bytes = Vec::new();
        place.read_to_end(&mut bytes).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            for wrong in [&flipped[..], &bytes[..at]] {
                let mut place = tempfile::tempfile().unwrap();
                place.write_all(wrong).unwrap();
                place.rewind().unwrap();
                let error = open(place, &digest).err().expect("it is damaged");
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "byte {at}: {error}");
            }
        }
    }

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
