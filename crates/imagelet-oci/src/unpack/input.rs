//! The input of the unpacker: the bytes of an archive, and the files that an earlier attempt has left.

use std::{
    io::{self, BufRead, Read},
    sync::Arc,
};

use rustix::fd::OwnedFd;

pub(crate) trait LayerInput: BufRead {
    /// Consumes bytes that are now the last bytes of the layer's file `path`.
    fn consume_content(&mut self, bytes: usize, path: &[u8]);

    /// A file whose first bytes are the next bytes of the input. Called before the first byte of a file's content.
    fn reusable_file(&mut self) -> io::Result<Option<ReusableFile>>;

    /// Ends the journal: an entry has replaced the file of an earlier entry, so the journal does not match the files.
    fn invalidate_journal(&mut self);
}

/// A file of an earlier attempt. Its first `length` bytes are known.
#[derive(Clone, Debug)]
pub(crate) struct ReusableFile {
    /// The folder of the earlier attempt's files.
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) path: Vec<u8>,
    pub(crate) length: u64,
}

/// An archive without an earlier attempt.
pub(crate) struct PlainInput<'a>(pub(crate) &'a mut dyn BufRead);

impl Read for PlainInput<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl BufRead for PlainInput<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

impl LayerInput for PlainInput<'_> {
    fn consume_content(&mut self, bytes: usize, _path: &[u8]) {
        self.consume(bytes);
    }

    fn reusable_file(&mut self) -> io::Result<Option<ReusableFile>> {
        Ok(None)
    }

    fn invalidate_journal(&mut self) {}
}
