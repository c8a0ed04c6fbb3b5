//! The input of the unpacker: the bytes of an archive, and the files that an earlier attempt has left.

use std::{
    io::{self, BufRead},
    sync::Arc,
};

use rustix::fd::OwnedFd;

/// The defaults are for an archive without an earlier attempt and without a journal.
pub(crate) trait LayerInput: BufRead {
    /// Consumes bytes that are now the last bytes of the layer's file `path`.
    fn consume_content(&mut self, bytes: usize, _path: &[u8]) {
        self.consume(bytes);
    }

    /// A file whose first bytes are the next bytes of the input. Called before the first byte of a file's content.
    fn reusable_file(&mut self) -> io::Result<Option<ReusableFile>> {
        Ok(None)
    }

    /// Ends the journal: an entry has replaced the file of an earlier entry, so the journal does not match the files.
    fn invalidate_journal(&mut self) {}
}

impl LayerInput for &mut dyn BufRead {}

/// A file of an earlier attempt. Its first `length` bytes are known.
#[derive(Clone, Debug)]
pub(crate) struct ReusableFile {
    /// The folder of the earlier attempt's files.
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) path: Vec<u8>,
    pub(crate) length: u64,
}
