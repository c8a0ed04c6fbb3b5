//! Zstandard frames one after the other, with the memory of large windows lent out one at a time.
//!
//! A frame may ask for a window of up to 128 MiB, and layers are unpacked side by side, images too. Windows up to
//! 8 MiB, which every decoder has to offer (RFC 8878) and which all but `--ultra` and `--long` stay within, are free.
//! A larger one is held by one layer of the engine at a time; the others wait for it before they decode on.

use std::{
    io::{self, BufRead, Read},
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use zstd::{
    stream::raw::{Decoder, InBuffer, Operation as _, OutBuffer},
    zstd_safe::{DParameter, get_frame_content_size},
};

use super::inflate::FrameReader;

/// The largest window that is taken, as a power of two: 128 MiB, the most zstd itself writes without `--long=28`.
const WINDOW_LOG_MAX: u32 = 27;
/// Windows up to this size are not counted.
const WINDOW_FREE_MAX: u64 = 8 << 20;
/// Longest head of a frame: magic, descriptor, window, dictionary, size.
const HEAD_LENGTH_MAX: usize = 4 + 1 + 1 + 4 + 8;
/// How soon a layer that waits for a window sees that nobody waits for the layer.
const CANCEL_POLL: Duration = Duration::from_millis(50);

/// The one large window of an engine.
#[derive(Debug, Default)]
pub(crate) struct LargeWindow {
    taken: Mutex<bool>,
    returned: Condvar,
}

/// The large window while a layer has it.
struct Held<'a>(&'a LargeWindow);

impl LargeWindow {
    /// Waits for the window.
    fn take(&self, cancelled: &AtomicBool) -> io::Result<Held<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            if cancelled.load(Ordering::Relaxed) {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the download was given up"));
            }
            taken = self.returned.wait_timeout(taken, CANCEL_POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = true;
        Ok(Held(self))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.returned.notify_one();
    }
}

/// What frames hold, skippable ones left out. Fails on whatever stands between or behind them.
pub(super) struct ZstdReader<'a> {
    source: &'a mut FrameReader,
    // Before `held`: the memory goes before the right to it.
    decoder: Decoder<'static>,
    held: Option<Held<'a>>,
    large: &'a LargeWindow,
    cancelled: &'a AtomicBool,
    between_frames: bool,
    /// What the frame still owes of the size it states. The library looks at that in some ways of feeding it and not in
    /// others, and how a layer arrives must not decide whether it is taken.
    owed: Option<u64>,
    /// The last output was full, so that more may wait in the window without any input.
    has_more: bool,
}

impl<'a> ZstdReader<'a> {
    pub(super) fn new(
        source: &'a mut FrameReader,
        large: &'a LargeWindow,
        cancelled: &'a AtomicBool,
    ) -> io::Result<Self> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))?;
        Ok(Self { source, decoder, held: None, large, cancelled, between_frames: true, owed: None, has_more: false })
    }

    /// Looks at the head of the next frame before the decoder does. `false`: there is none.
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
                    "a zstd frame asks for a window of {window} bytes; more than {} are refused",
                    1 << WINDOW_LOG_MAX
                ),
            ));
        }
        if window > WINDOW_FREE_MAX && self.held.is_none() {
            self.held = Some(self.large.take(self.cancelled)?);
        }
        self.decoder.reinit()?;
        self.owed = owed;
        Ok(true)
    }
}

impl Read for ZstdReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.between_frames {
                if !self.begin_frame()? {
                    return Ok(0);
                }
                self.between_frames = false;
            }
            let input: &[u8] = if self.has_more { &[] } else { self.source.fill_buf()? };
            let is_end = input.is_empty() && !self.has_more;
            let mut input = InBuffer::around(input);
            let mut output = OutBuffer::around(&mut *out);
            let hint = self.decoder.run(&mut input, &mut output)?;
            let (read, written) = (input.pos(), output.pos());
            self.source.consume(read);
            self.has_more = written == out.len() && hint != 0;
            self.between_frames = hint == 0;
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

/// Whether these are the first bytes of a frame, or of one that is skipped.
pub(super) fn is_zstd(head: &[u8]) -> bool {
    head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || is_skippable(head)
}

fn is_skippable(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// The window the frame with this head asks for; 0 where the decoder will say what is wrong with it.
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

    #[test]
    fn the_large_window_is_one_layers_at_a_time() {
        let (window, never) = (LargeWindow::default(), AtomicBool::new(false));
        let (running, most) = (std::sync::atomic::AtomicUsize::new(0), std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _held = window.take(&never).expect("nobody gives up");
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
    }

    #[test]
    fn who_waits_for_the_window_can_be_given_up() {
        let (window, given_up) = (LargeWindow::default(), AtomicBool::new(true));
        let _held = window.take(&AtomicBool::new(false)).expect("it is free");
        assert!(window.take(&given_up).is_err());
    }
}
