//! Compressed frames between socket and inflater, read as one stream.

use std::io::{self, BufRead, Read};

use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};

use crate::{admission::WrittenBytes, registry::ReaderWait, store::BlobWriter};

#[derive(Debug)]
pub(crate) enum Frame {
    Bytes(Bytes),
    /// The blob is complete and verified; a queue that closes without this mark was cut.
    End,
}

#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) frames: mpsc::Receiver<Frame>,
    pub(crate) reader_wait: ReaderWait,
    /// A copy of the compressed bytes is written here.
    pub(crate) keep: Option<BlobWriter>,
    /// Counts those bytes.
    pub(crate) written_bytes: WrittenBytes,
}

impl Intake {
    fn next(&mut self) -> Option<Frame> {
        if let Ok(frame) = self.frames.try_recv() {
            return Some(frame);
        }
        let asked = Instant::now();
        let frame = self.frames.blocking_recv();
        self.reader_wait.add(asked.elapsed());
        frame
    }
}

pub(crate) struct FrameReader {
    pub(crate) intake: Intake,
    current: Bytes,
    pub(crate) ended: bool,
    pub(crate) cut: bool,
    /// Why the copy could not be written.
    pub(crate) unwritten: Option<io::Error>,
}

impl FrameReader {
    pub(crate) fn new(intake: Intake) -> Self {
        Self { intake, current: Bytes::new(), ended: false, cut: false, unwritten: None }
    }

    /// The next bytes without consuming them, at least `length` unless fewer are left.
    pub(crate) fn peek(&mut self, length: usize) -> io::Result<&[u8]> {
        self.fill_buf()?;
        while self.current.len() < length && !self.ended {
            let head = std::mem::take(&mut self.current);
            let tail = self.fill_buf()?;
            self.current = [&head[..], tail].concat().into();
        }
        Ok(&self.current)
    }
}

impl BufRead for FrameReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty() && !self.ended {
            match self.intake.next() {
                Some(Frame::Bytes(bytes)) => {
                    if let Some(Err(error)) = self.intake.keep.as_mut().map(|keep| keep.write(&bytes)) {
                        let told = error.kind().into();
                        self.unwritten = Some(error);
                        return Err(told);
                    }
                    if self.intake.keep.is_some() {
                        self.intake.written_bytes.add(bytes.len() as u64);
                    }
                    self.current = bytes;
                }
                Some(Frame::End) => self.ended = true,
                None => {
                    self.cut = true;
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the download was cut"));
                }
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, amount: usize) {
        // `split_to` frees the frame with its last byte.
        let _ = self.current.split_to(amount);
    }
}

impl Read for FrameReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let length = available.len().min(out.len());
        out[..length].copy_from_slice(&available[..length]);
        self.consume(length);
        Ok(length)
    }
}
