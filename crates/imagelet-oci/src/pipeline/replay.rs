//! Reproduces the first bytes of an archive from the journal and the files of an earlier attempt.

use std::{
    fs::File,
    io::{self, Read as _},
    sync::Arc,
};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};

use super::{
    buffer_pool::{BLOCK_SIZE, BlockWriter, Expansion},
    gzip::WINDOW,
};
use crate::{
    store::{Checkpoint, JournalRecord, ResumedLayer, StreamFormat},
    unpack::ReusableFile,
};

/// Bytes after a checkpoint of a gzip stream that are enough to find its bit.
const KNOWN_BYTES: usize = 4 << 10;

/// The inflated bytes around a checkpoint: the bytes that the stream may refer to, and the first bytes after it.
#[derive(Default)]
pub(super) struct CheckpointBytes {
    pub(super) before: Vec<u8>,
    pub(super) after: Vec<u8>,
}

struct ReplayState<'a> {
    resumed: &'a mut ResumedLayer,
    blocks: &'a mut BlockWriter,
    expansion: &'a mut Expansion,
    position: u64,
    open: Option<(Vec<u8>, File)>,
    buffer: Vec<u8>,
    around: CheckpointBytes,
}

/// Queues all bytes before the checkpoint. Returns the bytes around it, or `None` if the reader was dropped.
pub(super) fn replay(
    resumed: &mut ResumedLayer,
    blocks: &mut BlockWriter,
    expansion: &mut Expansion,
) -> io::Result<Option<CheckpointBytes>> {
    let end = resumed.checkpoint.plain;
    let (around, buffer) = (CheckpointBytes::default(), Vec::new());
    let mut state = ReplayState { resumed, blocks, expansion, position: 0, open: None, buffer, around };
    while !state.is_over() {
        let Some(records) = state.resumed.journal.next()? else { break };
        for record in records {
            let is_read = match record {
                JournalRecord::Bytes(bytes) => state.pass(&bytes, None)?,
                JournalRecord::Content { path, length } => state.content(path, length)?,
            };
            if !is_read {
                return Ok(None);
            }
        }
    }
    let ReplayState { blocks, position, mut around, .. } = state;
    if position < end {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    around.before.drain(..around.before.len().saturating_sub(WINDOW));
    around.after.truncate(KNOWN_BYTES);
    Ok(blocks.flush().then_some(around))
}

impl ReplayState<'_> {
    fn is_over(&self) -> bool {
        let Checkpoint { plain, format, .. } = self.resumed.checkpoint;
        let is_known = format == StreamFormat::Plain || self.around.after.len() >= KNOWN_BYTES;
        self.position >= plain && is_known
    }

    fn content(&mut self, path: Vec<u8>, length: u64) -> io::Result<bool> {
        let (mut file, mut reusable) = match self.open.take() {
            Some((same, file)) if same == path => (file, None),
            _ => {
                let file = self.open(&path)?;
                let left = self.resumed.checkpoint.plain.saturating_sub(self.position);
                let length = file.metadata()?.len().min(left);
                let root = Arc::clone(&self.resumed.previous);
                (file, Some(ReusableFile { root, path: path.clone(), length }))
            }
        };
        let (mut buffer, mut left) = (std::mem::take(&mut self.buffer), length);
        buffer.resize(BLOCK_SIZE, 0);
        while left > 0 && !self.is_over() {
            let piece = &mut buffer[..usize::try_from(left).unwrap_or(BLOCK_SIZE).min(BLOCK_SIZE)];
            file.read_exact(piece)?;
            if !self.pass(piece, reusable.take())? {
                return Ok(false);
            }
            left -= piece.len() as u64;
        }
        self.buffer = buffer;
        self.open = Some((path, file));
        Ok(true)
    }

    fn open(&self, path: &[u8]) -> io::Result<File> {
        // A device that replaced a file at the last moment must not be opened.
        let stat = rustix::fs::statat(&self.resumed.previous, path, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(rustix::fs::openat2(&self.resumed.previous, path, flags, Mode::empty(), how)?.into())
    }

    fn pass(&mut self, bytes: &[u8], reusable: Option<ReusableFile>) -> io::Result<bool> {
        let end = self.resumed.checkpoint.plain;
        let before = usize::try_from(end - self.position.min(end)).unwrap_or(usize::MAX).min(bytes.len());
        let (before, after) = bytes.split_at(before);
        self.position += before.len() as u64;
        if self.around.after.len() < KNOWN_BYTES {
            self.around.after.extend_from_slice(after);
        }
        if before.is_empty() {
            return Ok(true);
        }
        if end - self.position < WINDOW as u64 {
            self.around.before.extend_from_slice(before);
        }
        self.blocks.pass_replayed(before, reusable, self.expansion)
    }
}
