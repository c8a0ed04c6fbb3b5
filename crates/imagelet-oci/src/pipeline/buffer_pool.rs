//! Recycled buffers between the inflater and the unpacker.

use std::{
    io::{self, BufRead, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
};

use imagelet_core::image::{ByteSize, Digest};

use crate::hash::Hash;
use crate::{
    admission::WrittenBytes,
    unpack::{LayerMemory, MemoryReservation},
};

/// Large enough for cheap queue operations, small enough for the L2 cache.
const BLOCK_SIZE: usize = 128 * 1024;
/// A layer has four blocks: the queued ones, the block being filled and the block being read.
const BLOCKS_QUEUED: usize = 2;
/// Blocks that each layer always gets: one is filled while the other is read.
const BLOCKS_OWN: usize = 2;

enum Block {
    Bytes(Vec<u8>),
    /// If the queue closes without this mark, the stream was cut.
    End,
}

/// Inflated bytes that are allowed at any ratio. All layers of an image share them, against many small bombs.
#[derive(Debug, Default)]
pub(crate) struct Allowance(AtomicU64);

impl Allowance {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    fn draw(&self, bytes: u64) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }
}

/// How many bytes a layer may still expand to. On drop, an unfinished layer returns its part of the image's allowance.
#[derive(Debug)]
pub(crate) struct Expansion {
    own: u64,
    shared: Arc<Allowance>,
    drawn: u64,
    kept: bool,
}

impl Expansion {
    /// `own`: bytes by the layer's size; the rest of the image's allowance is added.
    pub(crate) fn new(own: u64, shared: &Arc<Allowance>) -> Self {
        Self { own, shared: Arc::clone(shared), drawn: 0, kept: false }
    }

    fn take(&mut self, bytes: u64) -> bool {
        let over = bytes.saturating_sub(self.own);
        self.own -= bytes - over;
        let fits = over == 0 || self.shared.draw(over);
        if fits {
            self.drawn += over;
        }
        fits
    }
}

impl Drop for Expansion {
    fn drop(&mut self) {
        if !self.kept {
            self.shared.0.fetch_add(self.drawn, Ordering::Relaxed);
        }
    }
}

pub(crate) struct BlockWriter {
    queue: SyncSender<Block>,
    returned: Receiver<Vec<u8>>,
    claim: MemoryReservation,
}

/// The reader hashes with `hash` and adds consumed bytes to `written_bytes`.
pub(crate) fn queue(memory: &Arc<LayerMemory>, hash: Hash, written_bytes: WrittenBytes) -> (BlockWriter, BlockReader) {
    let (queue, blocks) = sync_channel(BLOCKS_QUEUED);
    let (home, returned) = channel();
    let reader = BlockReader { blocks, home, hash, written_bytes, current: Vec::new(), position: 0, ended: false };
    (BlockWriter { queue, returned, claim: MemoryReservation::on(memory) }, reader)
}

impl BlockWriter {
    /// Returns a recycled buffer, or a new buffer if the layer's limit allows. `None`: the reader was dropped.
    fn buffer(&mut self, blocks: &mut usize) -> Option<Vec<u8>> {
        if let Ok(buffer) = self.returned.try_recv() {
            return Some(buffer);
        }
        if *blocks >= BLOCKS_OWN && !self.claim.grow_if_free(BLOCK_SIZE) {
            return self.returned.recv().ok();
        }
        *blocks += 1;
        Some(Vec::with_capacity(BLOCK_SIZE))
    }

    /// Copies a stream into the queue. `Ok(false)`: the reader was dropped.
    pub(crate) fn copy(&mut self, stream: &mut dyn Read, mut expansion: Expansion) -> io::Result<bool> {
        let (mut total, mut blocks) = (0_u64, 0);
        loop {
            let Some(mut buffer) = self.buffer(&mut blocks) else { return Ok(false) };
            buffer.resize(BLOCK_SIZE, 0);
            let mut length = 0;
            while length < BLOCK_SIZE {
                match stream.read(&mut buffer[length..]) {
                    Ok(0) => break,
                    Ok(read) => length += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            buffer.truncate(length);
            if !expansion.take(length as u64) {
                return Err(io::Error::new(
                    io::ErrorKind::FileTooLarge,
                    format!("it inflates to more than {}, which is out of proportion to its size", ByteSize(total)),
                ));
            }
            total += length as u64;
            if length > 0 && self.queue.send(Block::Bytes(buffer)).is_err() {
                return Ok(false);
            }
            if length < BLOCK_SIZE {
                expansion.kept = true;
                return Ok(self.queue.send(Block::End).is_ok());
            }
        }
    }
}

/// Hashes each block as it arrives and lends it without a copy.
pub(crate) struct BlockReader {
    blocks: Receiver<Block>,
    /// Returns buffers to the writer.
    home: Sender<Vec<u8>>,
    hash: Hash,
    written_bytes: WrittenBytes,
    current: Vec<u8>,
    position: usize,
    ended: bool,
}

impl BlockReader {
    pub(crate) fn drain(mut self) -> io::Result<Digest> {
        loop {
            let length = self.fill_buf()?.len();
            if length == 0 {
                return Ok(self.hash.finish());
            }
            self.consume(length);
        }
    }

    fn advance(&mut self) -> io::Result<()> {
        let done = std::mem::take(&mut self.current);
        self.position = 0;
        if !done.is_empty() {
            self.written_bytes.add(done.len() as u64);
            // Fails if the inflater has finished; then the buffer is freed.
            let _ = self.home.send(done);
        }
        match self.blocks.recv() {
            Ok(Block::Bytes(bytes)) => {
                self.hash.update(&bytes);
                self.current = bytes;
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
        while !self.ended && self.position >= self.current.len() {
            self.advance()?;
        }
        Ok(&self.current[self.position..])
    }

    fn consume(&mut self, amount: usize) {
        self.position += amount;
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
