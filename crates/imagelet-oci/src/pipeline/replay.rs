//! Makes the first bytes of an archive again, from the journal and the files of an earlier attempt.

use std::{
    fs::File,
    io::{self, Read as _},
    sync::Arc,
};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{
    buffer_pool::{BLOCK_SIZE, BlockWriter, Expansion},
    gzip::WINDOW,
};
use crate::{
    store::{Packing, Record, ResumedLayer},
    unpack::KeptFile,
};

/// Bytes after a checkpoint of a gzip stream that are enough to tell its bit.
const KNOWN: usize = 4 << 10;

/// The plain bytes around a checkpoint: those that the stream may refer to, and the first ones after it.
#[derive(Default)]
pub(super) struct Seam {
    pub(super) window: Vec<u8>,
    pub(super) known: Vec<u8>,
}

struct Replaying<'a> {
    resumed: &'a mut ResumedLayer,
    blocks: &'a mut BlockWriter,
    expansion: &'a mut Expansion,
    position: u64,
    /// The file whose bytes are next.
    open: Option<(Vec<u8>, File)>,
    seam: Seam,
}

/// Passes all bytes before the checkpoint. `None`: the reader was dropped.
pub(super) fn replay(
    resumed: &mut ResumedLayer,
    blocks: &mut BlockWriter,
    expansion: &mut Expansion,
) -> io::Result<Option<Seam>> {
    let end = resumed.checkpoint.plain;
    let known = if resumed.checkpoint.packing == Packing::Gzip { KNOWN } else { 0 };
    let mut replaying = Replaying { resumed, blocks, expansion, position: 0, open: None, seam: Seam::default() };
    while replaying.position < end || replaying.seam.known.len() < known {
        let Some(records) = replaying.resumed.replay.next()? else { break };
        for record in records {
            if !replaying.record(record)? {
                return Ok(None);
            }
        }
    }
    let Replaying { blocks, position, mut seam, .. } = replaying;
    if position < end {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    seam.window.drain(..seam.window.len().saturating_sub(WINDOW));
    seam.known.truncate(KNOWN);
    Ok(blocks.flush().then_some(seam))
}

impl Replaying<'_> {
    fn record(&mut self, record: Record) -> io::Result<bool> {
        match record {
            Record::Bytes(bytes) => self.pass(&bytes, None),
            Record::Content { path, length } => self.content(path, length),
        }
    }

    fn content(&mut self, path: Vec<u8>, length: u64) -> io::Result<bool> {
        let (mut file, mut kept) = match self.open.take() {
            Some((same, file)) if same == path => (file, None),
            _ => {
                let file = self.open(&path)?;
                let left = self.resumed.checkpoint.plain.saturating_sub(self.position);
                let length = file.metadata()?.len().min(left);
                let root = Arc::clone(&self.resumed.kept);
                (file, Some(KeptFile { root, path: path.clone(), length }))
            }
        };
        let (mut buffer, mut left) = (vec![0; BLOCK_SIZE], length);
        while left > 0 {
            let piece = &mut buffer[..usize::try_from(left).unwrap_or(BLOCK_SIZE).min(BLOCK_SIZE)];
            file.read_exact(piece)?;
            if !self.pass(piece, kept.take())? {
                return Ok(false);
            }
            left -= piece.len() as u64;
        }
        self.open = Some((path, file));
        Ok(true)
    }

    fn open(&self, path: &[u8]) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(rustix::fs::openat2(&self.resumed.kept, path, flags, Mode::empty(), how)?.into())
    }

    fn pass(&mut self, bytes: &[u8], kept: Option<KeptFile>) -> io::Result<bool> {
        let end = self.resumed.checkpoint.plain;
        let before = usize::try_from(end - self.position.min(end)).unwrap_or(usize::MAX).min(bytes.len());
        let (before, after) = bytes.split_at(before);
        self.position += before.len() as u64;
        if self.seam.known.len() < KNOWN {
            self.seam.known.extend_from_slice(after);
        }
        if before.is_empty() {
            return Ok(true);
        }
        if end - self.position < WINDOW as u64 {
            self.seam.window.extend_from_slice(before);
        }
        self.blocks.replay(before, kept, self.expansion)
    }
}
