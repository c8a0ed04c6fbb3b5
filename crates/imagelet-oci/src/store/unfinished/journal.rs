//! The journal of a layer that is being unpacked: how to make the first bytes of its archive again from its files.
//!
//! A gzip stream can be continued at the start of each of its blocks, if the 32 KiB before are known. So a pull that
//! continues needs no compressed bytes, but the inflated ones: the digest of the archive proves all content in the end.
//! Almost all of these bytes are in the layer's files. The journal has the others (headers and padding), and for each
//! run of bytes in a file the file's path. A layer's bytes are therefore written once.
//!
//! The journal is a sequence of chunks, which are appended whole and unsynced: HEAD ([`HEAD_LENGTH`] bytes), then a zstd
//! frame of the records in postcard format. A chunk that ends at a checkpoint names the position in the blob. After
//! kill -9 the page cache has the chunks and the files. After a power cut they are not used.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

use serde::{Deserialize, Serialize};

const HEAD_LENGTH: usize = 4 + 4 + 8 + 8 + 1;
/// A chunk is written at the latest when its records have this size.
const RECORDS_MAX: usize = 64 << 10;
/// More than the records of any chunk, with their lengths and one piece of input.
const CHUNK_MAX: usize = 1 << 20;
const ZSTD_LEVEL: i32 = 1;

/// The form of a blob whose stream can be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
}

/// A position at which a blob's stream can be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The bytes of the blob before it. The last of them may have bits after it.
    pub(crate) packed: u64,
    /// The bytes of the archive before it.
    pub(crate) plain: u64,
    pub(crate) packing: Packing,
}

/// A run of an archive's bytes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    Bytes(Vec<u8>),
    /// The next bytes of a file.
    Content {
        path: Vec<u8>,
        length: u64,
    },
}

/// A piece of the archive that the unpacker has consumed.
#[derive(Clone, Copy)]
enum Piece<'a> {
    Bytes(&'a [u8]),
    Content(&'a [u8], u64),
}

impl Piece<'_> {
    fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Content(_, length) => *length,
        }
    }

    fn split(self, at: u64) -> (Self, Self) {
        match self {
            Self::Bytes(bytes) => {
                let (head, tail) = bytes.split_at(usize::try_from(at).unwrap_or(bytes.len()));
                (Self::Bytes(head), Self::Bytes(tail))
            }
            Self::Content(path, length) => (Self::Content(path, at), Self::Content(path, length - at)),
        }
    }
}

/// Appends to a journal. A failed write ends the journal, not the pull.
pub(crate) struct JournalWriter {
    /// `None`: the layer can no longer be continued.
    file: Option<File>,
    run: u32,
    /// Where the first chunk begins. What an earlier run has written there stays readable until then.
    start: Option<u64>,
    /// The bytes of the archive that were consumed, and how many of them the journal has from an earlier run.
    position: u64,
    known: u64,
    checkpoint: Option<Checkpoint>,
    records: Vec<Record>,
    size: usize,
}

impl JournalWriter {
    fn new(file: File, run: u32, known: u64) -> Self {
        let file = Some(file);
        Self { file, run, start: None, position: 0, known, checkpoint: None, records: Vec::new(), size: 0 }
    }

    /// Starts a journal.
    pub(super) fn create(path: &Path, run: u32) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self::new(file, run, 0))
    }

    /// Continues a journal of this length after its last checkpoint.
    pub(super) fn resume(path: &Path, run: u32, (checkpoint, length): (Checkpoint, u64)) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Self { start: Some(length), ..Self::new(file, run, checkpoint.plain) })
    }

    /// Notes a checkpoint that the consumed bytes have not passed.
    pub(crate) fn expect(&mut self, checkpoint: Checkpoint) {
        if self.checkpoint.is_some_and(|reached| reached.plain == self.position) {
            let reached = self.checkpoint.take();
            self.write(reached);
        }
        if self.checkpoint.is_none() && checkpoint.plain >= self.position.max(self.known) {
            self.checkpoint = Some(checkpoint);
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.add(Piece::Bytes(bytes));
    }

    pub(crate) fn content(&mut self, path: &[u8], length: u64) {
        self.add(Piece::Content(path, length));
    }

    /// From now on the layer cannot be continued.
    pub(crate) fn end(&mut self) {
        if let Some(file) = self.file.take() {
            // An empty journal is no journal. If this fails, the archive's digest finds what is wrong.
            let _ = file.set_len(0);
        }
    }

    fn add(&mut self, mut piece: Piece<'_>) {
        while self.file.is_some() && piece.length() > 0 {
            if self.checkpoint.is_some_and(|checkpoint| checkpoint.plain == self.position) {
                let checkpoint = self.checkpoint.take();
                self.write(checkpoint);
                continue;
            }
            let until = if self.position < self.known { Some(self.known) } else { None };
            let until = until.or(self.checkpoint.map(|checkpoint| checkpoint.plain)).unwrap_or(u64::MAX);
            let (head, tail) = piece.split(piece.length().min(until - self.position));
            if self.position >= self.known {
                self.push(head);
            }
            self.position += head.length();
            piece = tail;
            if self.size >= RECORDS_MAX {
                self.write(None);
            }
        }
    }

    fn push(&mut self, piece: Piece<'_>) {
        self.size += match (self.records.last_mut(), piece) {
            (Some(Record::Bytes(last)), Piece::Bytes(bytes)) => {
                last.extend_from_slice(bytes);
                bytes.len()
            }
            (Some(Record::Content { path, length }), Piece::Content(same, more)) if *path == same => {
                *length += more;
                0
            }
            (_, Piece::Bytes(bytes)) => {
                self.records.push(Record::Bytes(bytes.to_vec()));
                bytes.len() + size_of::<Record>()
            }
            (_, Piece::Content(path, length)) => {
                self.records.push(Record::Content { path: path.to_vec(), length });
                path.len() + size_of::<Record>()
            }
        };
    }

    fn write(&mut self, checkpoint: Option<Checkpoint>) {
        let (records, run, plain) = (std::mem::take(&mut self.records), self.run, self.position);
        self.size = 0;
        let Some(file) = &mut self.file else { return };
        let cut = self.start.take().map_or(Ok(()), |start| file.set_len(start));
        let written = cut.and_then(|()| encoded(run, plain, checkpoint, &records));
        let written = written.and_then(|chunk| file.write_all(&chunk));
        if let Err(error) = written {
            tracing::debug!(%error, "a layer's journal cannot be written: the layer does not stay for a resumption");
            self.end();
        }
    }
}

fn encoded(run: u32, plain: u64, checkpoint: Option<Checkpoint>, records: &[Record]) -> io::Result<Vec<u8>> {
    let records = postcard::to_stdvec(records).map_err(io::Error::other)?;
    let payload = zstd::bulk::compress(&records, ZSTD_LEVEL)?;
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let packing = match checkpoint.map(|checkpoint| checkpoint.packing) {
        None => 0,
        Some(Packing::Plain) => 1,
        Some(Packing::Gzip) => 2,
    };
    let packed = checkpoint.map_or(0, |checkpoint| checkpoint.packed);
    let mut chunk = Vec::with_capacity(HEAD_LENGTH + payload.len());
    chunk.extend(length.to_le_bytes());
    chunk.extend(run.to_le_bytes());
    chunk.extend(plain.to_le_bytes());
    chunk.extend(packed.to_le_bytes());
    chunk.push(packing);
    chunk.extend(payload);
    Ok(chunk)
}

/// The head of a chunk, without the length of its payload.
struct Head {
    run: u32,
    /// The position in the archive at the chunk's end.
    plain: u64,
    checkpoint: Option<Checkpoint>,
    payload: usize,
}

impl Head {
    fn parse(head: &[u8; HEAD_LENGTH]) -> Option<Self> {
        let four = |at: usize| head[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let eight = |at: usize| head[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (payload, run, plain, packed) = (usize::try_from(four(0)?).ok()?, four(4)?, eight(8)?, eight(16)?);
        let packing = match head[24] {
            0 => None,
            1 => Some(Packing::Plain),
            2 => Some(Packing::Gzip),
            _ => return None,
        };
        let checkpoint = packing.map(|packing| Checkpoint { packed, plain, packing });
        (payload <= CHUNK_MAX).then_some(Self { run, plain, checkpoint, payload })
    }
}

/// What a journal holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// The last checkpoint at which the stream can be continued, and the length of the journal up to it.
    pub(super) last: Option<(Checkpoint, u64)>,
    /// The run that wrote the last chunk.
    pub(super) run: u32,
    /// The bytes of the archive that the journal covers.
    pub(super) plain: u64,
}

impl Extent {
    /// Reads the heads of all whole chunks.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let (length, mut at) = (file.metadata()?.len(), 0);
        let (mut extent, mut newest) = (Self::default(), None);
        let mut head = [0; HEAD_LENGTH];
        while at + HEAD_LENGTH as u64 <= length {
            file.read_exact_at(&mut head, at)?;
            let Some(Head { run, plain, checkpoint, payload }) = Head::parse(&head) else { break };
            at += (HEAD_LENGTH + payload) as u64;
            if at > length || plain < extent.plain {
                break;
            }
            // In a gzip stream the bytes after a checkpoint show at which bit it is, so one later chunk is needed.
            if plain > extent.plain {
                extent.last = newest.take().or(extent.last);
            }
            (extent.run, extent.plain) = (run, plain);
            newest = checkpoint.map(|checkpoint| (checkpoint, at)).or(newest);
        }
        let plain = newest.filter(|(checkpoint, _)| checkpoint.packing == Packing::Plain);
        extent.last = plain.or(extent.last);
        Ok(extent)
    }
}

/// The records of a journal, from its start.
pub(crate) struct Replay {
    file: File,
    at: u64,
}

impl Replay {
    pub(super) fn new(file: File) -> Self {
        Self { file, at: 0 }
    }

    /// The records of the next chunk, or none at the end. A torn chunk is the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<Record>>> {
        let mut head = [0; HEAD_LENGTH];
        let Some(Head { payload, .. }) = self.read(&mut head)?.then(|| Head::parse(&head)).flatten() else {
            return Ok(None);
        };
        let mut bytes = vec![0; payload];
        if !self.read(&mut bytes)? {
            return Ok(None);
        }
        let records = zstd::bulk::decompress(&bytes, CHUNK_MAX)?;
        postcard::from_bytes(&records).map(Some).map_err(io::Error::other)
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        match self.file.read_exact_at(bytes, self.at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        self.at += bytes.len() as u64;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(packed: u64, plain: u64) -> Checkpoint {
        Checkpoint { packed, plain, packing: Packing::Gzip }
    }

    fn extent(path: &Path) -> Extent {
        Extent::of(&File::open(path).unwrap()).unwrap()
    }

    fn records(path: &Path) -> Vec<Record> {
        let mut replay = Replay::new(File::open(path).unwrap());
        std::iter::from_fn(|| replay.next().unwrap()).flatten().collect()
    }

    /// Two checkpoints; the second one is in the middle of a file.
    fn written(path: &Path) {
        let mut journal = JournalWriter::create(path, 1).unwrap();
        journal.expect(checkpoint(50, 6));
        journal.bytes(b"head");
        journal.bytes(b"er");
        journal.content(b"a", 10);
        journal.content(b"a", 4);
        journal.expect(checkpoint(90, 25));
        // The first one comes before.
        journal.expect(checkpoint(95, 26));
        journal.content(b"b", 9);
        journal.bytes(b"tail");
    }

    #[test]
    fn chunks_end_at_checkpoints_and_the_last_one_needs_bytes_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        written(&path);
        // What comes after the second checkpoint was not written.
        assert_eq!((extent(&path).plain, extent(&path).run), (25, 1));
        assert_eq!(extent(&path).last.map(|last| last.0), Some(checkpoint(50, 6)));
        let content = |path: &[u8], length| Record::Content { path: path.to_vec(), length };
        assert_eq!(records(&path), [Record::Bytes(b"header".to_vec()), content(b"a", 14), content(b"b", 5)]);
    }

    #[test]
    fn a_journal_is_continued_after_its_checkpoint_whatever_came_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        written(&path);
        let (before, last) = (extent(&path), extent(&path).last.unwrap());
        let mut journal = JournalWriter::resume(&path, 2, last).unwrap();
        // The bytes that it has are not added again, and it stays as it is until others come.
        journal.bytes(b"hea");
        assert_eq!(extent(&path), before);
        journal.bytes(b"der+");
        journal.expect(checkpoint(60, 8));
        journal.bytes(b"+");
        // It is reached, though no byte has come after it.
        journal.expect(checkpoint(70, 8 + 100));
        assert_eq!((extent(&path).plain, extent(&path).run), (8, 2));
        assert_eq!(records(&path), [b"header".to_vec(), b"++".to_vec()].map(Record::Bytes));
    }

    #[test]
    fn a_torn_or_wrong_chunk_ends_a_journal_and_so_does_a_replaced_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        written(&path);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let extent = extent(&path);
            assert!(extent.last.is_none() && [0, 6].contains(&extent.plain), "{length}: {extent:?}");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 0xff;
            std::fs::write(&path, wrong).unwrap();
            let mut replay = Replay::new(File::open(&path).unwrap());
            // An error or an end, and no panic.
            while let Ok(Some(_)) = replay.next() {}
        }
        std::fs::remove_file(&path).unwrap();
        let mut journal = JournalWriter::create(&path, 1).unwrap();
        (0..100_000_u32).for_each(|number| journal.bytes(&number.to_le_bytes()));
        assert!(extent(&path).plain > 300_000, "records are written without a checkpoint, too");
        journal.end();
        journal.bytes(b"more");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}
