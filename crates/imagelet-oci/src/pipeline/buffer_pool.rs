//! Recycled buffers between the inflater and the unpacker.

use std::{
    collections::VecDeque,
    io::{self, BufRead, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
};

use imagelet_core::image::{ByteSize, Digest};

use crate::{
    admission::WriteGate,
    hash::Hash,
    store::{Checkpoint, JournalWriter},
    unpack::{LayerInput, LayerMemory, MemoryReservation, ReusableFile},
};

/// The size of a block: large enough for cheap queue operations, small enough for the L2 cache.
pub(crate) const BLOCK_SIZE: usize = 128 * 1024;
/// Queued blocks of a smaller layer. With the block being filled and the block being read, it has four blocks.
pub(crate) const BLOCKS_QUEUED: usize = 2;
/// Queued blocks of the largest layer. The inflater then goes on while small files are made, and the unpacker while the
/// inflater waits for a core. With 2, pulls took 3 % more time; with 16, no less.
pub(crate) const BLOCKS_QUEUED_LARGEST: usize = 8;
/// Blocks that each layer always gets: one is filled while the other is read.
const BLOCKS_OWN: usize = 2;

enum Block {
    Bytes(BlockBytes),
    /// The end of the stream. If the queue closes without this mark, the stream was cut.
    End,
}

#[derive(Default)]
struct BlockBytes {
    bytes: Vec<u8>,
    checkpoint: Option<Checkpoint>,
    /// Whether the bytes are from the files of an earlier attempt, and so already on the disk.
    is_replayed: bool,
    files: VecDeque<(usize, ReusableFile)>,
}

pub(crate) trait ResumableStream: Read {
    /// The last checkpoint before the bytes that are read next. A decoder that does not export its state has none.
    fn checkpoint(&mut self) -> Option<Checkpoint> {
        None
    }
}

/// The bytes to which a layer may still expand. The drop of an unfinished layer returns its part of the allowance.
#[derive(Debug)]
pub(crate) struct Expansion {
    own: u64,
    /// The image's allowance. All its layers draw from it, against many small bombs.
    shared: Arc<AtomicU64>,
    drawn: u64,
    kept: bool,
}

impl Expansion {
    /// `own` is the number of bytes that the layer's compressed size permits. The image's remaining allowance is added.
    pub(crate) fn new(own: u64, shared: &Arc<AtomicU64>) -> Self {
        Self { own, shared: Arc::clone(shared), drawn: 0, kept: false }
    }

    fn take(&mut self, bytes: u64) -> bool {
        let over = bytes.saturating_sub(self.own);
        self.own -= bytes - over;
        let draw = |left: u64| left.checked_sub(over);
        let fits = over == 0 || self.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, draw).is_ok();
        if fits {
            self.drawn += over;
        }
        fits
    }
}

impl Drop for Expansion {
    fn drop(&mut self) {
        if !self.kept {
            self.shared.fetch_add(self.drawn, Ordering::Relaxed);
        }
    }
}

pub(crate) struct BlockWriter {
    queue: SyncSender<Block>,
    returned: Receiver<Vec<u8>>,
    claim: MemoryReservation,
    blocks: usize,
    total: u64,
    replayed: BlockBytes,
}

/// Creates a queue of `length` blocks. Its reader hashes the bytes, counts consumed bytes in `gate`, and records them in
/// the journal.
pub(crate) fn queue(
    length: usize,
    memory: &Arc<LayerMemory>,
    hash: Hash,
    gate: WriteGate,
    journal: Option<JournalWriter>,
) -> (BlockWriter, BlockReader) {
    let (queue, blocks) = sync_channel(length);
    let (home, returned) = channel();
    let current = BlockBytes::default();
    let reader = BlockReader { blocks, home, hash, gate, journal, current, position: 0, ended: false };
    let (claim, replayed) = (MemoryReservation::on(memory), BlockBytes::default());
    (BlockWriter { queue, returned, claim, blocks: 0, total: 0, replayed }, reader)
}

impl BlockWriter {
    /// Returns a recycled buffer, or a new buffer if the layer's limit permits; `None` if the reader was dropped.
    fn buffer(&mut self) -> Option<Vec<u8>> {
        if let Ok(buffer) = self.returned.try_recv() {
            return Some(buffer);
        }
        if self.blocks >= BLOCKS_OWN && !self.claim.grow_if_free(BLOCK_SIZE) {
            return self.returned.recv().ok();
        }
        self.blocks += 1;
        Some(Vec::with_capacity(BLOCK_SIZE))
    }

    fn count(&mut self, length: usize, expansion: &mut Expansion) -> io::Result<()> {
        if !expansion.take(length as u64) {
            let total = ByteSize(self.total);
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("it inflates to more than {total}, which is out of proportion to its size"),
            ));
        }
        self.total += length as u64;
        Ok(())
    }

    /// Copies a stream into the queue. Returns `false` if the reader was dropped.
    pub(crate) fn copy(&mut self, stream: &mut dyn ResumableStream, expansion: &mut Expansion) -> io::Result<bool> {
        loop {
            let Some(mut bytes) = self.buffer() else { return Ok(false) };
            bytes.resize(BLOCK_SIZE, 0);
            let mut length = 0;
            while length < BLOCK_SIZE {
                match stream.read(&mut bytes[length..]) {
                    Ok(0) => break,
                    Ok(read) => length += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            bytes.truncate(length);
            self.count(length, expansion)?;
            let filled = BlockBytes { bytes, checkpoint: stream.checkpoint(), ..BlockBytes::default() };
            if length > 0 && self.queue.send(Block::Bytes(filled)).is_err() {
                return Ok(false);
            }
            if length < BLOCK_SIZE {
                expansion.kept = true;
                return Ok(self.queue.send(Block::End).is_ok());
            }
        }
    }

    /// Queues replayed bytes in whole blocks; [`Self::flush`] queues the rest. Returns `false` after the reader's drop.
    pub(crate) fn pass_replayed(
        &mut self,
        mut bytes: &[u8],
        mut file: Option<ReusableFile>,
        expansion: &mut Expansion,
    ) -> io::Result<bool> {
        self.count(bytes.len(), expansion)?;
        while !bytes.is_empty() {
            if self.replayed.bytes.len() >= BLOCK_SIZE && !self.flush() {
                return Ok(false);
            }
            if self.replayed.bytes.is_empty() {
                let Some(mut buffer) = self.buffer() else { return Ok(false) };
                buffer.clear();
                self.replayed = BlockBytes { bytes: buffer, is_replayed: true, ..BlockBytes::default() };
            }
            let BlockBytes { bytes: block, files, .. } = &mut self.replayed;
            files.extend(file.take().map(|file| (block.len(), file)));
            let (head, tail) = bytes.split_at(bytes.len().min(BLOCK_SIZE - block.len()));
            block.extend_from_slice(head);
            bytes = tail;
        }
        Ok(true)
    }

    pub(crate) fn flush(&mut self) -> bool {
        let filled = std::mem::take(&mut self.replayed);
        filled.bytes.is_empty() || self.queue.send(Block::Bytes(filled)).is_ok()
    }
}

pub(crate) struct BlockReader {
    blocks: Receiver<Block>,
    home: Sender<Vec<u8>>,
    hash: Hash,
    gate: WriteGate,
    journal: Option<JournalWriter>,
    current: BlockBytes,
    position: usize,
    ended: bool,
}

impl BlockReader {
    pub(crate) fn drain(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.hash.finish())
    }

    fn advance(&mut self) -> io::Result<()> {
        let BlockBytes { bytes: done, is_replayed, .. } = std::mem::take(&mut self.current);
        self.position = 0;
        if !done.is_empty() {
            if !is_replayed {
                self.gate.add(done.len() as u64);
            }
            // Fails if the inflater has finished; the buffer is then freed.
            let _ = self.home.send(done);
        }
        match self.blocks.recv() {
            Ok(Block::Bytes(filled)) => {
                self.hash.update(&filled.bytes);
                if let (Some(journal), Some(checkpoint)) = (&mut self.journal, filled.checkpoint) {
                    journal.announce(checkpoint);
                }
                self.current = filled;
                Ok(())
            }
            Ok(Block::End) => {
                self.ended = true;
                Ok(())
            }
            Err(_) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the stream was cut")),
        }
    }
}

impl BufRead for BlockReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while !self.ended && self.position >= self.current.bytes.len() {
            self.advance()?;
        }
        Ok(&self.current.bytes[self.position..])
    }

    fn consume(&mut self, amount: usize) {
        if let Some(journal) = &mut self.journal {
            journal.add_bytes(&self.current.bytes[self.position..][..amount]);
        }
        self.position += amount;
    }
}

impl LayerInput for BlockReader {
    fn consume_content(&mut self, bytes: usize) {
        self.position += bytes;
    }

    fn content_written(&mut self, bytes: usize, path: &[u8]) {
        if let Some(journal) = &mut self.journal {
            journal.add_content(path, bytes);
        }
    }

    fn reusable_file(&mut self) -> io::Result<Option<ReusableFile>> {
        self.fill_buf()?;
        let (position, files) = (self.position, &mut self.current.files);
        while files.front().is_some_and(|(at, _)| *at < position) {
            files.pop_front();
        }
        Ok(files.pop_front_if(|(at, _)| *at == position).map(|(_, file)| file))
    }

    fn invalidate_journal(&mut self) {
        // The journal refers to the bytes of the replaced file, which are no longer on the disk.
        if let Some(mut journal) = self.journal.take() {
            journal.invalidate();
        }
    }
}

impl Read for BlockReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, out)
    }
}

pub(super) fn read_buffered(source: &mut impl BufRead, out: &mut [u8]) -> io::Result<usize> {
    let mut available = source.fill_buf()?;
    let length = available.read(out)?;
    source.consume(length);
    Ok(length)
}
