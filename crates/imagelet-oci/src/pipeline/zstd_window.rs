//! Zstandard frames in sequence, with windows from the memory that all layers share.
//!
//! A frame may require a window of up to 128 MiB, and many layers are unpacked in parallel. The memory of a window is
//! claimed as the frame fills it, because untouched pages use no memory. So a header that only declares a large window
//! costs nothing, and a small layer may require any window. A window of up to 8 MiB is claimed as a whole once it needs
//! shared memory, so that its layer need not start again. Every decoder must support 8 MiB (RFC 8878), and only
//! `--ultra` and `--long` exceed it.

use imagelet_core::image::ByteSize;
use std::{
    io::{self, BufRead, Read},
    sync::{Arc, atomic::AtomicBool},
};

use zstd::{
    stream::raw::{Decoder, InBuffer, Operation as _, OutBuffer},
    zstd_safe::{DParameter, get_frame_content_size},
};

use super::{buffer_pool::ResumableStream, frames::FrameReader};
use crate::unpack::{LayerMemory, MemoryError, MemoryReservation};

/// A power of two: 128 MiB, the largest window that zstd writes without `--long=28`.
const WINDOW_LOG_MAX: u32 = 27;
/// Windows up to this size are claimed as a whole once the filled part exceeds the layer's own memory.
const WINDOW_SMALL_MAX: u64 = 8 << 20;
/// Memory of a decoder without its window: tables, an input and an output block.
const DECODER_COST: u64 = 512 << 10;
const HEAD_LENGTH_MAX: usize = 4 + 1 + 1 + 4 + 8;

/// The content of the frames, without skippable frames. Any other bytes between or after frames are an error.
pub(crate) struct ZstdReader<'a> {
    source: &'a mut FrameReader,
    // Declared before `claim`, so that the decoder's memory is freed before its claim is released.
    decoder: Decoder<'static>,
    claim: MemoryReservation,
    window: u64,
    filled: u64,
    cancelled: &'a AtomicBool,
    between_frames: bool,
    /// Bytes missing from the frame's declared size. libzstd checks this size only for some input patterns, but the
    /// result must not depend on how the bytes arrive.
    owed: Option<u64>,
    /// Whether the last output buffer was full, so that there may be more output without further input.
    has_more: bool,
}

impl<'a> ZstdReader<'a> {
    pub(crate) fn new(
        source: &'a mut FrameReader,
        memory: &Arc<LayerMemory>,
        cancelled: &'a AtomicBool,
    ) -> io::Result<Self> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))?;
        let claim = MemoryReservation::on(memory);
        Ok(Self {
            source,
            decoder,
            claim,
            window: 0,
            filled: 0,
            cancelled,
            between_frames: true,
            owed: None,
            has_more: false,
        })
    }

    /// Checks the next frame's header before the decoder reads it.
    fn begin_frame(&mut self) -> io::Result<bool> {
        let head = self.source.peek(HEAD_LENGTH_MAX)?;
        if head.is_empty() {
            return Ok(false);
        }
        let (window, owed) = (window(head), get_frame_content_size(head).ok().flatten());
        if window > 1 << WINDOW_LOG_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!(
                    "a zstd frame asks for a window of {}; the limit is {}",
                    ByteSize(window),
                    ByteSize(1 << WINDOW_LOG_MAX)
                ),
            ));
        }
        // A window larger than the content is not needed.
        (self.window, self.filled) = (owed.map_or(window, |owed| window.min(owed)), 0);
        self.decoder.reinit()?;
        self.owed = owed;
        Ok(true)
    }
}

impl ResumableStream for ZstdReader<'_> {}

impl Read for ZstdReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.between_frames {
                if !self.begin_frame()? {
                    return Ok(0);
                }
                self.between_frames = false;
            }
            let filled = self.window.min(self.filled + out.len() as u64);
            let is_whole = self.window <= WINDOW_SMALL_MAX && !self.claim.is_own(filled + DECODER_COST);
            let next = if is_whole { self.window } else { filled } + DECODER_COST;
            self.claim.grow_to(next, self.cancelled).map_err(|error| refused(self.window, error))?;
            let input: &[u8] = if self.has_more { &[] } else { self.source.fill_buf()? };
            let is_end = input.is_empty() && !self.has_more;
            let mut input = InBuffer::around(input);
            let mut output = OutBuffer::around(&mut *out);
            let hint = self.decoder.run(&mut input, &mut output)?;
            let (read, written) = (input.pos(), output.pos());
            self.source.consume(read);
            self.has_more = written == out.len() && hint != 0;
            self.between_frames = hint == 0;
            self.filled += written as u64;
            if let Some(owed) = self.owed {
                let left = owed.checked_sub(written as u64).filter(|left| *left == 0 || hint != 0);
                self.owed = Some(left.ok_or_else(|| {
                    io::Error::new(io::ErrorKind::InvalidData, "a zstd frame is not of the size it states")
                })?);
            }
            if written > 0 {
                return Ok(written);
            }
            if is_end && !self.between_frames {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a zstd frame is not complete"));
            }
        }
    }
}

fn refused(window: u64, error: MemoryError) -> io::Error {
    let kind = match error {
        MemoryError::Limit(_) => io::ErrorKind::FileTooLarge,
        MemoryError::Busy => io::ErrorKind::ResourceBusy,
        MemoryError::Cancelled => io::ErrorKind::ConnectionAborted,
    };
    io::Error::new(kind, format!("a zstd frame fills a window of {}: {error}", ByteSize(window)))
}

pub(crate) fn is_zstd(head: &[u8]) -> bool {
    head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || is_skippable(head)
}

fn is_skippable(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// The window that a frame's header requires; 0 if the decoder will report an error.
fn window(head: &[u8]) -> u64 {
    let (Some(&descriptor), false) = (head.get(4), is_skippable(head)) else { return 0 };
    if descriptor & 0x20 == 0 {
        let Some(&byte) = head.get(5) else { return 0 };
        let base = 1_u64 << (10 + (byte >> 3));
        return base + base / 8 * u64::from(byte & 7);
    }
    // A single segment: the window is as large as the content.
    let at = 5 + [0, 1, 2, 4][usize::from(descriptor & 3)];
    let number = |length: usize| {
        let bytes = head.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    match descriptor >> 6 {
        0 => number(1),
        1 => number(2).map(|number| number + 256),
        2 => number(4),
        _ => number(8),
    }
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_frame_is_read_from_its_head() {
        let magic = [0x28, 0xb5, 0x2f, 0xfd];
        for (rest, bytes) in [
            (&[0x00, 0x00][..], 1 << 10),
            (&[0x00, 0x88], 1 << 27),
            (&[0x00, 0x89], (1 << 27) + (1 << 24)),
            (&[0x00, 0xf8], 1 << 41),
            (&[0x20, 7], 7),
            (&[0x60, 1, 0], 257),
            (&[0xa0, 0, 0, 0, 1], 1 << 24),
            (&[0xa1, 9, 0, 0, 0, 1], 1 << 24),
            (&[0xe3, 9, 9, 9, 9, 0, 0, 0, 0, 0, 1, 0, 0], 1 << 40),
            (&[0xe0, 0, 0], 0),
            (&[0x00], 0),
            (&[], 0),
        ] {
            assert_eq!(window(&[&magic[..], rest].concat()), bytes, "{rest:x?}");
        }
        assert_eq!(window(&[0x53, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff]), 0);
    }
}
