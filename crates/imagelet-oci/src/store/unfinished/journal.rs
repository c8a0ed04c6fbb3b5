//! The journal of a layer that is being unpacked: how to restore the first bytes of its archive from its files.
//!
//! A gzip stream can be continued at the start of a block, given the 32 KiB of inflated bytes before that block. So a
//! resumption needs inflated bytes, and the layer's files have most of them. The journal has the rest: headers and
//! padding as bytes, and the path and length of each run of file content. So a layer's bytes are written once. The
//! archive's digest (diff-id) verifies the result.
//!
//! The journal is a sequence of chunks, which are appended whole and unsynced: HEAD ([`HEAD_LENGTH`] bytes), then a
//! zstd frame of the records in postcard format. The head of a chunk that ends at a checkpoint has the position in the
//! blob. After kill -9 the kernel still has chunks and files. After a reboot the folder is not used.

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    ops::Range,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use zstd::bulk::Compressor;

const HEAD_LENGTH: usize = 4 + 4 + 8 + 8 + 1;
const RECORDS_MAX: usize = 64 << 10;
/// Maximum size of a chunk's records: `RECORDS_MAX`, one block of input, and their lengths.
const CHUNK_MAX: usize = 1 << 20;
const ZSTD_LEVEL: i32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFormat {
    Plain = 1,
    Gzip = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The number of bytes of the blob up to this position. The last byte may also have bits of the next block.
    pub(crate) packed: u64,
    pub(crate) plain: u64,
    pub(crate) format: StreamFormat,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JournalRecord {
    Bytes(Vec<u8>),
    Content { path: Vec<u8>, length: u64 },
}

/// Appends to a journal. A failed write ends the journal, not the pull.
pub(crate) struct JournalWriter {
    /// `None`: a write failed, so no later attempt can continue the layer.
    file: Option<File>,
    attempt: u32,
    /// The offset of this attempt's first chunk, until that chunk is written. The write truncates the journal to it.
    start: Option<u64>,
    /// The archive's consumed bytes (`position`), and those that the journal has from earlier attempts (`known`).
    position: u64,
    known: u64,
    /// The announced checkpoints that are not reached, in order. Direct I/O writes some blocks later than they are read.
    checkpoints: VecDeque<Checkpoint>,
    records: Vec<JournalRecord>,
    size: usize,
    /// One for all chunks: the creation of a compressor takes longer than the compression of a chunk.
    compressor: Compressor<'static>,
    pub(crate) has_checkpoint: Arc<AtomicBool>,
}

impl JournalWriter {
    /// Creates a journal, or continues one after its checkpoint `last`, which has the journal's length up to it.
    pub(super) fn open(path: &Path, attempt: u32, last: Option<(Checkpoint, u64)>) -> io::Result<Self> {
        let file = Some(OpenOptions::new().append(true).create_new(last.is_none()).mode(0o600).open(path)?);
        let known = last.map_or(0, |(checkpoint, _)| checkpoint.plain);
        Ok(Self {
            file,
            attempt,
            start: last.map(|(_, length)| length),
            position: 0,
            known,
            checkpoints: VecDeque::new(),
            records: Vec::new(),
            size: 0,
            compressor: Compressor::new(ZSTD_LEVEL)?,
            has_checkpoint: Arc::new(AtomicBool::new(known > 0)),
        })
    }

    pub(crate) fn announce(&mut self, checkpoint: Checkpoint) {
        self.write_reached();
        let last = self.checkpoints.back().map_or(0, |last| last.plain + 1);
        if self.file.is_some() && checkpoint.plain >= self.position.max(self.known).max(last) {
            self.checkpoints.push_back(checkpoint);
        }
    }

    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len(), |journal, range| {
            let bytes = &bytes[range];
            if let Some(JournalRecord::Bytes(last)) = journal.records.last_mut() {
                last.extend_from_slice(bytes);
            } else {
                journal.records.push(JournalRecord::Bytes(bytes.to_vec()));
                journal.size += size_of::<JournalRecord>();
            }
            journal.size += bytes.len();
        });
    }

    pub(crate) fn add_content(&mut self, path: &[u8], length: usize) {
        self.add(length, |journal, range| match journal.records.last_mut() {
            Some(JournalRecord::Content { path: last, length }) if *last == path => *length += range.len() as u64,
            _ => {
                journal.size += path.len() + size_of::<JournalRecord>();
                journal.records.push(JournalRecord::Content { path: path.to_vec(), length: range.len() as u64 });
            }
        });
    }

    pub(crate) fn invalidate(&mut self) {
        if let Some(file) = self.file.take() {
            // An empty journal has no checkpoint. If this truncation fails, the archive's digest detects wrong bytes.
            let _ = file.set_len(0);
            self.has_checkpoint.store(false, Ordering::Relaxed);
        }
    }

    /// Consumes the archive's next `length` bytes. Calls `record` with each range of them that the journal lacks.
    fn add(&mut self, length: usize, record: impl Fn(&mut Self, Range<usize>)) {
        let mut at = 0;
        while self.file.is_some() && at < length {
            self.write_reached();
            let next = self.checkpoints.front().map_or(u64::MAX, |next| next.plain);
            let until = if self.position < self.known { self.known } else { next };
            let left = usize::try_from(until - self.position).unwrap_or(usize::MAX);
            let range = at..at.saturating_add(left).min(length);
            at = range.end;
            let position = self.position + range.len() as u64;
            if self.position >= self.known {
                record(self, range);
            }
            self.position = position;
            if self.size >= RECORDS_MAX {
                self.write(None);
            }
        }
    }

    fn write_reached(&mut self) {
        if let Some(reached) = self.checkpoints.pop_front_if(|next| next.plain == self.position) {
            self.write(Some(reached));
        }
    }

    fn write(&mut self, checkpoint: Option<Checkpoint>) {
        let (records, attempt, plain) = (std::mem::take(&mut self.records), self.attempt, self.position);
        self.size = 0;
        let Some(file) = &mut self.file else { return };
        let cut = self.start.take().map_or(Ok(()), |start| file.set_len(start));
        let compressor = &mut self.compressor;
        let written = cut.and_then(|()| encode_chunk(compressor, attempt, plain, checkpoint, &records));
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
    compressor: &mut Compressor<'_>,
    attempt: u32,
    plain: u64,
    checkpoint: Option<Checkpoint>,
    records: &[JournalRecord],
) -> io::Result<Vec<u8>> {
    let records = postcard::to_stdvec(records).map_err(io::Error::other)?;
    let bytes = compressor.compress(&records)?;
    let payload = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let format = checkpoint.map_or(0, |checkpoint| checkpoint.format as u8);
    let head = Head { payload, attempt, plain, packed: checkpoint.map_or(0, |checkpoint| checkpoint.packed), format };
    let mut chunk = postcard::to_stdvec(&head).map_err(io::Error::other)?;
    chunk.extend(bytes);
    Ok(chunk)
}

/// The head of a chunk: little-endian numbers of fixed size.
#[derive(Serialize, Deserialize)]
struct Head {
    #[serde(with = "postcard::fixint::le")]
    payload: u32,
    #[serde(with = "postcard::fixint::le")]
    attempt: u32,
    #[serde(with = "postcard::fixint::le")]
    plain: u64,
    #[serde(with = "postcard::fixint::le")]
    packed: u64,
    /// Zero for a chunk that does not end at a checkpoint.
    format: u8,
}

impl Head {
    fn parse(head: &[u8; HEAD_LENGTH]) -> Option<Self> {
        let head: Self = postcard::from_bytes(head).ok()?;
        (head.payload as usize <= CHUNK_MAX && head.format <= 2).then_some(head)
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        let format = [None, Some(StreamFormat::Plain), Some(StreamFormat::Gzip)][usize::from(self.format)]?;
        Some(Checkpoint { packed: self.packed, plain: self.plain, format })
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
            let Some(head) = Head::parse(&head) else { break };
            let Head { attempt, plain, payload, .. } = head;
            at += HEAD_LENGTH as u64 + u64::from(payload);
            if at > length || plain < summary.plain {
                break;
            }
            // A gzip checkpoint needs one later chunk, whose bytes show at which bit the block starts.
            if plain > summary.plain {
                summary.last = newest.take().or(summary.last);
            }
            (summary.attempt, summary.plain) = (attempt, plain);
            newest = head.checkpoint().map(|checkpoint| (checkpoint, at)).or(newest);
        }
        let plain = newest.filter(|(checkpoint, _)| checkpoint.format == StreamFormat::Plain);
        summary.last = plain.or(summary.last);
        Ok(summary)
    }
}

pub(crate) struct JournalReader(pub(super) File);

impl JournalReader {
    /// `None`: the end, or an incomplete chunk.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<JournalRecord>>> {
        let mut head = [0; HEAD_LENGTH];
        let Some(Head { payload, .. }) = self.read(&mut head)?.then(|| Head::parse(&head)).flatten() else {
            return Ok(None);
        };
        let mut bytes = vec![0; payload as usize];
        if !self.read(&mut bytes)? {
            return Ok(None);
        }
        let records = zstd::bulk::decompress(&bytes, CHUNK_MAX)?;
        postcard::from_bytes(&records).map(Some).map_err(io::Error::other)
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        match self.0.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| true),
        }
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
        let mut replay = JournalReader(File::open(path).unwrap());
        std::iter::from_fn(|| replay.next().unwrap()).flatten().collect()
    }

    /// Two checkpoints; the second one is in the middle of a file.
    fn written(path: &Path) {
        let mut journal = JournalWriter::open(path, 1, None).unwrap();
        journal.announce(checkpoint(50, 6));
        journal.add_bytes(b"head");
        journal.add_bytes(b"er");
        journal.add_content(b"a", 10);
        journal.add_content(b"a", 4);
        journal.announce(checkpoint(90, 25));
        // It does not come after the one before it.
        journal.announce(checkpoint(95, 25));
        journal.add_content(b"b", 9);
        journal.add_bytes(b"tail");
    }

    #[test]
    fn the_head_of_a_chunk_has_its_numbers_in_this_order() {
        let head = |format| {
            let checkpoint = Some(Checkpoint { packed: 0x0403, plain: 9, format });
            let mut compressor = Compressor::new(ZSTD_LEVEL).unwrap();
            encode_chunk(&mut compressor, 7, 0x0201, checkpoint, &[]).unwrap()[4..HEAD_LENGTH].to_vec()
        };
        let numbers = [7, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0];
        assert_eq!(head(StreamFormat::Plain), [&numbers[..], &[1]].concat());
        assert_eq!(head(StreamFormat::Gzip), [&numbers[..], &[2]].concat());
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
        let mut journal = JournalWriter::open(&path, 2, Some(last)).unwrap();
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
    fn bytes_that_are_written_late_have_each_checkpoint_among_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut journal = JournalWriter::open(&path, 1, None).unwrap();
        for plain in [6, 8, 12] {
            journal.announce(checkpoint(plain * 10, plain));
        }
        journal.add_content(b"a", 9);
        assert_eq!((summary(&path).plain, summary(&path).last.map(|last| last.0)), (8, Some(checkpoint(60, 6))));
        journal.add_content(b"a", 9);
        assert_eq!((summary(&path).plain, summary(&path).last.map(|last| last.0)), (12, Some(checkpoint(80, 8))));
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
            let mut replay = JournalReader(File::open(&path).unwrap());
            // An error or an end, and no panic.
            while let Ok(Some(_)) = replay.next() {}
        }
        std::fs::remove_file(&path).unwrap();
        let mut journal = JournalWriter::open(&path, 1, None).unwrap();
        (0..100_000_u32).for_each(|number| journal.add_bytes(&number.to_le_bytes()));
        assert!(summary(&path).plain > 300_000, "records are written without a checkpoint, too");
        journal.invalidate();
        journal.add_bytes(b"more");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}
