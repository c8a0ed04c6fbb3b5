//! Inflates compressed frames into plain blocks, on a separate thread.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
};

use imagelet_core::error::{RuntimeError, RuntimeErrorKind};

use super::{
    buffer_pool::{BlockWriter, Expansion},
    frames::FrameReader,
    gzip::{GzipReader, UncompressedReader},
    replay::replay,
    zstd_window::{ZstdReader, is_zstd},
};
use crate::{
    event_pair::EventPair,
    store::{ResumedLayer, StreamFormat},
    unpack::LayerMemory,
};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const MAGIC_LENGTH: usize = 4;

#[derive(Debug)]
pub(crate) struct Bounds {
    pub(crate) expansion: Expansion,
    pub(crate) memory: Arc<LayerMemory>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// Inflates until the end mark; returns the source, and `false` if another stage has stopped and has the cause. As in
/// every runtime, the first bytes decide the compression. For a resumed layer, `source` begins at
/// [`ResumedLayer::offset`].
pub(crate) fn inflate(
    mut source: FrameReader,
    blocks: &mut BlockWriter,
    bounds: Bounds,
    resumed: Option<(ResumedLayer, EventPair)>,
) -> (FrameReader, Result<bool, RuntimeError>) {
    let Bounds { mut expansion, memory, cancelled } = bounds;
    let moved = match resumed {
        Some(resumed) => resume_stream(&mut source, blocks, &mut expansion, resumed),
        None => match source.peek(MAGIC_LENGTH) {
            Err(error) => Err(error),
            Ok(head) if head.starts_with(&GZIP_MAGIC) => blocks.copy(&mut GzipReader::new(&mut source), &mut expansion),
            Ok(head) if is_zstd(head) => ZstdReader::new(&mut source, &memory, &cancelled)
                .and_then(|mut decoder| blocks.copy(&mut decoder, &mut expansion)),
            Ok(_) => blocks.copy(&mut UncompressedReader::new(&mut source, 0), &mut expansion),
        },
    };
    let ended = match moved {
        Ok(is_read) => Ok(is_read),
        Err(_) if source.cut => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            Err(RuntimeError::new(RuntimeErrorKind::Unacceptable, "it is beyond a limit").caused_by(error))
        }
        Err(error) => Err(RuntimeError::new(RuntimeErrorKind::Corrupt, "it does not decompress").caused_by(error)),
    };
    (source, ended)
}

/// Queues the bytes that an earlier attempt has unpacked, then the rest. Returns `false` if the reader was dropped.
fn resume_stream(
    source: &mut FrameReader,
    blocks: &mut BlockWriter,
    expansion: &mut Expansion,
    (mut resumed, report): (ResumedLayer, EventPair),
) -> io::Result<bool> {
    let Some(around) = replay(&mut resumed, blocks, expansion)? else { return Ok(false) };
    drop(report);
    let checkpoint = resumed.checkpoint;
    match checkpoint.format {
        StreamFormat::Gzip => {
            let mut stream = GzipReader::resume(source, checkpoint, (&around.before, &around.after))?;
            blocks.copy(&mut stream, expansion)
        }
        StreamFormat::Plain => blocks.copy(&mut UncompressedReader::new(source, checkpoint.packed), expansion),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use bytes::Bytes;
    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        admission::{WriteGate, WrittenBytes},
        pipeline::frames::Frame,
        registry::ReaderWait,
    };
    use crate::{
        hash::Hash,
        pipeline::buffer_pool::{self, BLOCKS_QUEUED},
    };
    use imagelet_core::image::{Digest, DigestAlgorithm};

    fn through(frames: Vec<Frame>, limit: u64) -> (Result<bool, RuntimeError>, io::Result<Digest>) {
        let (sender, receiver) = mpsc::channel(64);
        for frame in frames {
            sender.try_send(frame).expect("the queue is long enough");
        }
        drop(sender);
        let memory = LayerMemory::of_its_own(16 << 20);
        let hash = Hash::new(DigestAlgorithm::Sha256);
        let (mut writer, out) = buffer_pool::queue(BLOCKS_QUEUED, &memory, hash, WriteGate::default(), None);
        let reader = std::thread::spawn(move || out.drain());
        let bounds = Bounds { expansion: Expansion::new(limit, &Arc::default()), memory, cancelled: Arc::default() };
        let source = FrameReader::new(receiver, ReaderWait::default(), WrittenBytes::default());
        let (_, inflated) = inflate(source, &mut writer, bounds, None);
        drop(writer);
        (inflated, reader.join().expect("the reader does not panic"))
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("memory takes all");
        encoder.finish().expect("memory takes all")
    }

    fn frames(bytes: &[u8]) -> Vec<Frame> {
        let mut frames: Vec<Frame> = bytes
            .chunks(bytes.len().div_ceil(20).max(1))
            .map(|part| Frame::Bytes(Bytes::copy_from_slice(part)))
            .collect();
        frames.push(Frame::End);
        frames
    }

    #[test]
    fn gzip_members_zstd_frames_and_plain_bytes_come_out_as_they_went_in() {
        let plain: Vec<u8> = (0..1_500_000_u32).flat_map(u32::to_le_bytes).collect();
        let (head, tail) = plain.split_at(700_001);
        let cases = [
            gzip(&plain),
            [gzip(head), gzip(tail)].concat(),
            zstd::encode_all(&plain[..], 1).expect("it compresses"),
            [zstd::encode_all(head, 1).expect("it compresses"), zstd::encode_all(tail, 1).expect("it compresses")]
                .concat(),
            plain.clone(),
        ];
        for case in cases {
            let (inflated, digest) = through(frames(&case), u64::MAX);
            assert!(inflated.expect("it inflates"));
            assert_eq!(digest.expect("whole"), Digest::of(&plain));
        }
    }

    #[test]
    fn a_zstd_frame_that_is_not_of_its_size_is_refused_however_it_arrives() {
        // Declares 48 bytes and has one empty block. Libzstd accepts it when it arrives in pieces.
        let bytes = b"\x28\xb5\x2f\xfd\x20\x30\x01\0\0";
        let whole = vec![Frame::Bytes(Bytes::copy_from_slice(bytes)), Frame::End];
        for frames in [whole, frames(bytes)] {
            let (inflated, digest) = through(frames, u64::MAX);
            assert_eq!(inflated.unwrap_err().kind(), RuntimeErrorKind::Corrupt);
            assert!(digest.is_err());
        }
    }

    #[test]
    fn a_cut_a_lie_and_a_bomb_are_told_apart_and_never_reach_the_end() {
        let plain = vec![7_u8; 3_000_000];
        let whole = gzip(&plain);
        let truncated = &whole[..whole.len() / 2];
        let garbage = [&whole[..], b"garbage behind the last member"].concat();
        let mut flipped = whole.clone();
        *flipped.last_mut().expect("not empty") ^= 1;
        for bytes in [truncated, &garbage, &flipped] {
            let (inflated, digest) = through(frames(bytes), u64::MAX);
            assert_eq!(inflated.unwrap_err().kind(), RuntimeErrorKind::Corrupt);
            assert!(digest.is_err());
        }
        let (inflated, digest) = through(frames(&whole), 1_000_000);
        assert_eq!(inflated.unwrap_err().kind(), RuntimeErrorKind::Unacceptable);
        assert!(digest.is_err());
        let mut cut = frames(&whole);
        cut.pop();
        let (inflated, digest) = through(cut, u64::MAX);
        assert!(!inflated.expect("it was cut"));
        assert!(digest.is_err());
    }
}
