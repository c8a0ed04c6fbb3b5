//! Inflates gzip streams, which can be continued at the start of a block.
//!
//! A deflate block may start at any bit of a byte, and the decoder does not report the bit. So a resumption tries all
//! eight bits, and uses the first decoder that reproduces the known bytes after the checkpoint. A prefix of empty
//! blocks, with the same length in bits modulo eight, moves a decoder to its bit.

use std::io::{self, BufRead, Read};

use zlib_rs::{Inflate, InflateFlush, Status};

use super::{buffer_pool::ResumableStream, frames::FrameReader};
use crate::store::{Checkpoint, StreamFormat};

/// 15 bits; with 16 added, the decoder checks a gzip header and trailer.
const GZIP_WINDOW_BITS: u8 = 15 + 16;
const RAW_WINDOW_BITS: u8 = 15;
/// The distance that a deflate stream may refer back.
pub(crate) const WINDOW: usize = 32 << 10;
const TRAILER: usize = 8;
/// Compressed bytes between two checkpoints.
const CHECKPOINT_PERIOD: u64 = 128 << 10;
const TRIAL_BYTES: usize = 16 << 10;

pub(crate) struct GzipReader<'a> {
    source: &'a mut FrameReader,
    member: Member,
    packed: u64,
    plain: u64,
    /// The end of a block. It becomes a checkpoint when the next block has output, so never after the last block.
    candidate: Option<Checkpoint>,
    checkpoint: Option<Checkpoint>,
    last: u64,
}

enum Member {
    Whole(Inflate),
    /// A continued member. Its check value is unknown; the archive's digest proves the bytes.
    Rest(Inflate),
    None,
}

impl<'a> GzipReader<'a> {
    pub(crate) fn new(source: &'a mut FrameReader) -> Self {
        Self { source, member: Member::None, packed: 0, plain: 0, candidate: None, checkpoint: None, last: 0 }
    }

    /// Continues at a checkpoint. `source` begins with the last byte before the checkpoint, `window` has the plain
    /// bytes before it, and `known` has the first plain bytes after it.
    pub(crate) fn resume(
        source: &'a mut FrameReader,
        checkpoint: Checkpoint,
        (window, known): (&[u8], &[u8]),
    ) -> io::Result<Self> {
        let head = source.peek(TRIAL_BYTES)?;
        let (&shared, rest) = head.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
        let starts = |used: &u8| reproduces(decoder_at_bit(*used, shared, window), rest, known);
        let used = (0..8).find(starts).ok_or_else(|| invalid("no bit of a block's start continues its bytes"))?;
        let inflate =
            decoder_at_bit(used, shared, window).ok_or_else(|| invalid("a block's start cannot be continued"))?;
        source.consume(1);
        let Checkpoint { packed, plain, .. } = checkpoint;
        Ok(Self { packed, plain, last: packed, member: Member::Rest(inflate), ..Self::new(source) })
    }

    /// Inflates once. Returns the number of bytes, or `None` if this step has made no bytes and another may.
    fn step(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let is_due = self.is_due();
        let input = self.source.fill_buf()?;
        let inflate = match &mut self.member {
            Member::Whole(inflate) | Member::Rest(inflate) => inflate,
            Member::None if input.is_empty() => return Ok(Some(0)),
            Member::None => {
                self.member = Member::Whole(Inflate::new(true, GZIP_WINDOW_BITS));
                return Ok(None);
            }
        };
        let (available, before) = (input.len(), (inflate.total_in(), inflate.total_out()));
        let flush = if is_due { InflateFlush::Block } else { InflateFlush::NoFlush };
        let status = inflate.decompress(input, out, flush).map_err(|error| invalid(error.as_str()))?;
        let [taken, made] = [inflate.total_in() - before.0, inflate.total_out() - before.1]
            .map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        self.source.consume(taken);
        self.packed += taken as u64;
        self.plain += made as u64;
        if let Some(candidate) = self.candidate.take_if(|_| made > 0) {
            self.last = candidate.packed;
            self.checkpoint = Some(candidate);
        }
        if status == Status::StreamEnd {
            self.end_member()?;
        } else if taken == 0 && made == 0 && available == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        } else if is_due && self.is_due() && taken < available && made < out.len() {
            let (packed, plain) = (self.packed, self.plain);
            self.candidate = Some(Checkpoint { packed, plain, format: StreamFormat::Gzip });
        }
        Ok((made > 0).then_some(made))
    }

    fn is_due(&self) -> bool {
        self.packed - self.last >= CHECKPOINT_PERIOD
    }

    fn end_member(&mut self) -> io::Result<()> {
        self.candidate = None;
        if let Member::Rest(_) = std::mem::replace(&mut self.member, Member::None) {
            let mut trailer = [0; TRAILER];
            self.source.read_exact(&mut trailer)?;
            self.packed += TRAILER as u64;
        }
        Ok(())
    }
}

impl Read for GzipReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(made) = self.step(out)? {
                return Ok(made);
            }
        }
    }
}

impl ResumableStream for GzipReader<'_> {
    fn checkpoint(&mut self) -> Option<Checkpoint> {
        self.checkpoint.take()
    }
}

pub(crate) struct UncompressedReader<'a> {
    source: &'a mut FrameReader,
    position: u64,
    last: u64,
    checkpoint: Option<Checkpoint>,
}

impl<'a> UncompressedReader<'a> {
    pub(crate) fn new(source: &'a mut FrameReader, position: u64) -> Self {
        Self { source, position, last: position, checkpoint: None }
    }
}

impl Read for UncompressedReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(out)?;
        self.position += read as u64;
        if self.position - self.last >= CHECKPOINT_PERIOD {
            self.last = self.position;
            let (packed, plain) = (self.position, self.position);
            self.checkpoint = Some(Checkpoint { packed, plain, format: StreamFormat::Plain });
        }
        Ok(read)
    }
}

impl ResumableStream for UncompressedReader<'_> {
    fn checkpoint(&mut self) -> Option<Checkpoint> {
        self.checkpoint.take()
    }
}

/// A decoder at a checkpoint inside the byte `shared`. The first `used` bits of the byte are before the checkpoint.
fn decoder_at_bit(used: u8, shared: u8, window: &[u8]) -> Option<Inflate> {
    let mut prefix = empty_blocks(used);
    if used > 0 {
        let before = (1_u8 << used) - 1;
        let last = prefix.last_mut()?;
        *last = *last & before | shared & !before;
    }
    let mut inflate = Inflate::new(false, RAW_WINDOW_BITS);
    // A prefix makes at most one byte, which the dictionary replaces.
    inflate.decompress(&prefix, &mut [0; 2], InflateFlush::NoFlush).ok()?;
    inflate.set_dictionary(window).ok()?;
    (inflate.total_in() == prefix.len() as u64).then_some(inflate)
}

/// Deflate blocks, none of them the last, whose length is `used` bits more than whole bytes.
fn empty_blocks(used: u8) -> Vec<u8> {
    /// A block of the fixed code without content: the header 0, 1, 0 and the end 0000000.
    const EMPTY: &str = "0100000000";
    /// A block like `EMPTY`, but with the byte 144, whose code has nine bits: an odd number of bits.
    const NINE_BITS: &str = "0101100100000000000";
    let is_odd = used % 2 == 1;
    // Ten bits are a byte and two bits; 19 bits are two bytes and three bits.
    let rest = if is_odd { (used + 8 - 3) % 8 } else { used };
    let bits = [if is_odd { NINE_BITS } else { "" }, &EMPTY.repeat(usize::from(rest / 2))].concat();
    let byte = |bits: &[u8]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit == b'1'));
    bits.as_bytes().chunks(8).map(byte).collect()
}

/// Whether the decoder's output equals the known bytes, as far as the compressed bytes reach.
fn reproduces(inflate: Option<Inflate>, packed: &[u8], known: &[u8]) -> bool {
    let Some(mut inflate) = inflate else { return false };
    let (mut made, start) = (vec![0; known.len()], inflate.total_out());
    let inflated = inflate.decompress(packed, &mut made, InflateFlush::NoFlush);
    let length = usize::try_from(inflate.total_out() - start).unwrap_or(usize::MAX);
    inflated.is_ok() && length > 0 && made.get(..length) == known.get(..length)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("invalid gzip stream: {why}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use bytes::Bytes;
    use flate2::{Compression, write::GzEncoder};
    use tokio::sync::mpsc;

    use super::*;
    use crate::{admission::WrittenBytes, pipeline::frames::Frame, registry::ReaderWait};

    /// The frames have an odd length.
    fn source(bytes: &[u8]) -> FrameReader {
        let (sender, receiver) = mpsc::channel(bytes.len() / 10_007 + 2);
        for part in bytes.chunks(10_007) {
            sender.try_send(Frame::Bytes(Bytes::copy_from_slice(part))).expect("the queue is long enough");
        }
        sender.try_send(Frame::End).expect("the queue is long enough");
        FrameReader::new(receiver, ReaderWait::default(), WrittenBytes::default())
    }

    fn gzip(plain: &[u8], level: u32) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(plain).expect("memory takes all");
        encoder.finish().expect("memory takes all")
    }

    /// Bytes that pack to about five eighths.
    fn text(length: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes().map(|byte| byte & 0x1f)
        };
        std::iter::repeat_with(next).flatten().take(length).collect()
    }

    fn checkpoints(packed: &[u8], plain: &[u8]) -> Vec<Checkpoint> {
        let mut source = source(packed);
        let (mut reader, mut found, mut made, mut piece) =
            (GzipReader::new(&mut source), Vec::new(), Vec::new(), vec![0; 50_001]);
        loop {
            let read = reader.read(&mut piece).expect("it inflates");
            found.extend(reader.checkpoint());
            made.extend_from_slice(&piece[..read]);
            if read == 0 {
                assert!(made == plain, "it inflates to other bytes");
                return found;
            }
        }
    }

    /// What comes after a checkpoint. `known`: the bytes that the journal says.
    fn rest(packed: &[u8], plain: &[u8], checkpoint: Checkpoint, known: &[u8]) -> io::Result<Vec<u8>> {
        let at = usize::try_from(checkpoint.plain).unwrap();
        let mut source = source(&packed[usize::try_from(checkpoint.packed).unwrap() - 1..]);
        let window = &plain[at.saturating_sub(WINDOW)..at];
        let mut made = Vec::new();
        GzipReader::resume(&mut source, checkpoint, (window, known))?.read_to_end(&mut made)?;
        Ok(made)
    }

    #[test]
    fn a_stream_is_continued_at_each_of_its_checkpoints() {
        let plain = text(3 << 20);
        let (head, tail) = plain.split_at((1 << 20) + 77);
        let streams =
            [gzip(&plain, 0), gzip(&plain, 6), gzip(&plain, 9), [gzip(head, 6), gzip(&[], 6), gzip(tail, 9)].concat()];
        for (number, packed) in streams.iter().enumerate() {
            let found = checkpoints(packed, &plain);
            let most = packed.len() as u64 / CHECKPOINT_PERIOD;
            assert!((most / 2..=most).contains(&(found.len() as u64)), "{number}: {} of {most}", found.len());
            for checkpoint in found {
                let at = usize::try_from(checkpoint.plain).unwrap();
                let known = &plain[at..][..4096.min(plain.len() - at)];
                let made = rest(packed, &plain, checkpoint, known).expect("it is continued");
                assert!(made == plain[at..], "{number}: other bytes after {checkpoint:?}");
            }
        }
    }

    #[test]
    fn a_stream_that_is_one_block_has_no_checkpoint_after_its_header() {
        let plain = text(1 << 20);
        // The fastest encoder begins a block only where it is flushed.
        let found = checkpoints(&gzip(&plain, 1), &plain);
        assert!(found.len() <= 1, "{found:?}");
    }

    #[test]
    fn a_stream_is_not_continued_by_other_bytes() {
        let plain = text(1 << 20);
        let packed = gzip(&plain, 6);
        let checkpoint = checkpoints(&packed, &plain)[1];
        let at = usize::try_from(checkpoint.plain).unwrap();
        let known = &plain[at..][..4096];
        assert!(rest(&packed, &plain, checkpoint, &known[1..]).is_err(), "the known bytes are others");
        let earlier = Checkpoint { packed: checkpoint.packed - 1, ..checkpoint };
        assert!(rest(&packed, &plain, earlier, known).is_err(), "the position is another");
        let mut other = plain.clone();
        other[at - WINDOW..at].reverse();
        assert!(rest(&packed, &other, checkpoint, known).is_err(), "the window is another");
        assert!(rest(&packed[..packed.len() - 1], &plain, checkpoint, known).is_err(), "the trailer is cut");
    }

    #[test]
    fn empty_blocks_move_a_stream_by_each_number_of_bits() {
        for used in 0..8 {
            let mut inflate = Inflate::new(false, RAW_WINDOW_BITS);
            let prefix = empty_blocks(used);
            // The rest of the last byte and the next one: an empty block that is the last, 1, 1, 0 and 0000000.
            let mut bytes = [&prefix[..], &[0; 3]].concat();
            let start = if used == 0 { prefix.len() * 8 } else { prefix.len() * 8 - 8 + usize::from(used) };
            for bit in [start, start + 1] {
                bytes[bit / 8] |= 1 << (bit % 8);
            }
            let status = inflate.decompress(&bytes, &mut [0; 4], InflateFlush::NoFlush).expect("it is deflate");
            assert_eq!(status, Status::StreamEnd, "{used}");
            assert!(inflate.total_out() <= 1, "{used}");
        }
    }
}
