//! Recycled buffers between the inflater and the unpacker.

use std::{
    io::{self, BufRead, Read},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
};

use imagelet_core::image::Digest;

use crate::hash::Hash;
use crate::{
    admission::WrittenBytes,
    unpack::{Claim, LayerMemory},
};

/// Large enough to make a queue operation cheap, small enough for the L2 cache.
const BLOCK_SIZE: usize = 128 * 1024;
/// With the block being filled and the one being read, a layer has four.
const BLOCKS_QUEUED: usize = 2;
/// Guaranteed blocks of each layer: one is filled while the other is read.
const BLOCKS_OWN: usize = 2;

type Home = Arc<Sender<Vec<u8>>>;

/// A full block with the return path of its buffer, or the end.
pub(crate) enum Block {
    Bytes {
        buffer: Vec<u8>,
        length: usize,
        home: Home,
    },
    /// A queue that closes without this mark was cut.
    End,
}

/// Inflated bytes that are allowed at any ratio. All layers of an image share it, against many small bombs.
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

/// How far a layer may still expand. On drop, an unfinished layer returns its part of the image's allowance.
#[derive(Debug)]
pub(crate) struct Expansion {
    own: u64,
    shared: Arc<Allowance>,
    drawn: u64,
    kept: bool,
}

impl Expansion {
    /// `own` bytes by the layer's size, plus what is left of the image's allowance.
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
    home: Weak<Sender<Vec<u8>>>,
    returned: Receiver<Vec<u8>>,
    claim: Claim,
}

pub(crate) struct BlockQueue {
    blocks: Receiver<Block>,
    _home: Home,
}

pub(crate) fn queue(memory: &Arc<LayerMemory>) -> (BlockWriter, BlockQueue) {
    let (queue, out) = sync_channel(BLOCKS_QUEUED);
    let (home, returned) = channel();
    let home = Arc::new(home);
    let writer = BlockWriter { queue, home: Arc::downgrade(&home), returned, claim: Claim::on(memory) };
    (writer, BlockQueue { blocks: out, _home: home })
}

impl BlockWriter {
    /// A returned buffer, or a new one while the layer's limit allows. `None`: the reader was dropped.
    fn buffer(&mut self, blocks: &mut usize) -> Option<Vec<u8>> {
        if let Ok(buffer) = self.returned.try_recv() {
            return Some(buffer);
        }
        if *blocks >= BLOCKS_OWN && !self.claim.grow_if_free(BLOCK_SIZE) {
            return self.returned.recv().ok();
        }
        *blocks += 1;
        Some(vec![0; BLOCK_SIZE])
    }

    /// Copies a stream into the queue. `Ok(false)`: the reader was dropped.
    pub(crate) fn copy(&mut self, stream: &mut dyn Read, mut expansion: Expansion) -> io::Result<bool> {
        let (mut total, mut blocks) = (0_u64, 0);
        loop {
            let Some(mut buffer) = self.buffer(&mut blocks) else { return Ok(false) };
            let mut length = 0;
            while length < buffer.len() {
                match stream.read(&mut buffer[length..]) {
                    Ok(0) => break,
                    Ok(read) => length += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if !expansion.take(length as u64) {
                return Err(io::Error::new(
                    io::ErrorKind::FileTooLarge,
                    format!("it inflates to more than {total} bytes, which is out of proportion to its size"),
                ));
            }
            total += length as u64;
            let last = length < buffer.len();
            if length > 0 {
                let Some(home) = self.home.upgrade() else { return Ok(false) };
                if self.queue.send(Block::Bytes { buffer, length, home }).is_err() {
                    return Ok(false);
                }
            }
            if last {
                expansion.kept = true;
                return Ok(self.queue.send(Block::End).is_ok());
            }
        }
    }
}

/// Hashes each block as it arrives and lends it without a copy.
pub(crate) struct BlockReader {
    queue: BlockQueue,
    hash: Hash,
    written_bytes: WrittenBytes,
    current: Option<(Vec<u8>, usize, Home)>,
    position: usize,
    ended: bool,
}

impl BlockReader {
    /// Consumed bytes count as written.
    pub(crate) fn new(queue: BlockQueue, hash: Hash, written_bytes: WrittenBytes) -> Self {
        Self { queue, hash, written_bytes, current: None, position: 0, ended: false }
    }

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
        if let Some((buffer, length, home)) = self.current.take() {
            self.written_bytes.add(length as u64);
            // If the inflater has finished, the buffer is freed.
            let _ = home.send(buffer);
        }
        self.position = 0;
        match self.queue.blocks.recv() {
            Ok(Block::Bytes { buffer, length, home }) => {
                self.hash.update(&buffer[..length]);
                self.current = Some((buffer, length, home));
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
        while !self.ended && self.current.as_ref().is_none_or(|(_, length, _)| self.position >= *length) {
            self.advance()?;
        }
        Ok(self.current.as_ref().map_or(&[], |(buffer, length, _)| &buffer[self.position..*length]))
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
