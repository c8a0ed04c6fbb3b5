//! The input of the unpacker: the bytes of an archive, and the files that an earlier attempt has left.

use std::{
    io::{self, BufRead},
    sync::Arc,
};

use rustix::fd::OwnedFd;

/// The default methods are for an archive that has neither an earlier attempt nor a journal.
pub(crate) trait LayerInput: BufRead {
    /// Consumes bytes that the unpacker has just appended to the layer's file `path`.
    fn consume_content(&mut self, bytes: usize, _path: &[u8]) {
        self.consume(bytes);
    }

    /// A file whose first bytes are the next bytes of the input. Called before a file's content is read.
    fn reusable_file(&mut self) -> io::Result<Option<ReusableFile>> {
        Ok(None)
    }

    /// Ends the journal: an entry has replaced the file of an earlier entry, so the journal does not match the files.
    fn invalidate_journal(&mut self) {}
}

impl LayerInput for &mut dyn BufRead {}

/// A file of an earlier attempt. Its first `length` bytes are those of the archive.
#[derive(Clone, Debug)]
pub(crate) struct ReusableFile {
    /// The folder of the earlier attempt's files.
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) path: Vec<u8>,
    pub(crate) length: u64,
}
