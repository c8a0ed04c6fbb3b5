//! The journal of a layer that is being unpacked: how to restore the first bytes of its archive from its files.
//!
//! A gzip stream can be continued at the start of a block, given the 32 KiB of inflated bytes before that block. So a
//! resumption needs inflated bytes, and the layer's files have most of them. The journal has the rest: headers and
//! padding as bytes, and the path and length of each run of file content. So a layer's bytes are written once. The
//! archive's digest (diff-id) verifies the result.
//!
//! The journal is a sequence of chunks, which are appended whole and unsynced: HEAD ([`HEAD_LENGTH`] bytes), then a
//! zstd frame of the records in postcard format. The head of a chunk that ends at a checkpoint has the position in the
//! blob. After kill -9 the page cache still has chunks and files. After a reboot the folder is not used.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::{Deserialize, Serialize};

const HEAD_LENGTH: usize = 4 + 4 + 8 + 8 + 1;
/// A chunk is written at the latest when its records have this size.
const RECORDS_MAX: usize = 64 << 10;
/// Maximum size of a chunk's records: `RECORDS_MAX`, one block of input, and their lengths.
const CHUNK_MAX: usize = 1 << 20;
const ZSTD_LEVEL: i32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFormat {
    Plain,
    Gzip,
}

/// A position at which a blob's stream can be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The number of bytes of the blob up to this position. The last byte may also have bits of the next block.
    pub(crate) packed: u64,
    /// The number of bytes of the archive before this position.
    pub(crate) plain: u64,
    pub(crate) format: StreamFormat,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JournalRecord {
    Bytes(Vec<u8>),
    /// The archive continues with the next `length` bytes of the file `path`.
    Content {
        path: Vec<u8>,
        length: u64,
    },
}

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
    file: Option<File>,
    attempt: u32,
    /// The offset of this attempt's first chunk, until that chunk is written. The write truncates the journal to it.
    start: Option<u64>,
    /// The archive's consumed bytes (`position`), and those that the journal has from earlier attempts (`known`).
    position: u64,
    known: u64,
    checkpoint: Option<Checkpoint>,
    records: Vec<JournalRecord>,
    size: usize,
    has_checkpoint: Arc<AtomicBool>,
}

impl JournalWriter {
    fn new(file: File, attempt: u32, known: u64) -> Self {
        let (file, has_checkpoint) = (Some(file), Arc::new(AtomicBool::new(known > 0)));
        let (start, position, checkpoint, records, size) = (None, 0, None, Vec::new(), 0);
        Self { file, attempt, start, position, known, checkpoint, records, size, has_checkpoint }
    }

    pub(super) fn create(path: &Path, attempt: u32) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self::new(file, attempt, 0))
    }

    /// Continues a journal after its last checkpoint. `length` is the journal's length up to that checkpoint.
    pub(super) fn resume(path: &Path, attempt: u32, (checkpoint, length): (Checkpoint, u64)) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Self { start: Some(length), ..Self::new(file, attempt, checkpoint.plain) })
    }

    /// Announces the next checkpoint, which the consumed bytes have not reached yet.
    pub(crate) fn announce(&mut self, checkpoint: Checkpoint) {
        if self.checkpoint.is_some_and(|reached| reached.plain == self.position) {
            let reached = self.checkpoint.take();
            self.write(reached);
        }
        if self.checkpoint.is_none() && checkpoint.plain >= self.position.max(self.known) {
            self.checkpoint = Some(checkpoint);
        }
    }

    pub(crate) fn has_checkpoint(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_checkpoint)
    }

    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(Piece::Bytes(bytes));
    }

    pub(crate) fn add_content(&mut self, path: &[u8], length: u64) {
        self.add(Piece::Content(path, length));
    }

    /// Empties the journal, so that no later attempt can continue the layer.
    pub(crate) fn invalidate(&mut self) {
        if let Some(file) = self.file.take() {
            // An empty journal has no checkpoint. If this truncation fails, the archive's digest detects wrong bytes.
            let _ = file.set_len(0);
            self.has_checkpoint.store(false, Ordering::Relaxed);
        }
    }

    fn add(&mut self, mut piece: Piece<'_>) {
        while self.file.is_some() && piece.length() > 0 {
            if self.checkpoint.is_some_and(|checkpoint| checkpoint.plain == self.position) {
                let checkpoint = self.checkpoint.take();
                self.write(checkpoint);
                continue;
            }
            let next = self.checkpoint.map_or(u64::MAX, |next| next.plain);
            let until = if self.position < self.known { self.known } else { next };
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
            (Some(JournalRecord::Bytes(last)), Piece::Bytes(bytes)) => {
                last.extend_from_slice(bytes);
                bytes.len()
            }
            (Some(JournalRecord::Content { path, length }), Piece::Content(same, more)) if *path == same => {
                *length += more;
                0
            }
            (_, Piece::Bytes(bytes)) => {
                self.records.push(JournalRecord::Bytes(bytes.to_vec()));
                bytes.len() + size_of::<JournalRecord>()
            }
            (_, Piece::Content(path, length)) => {
                self.records.push(JournalRecord::Content { path: path.to_vec(), length });
                path.len() + size_of::<JournalRecord>()
            }
        };
    }

    fn write(&mut self, checkpoint: Option<Checkpoint>) {
        let (records, attempt, plain) = (std::mem::take(&mut self.records), self.attempt, self.position);
        self.size = 0;
        let Some(file) = &mut self.file else { return };
        let cut = self.start.take().map_or(Ok(()), |start| file.set_len(start));
        let written = cut.and_then(|()| encode_chunk(attempt, plain, checkpoint, &records));
        let written = written.and_then(|chunk| file.write_all(&chunk));
        if checkpoint.is_some() && written.is_ok() {
            self.has_checkpoint.store(true, Ordering::Relaxed);
        }
        if let Err(error) = written {
            tracing::debug!(%error, "a layer's journal cannot be written: the layer does not stay for a resumption");
            self.invalidate();
        }
    }
}

fn encode_chunk(
    attempt: u32,
    plain: u64,
    checkpoint: Option<Checkpoint>,
    records: &[JournalRecord],
) -> io::Result<Vec<u8>> {
    let records = postcard::to_stdvec(records).map_err(io::Error::other)?;
    let payload = zstd::bulk::compress(&records, ZSTD_LEVEL)?;
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let format = match checkpoint.map(|checkpoint| checkpoint.format) {
        None => 0,
        Some(StreamFormat::Plain) => 1,
        Some(StreamFormat::Gzip) => 2,
    };
    let packed = checkpoint.map_or(0, |checkpoint| checkpoint.packed);
    let mut chunk = Vec::with_capacity(HEAD_LENGTH + payload.len());
    chunk.extend(length.to_le_bytes());
    chunk.extend(attempt.to_le_bytes());
    chunk.extend(plain.to_le_bytes());
    chunk.extend(packed.to_le_bytes());
    chunk.push(format);
    chunk.extend(payload);
    Ok(chunk)
}

struct Head {
    attempt: u32,
    plain: u64,
    checkpoint: Option<Checkpoint>,
    payload: usize,
}

impl Head {
    fn parse(head: &[u8; HEAD_LENGTH]) -> Option<Self> {
        let four = |at: usize| head[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let eight = |at: usize| head[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (payload, attempt, plain, packed) = (usize::try_from(four(0)?).ok()?, four(4)?, eight(8)?, eight(16)?);
        let format = match head[24] {
            0 => None,
            1 => Some(StreamFormat::Plain),
            2 => Some(StreamFormat::Gzip),
            _ => return None,
        };
        let checkpoint = format.map(|format| Checkpoint { packed, plain, format });
        (payload <= CHUNK_MAX).then_some(Self { attempt, plain, checkpoint, payload })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JournalSummary {
    /// The last checkpoint at which the stream can be continued, and the length of the journal up to it.
    pub(super) last: Option<(Checkpoint, u64)>,
    pub(super) attempt: u32,
    pub(super) plain: u64,
}

impl JournalSummary {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let (length, mut at) = (file.metadata()?.len(), 0);
        let (mut summary, mut newest) = (Self::default(), None);
        let mut head = [0; HEAD_LENGTH];
        while at + HEAD_LENGTH as u64 <= length {
            file.read_exact_at(&mut head, at)?;
            let Some(Head { attempt, plain, checkpoint, payload }) = Head::parse(&head) else { break };
            at += (HEAD_LENGTH + payload) as u64;
            if at > length || plain < summary.plain {
                break;
            }
            // A gzip checkpoint needs one later chunk, whose bytes show at which bit the block starts.
            if plain > summary.plain {
                summary.last = newest.take().or(summary.last);
            }
            (summary.attempt, summary.plain) = (attempt, plain);
            newest = checkpoint.map(|checkpoint| (checkpoint, at)).or(newest);
        }
        let plain = newest.filter(|(checkpoint, _)| checkpoint.format == StreamFormat::Plain);
        summary.last = plain.or(summary.last);
        Ok(summary)
    }
}

pub(crate) struct JournalReader {
    file: File,
    at: u64,
}

impl JournalReader {
    pub(super) fn new(file: File) -> Self {
        Self { file, at: 0 }
    }

    /// The records of the next chunk, or `None` at the end or at an incomplete chunk.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<JournalRecord>>> {
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
        Checkpoint { packed, plain, format: StreamFormat::Gzip }
    }

    fn summary(path: &Path) -> JournalSummary {
        JournalSummary::of(&File::open(path).unwrap()).unwrap()
    }

    fn records(path: &Path) -> Vec<JournalRecord> {
        let mut replay = JournalReader::new(File::open(path).unwrap());
        std::iter::from_fn(|| replay.next().unwrap()).flatten().collect()
    }

    /// Two checkpoints; the second one is in the middle of a file.
    fn written(path: &Path) {
        let mut journal = JournalWriter::create(path, 1).unwrap();
        journal.announce(checkpoint(50, 6));
        journal.add_bytes(b"head");
        journal.add_bytes(b"er");
        journal.add_content(b"a", 10);
        journal.add_content(b"a", 4);
        journal.announce(checkpoint(90, 25));
        // The first one comes before.
        journal.announce(checkpoint(95, 26));
        journal.add_content(b"b", 9);
        journal.add_bytes(b"tail");
    }

    #[test]
    fn chunks_end_at_checkpoints_and_the_last_one_needs_bytes_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        written(&path);
        // What comes after the second checkpoint was not written.
        assert_eq!((summary(&path).plain, summary(&path).attempt), (25, 1));
        assert_eq!(summary(&path).last.map(|last| last.0), Some(checkpoint(50, 6)));
        let content = |path: &[u8], length| JournalRecord::Content { path: path.to_vec(), length };
        assert_eq!(records(&path), [JournalRecord::Bytes(b"header".to_vec()), content(b"a", 14), content(b"b", 5)]);
    }

    #[test]
    fn a_journal_is_continued_after_its_checkpoint_whatever_came_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        written(&path);
        let (before, last) = (summary(&path), summary(&path).last.unwrap());
        let mut journal = JournalWriter::resume(&path, 2, last).unwrap();
        // The bytes that it has are not added again, and it stays as it is until others come.
        journal.add_bytes(b"hea");
        assert_eq!(summary(&path), before);
        journal.add_bytes(b"der+");
        journal.announce(checkpoint(60, 8));
        journal.add_bytes(b"+");
        // It is reached, though no byte has come after it.
        journal.announce(checkpoint(70, 8 + 100));
        assert_eq!((summary(&path).plain, summary(&path).attempt), (8, 2));
        assert_eq!(records(&path), [b"header".to_vec(), b"++".to_vec()].map(JournalRecord::Bytes));
    }

    #[test]
    fn a_torn_or_wrong_chunk_ends_a_journal_and_so_does_a_replaced_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        written(&path);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let summary = summary(&path);
            assert!(summary.last.is_none() && [0, 6].contains(&summary.plain), "{length}: {summary:?}");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 0xff;
            std::fs::write(&path, wrong).unwrap();
            let mut replay = JournalReader::new(File::open(&path).unwrap());
            // An error or an end, and no panic.
            while let Ok(Some(_)) = replay.next() {}
        }
        std::fs::remove_file(&path).unwrap();
        let mut journal = JournalWriter::create(&path, 1).unwrap();
        (0..100_000_u32).for_each(|number| journal.add_bytes(&number.to_le_bytes()));
        assert!(summary(&path).plain > 300_000, "records are written without a checkpoint, too");
        journal.invalidate();
        journal.add_bytes(b"more");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}
