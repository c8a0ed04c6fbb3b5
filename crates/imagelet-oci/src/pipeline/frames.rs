//! Compressed frames between socket and inflater, read as one stream.

use std::io::{self, BufRead, Read};

use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};

use super::buffer_pool::read_buffered;
use crate::{admission::WrittenBytes, registry::ReaderWait};

#[derive(Debug)]
pub(crate) enum Frame {
    Bytes(Bytes),
    /// The blob is complete and verified. If the queue closes without this mark, the stream was cut.
    End,
}

pub(crate) struct FrameReader {
    frames: mpsc::Receiver<Frame>,
    reader_wait: ReaderWait,
    read_bytes: WrittenBytes,
    current: Bytes,
    ended: bool,
    pub(crate) cut: bool,
}

impl FrameReader {
    pub(crate) fn new(frames: mpsc::Receiver<Frame>, reader_wait: ReaderWait, read_bytes: WrittenBytes) -> Self {
        Self { frames, reader_wait, read_bytes, current: Bytes::new(), ended: false, cut: false }
    }

    /// Returns at least `length` of the next bytes without consuming them; fewer only at the end.
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
            let started = Instant::now();
            let frame = self.frames.blocking_recv();
            self.reader_wait.add(started.elapsed());
            match frame {
                Some(Frame::Bytes(bytes)) => self.current = bytes,
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
        self.read_bytes.read(amount as u64);
        let _ = self.current.split_to(amount);
    }
}

impl Read for FrameReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, out)
    }
}
