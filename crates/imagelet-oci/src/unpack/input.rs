//! The input of the unpacker: the bytes of an archive, and what an earlier attempt has left of its files.

use std::{
    io::{self, BufRead, Read},
    sync::Arc,
};

use rustix::fd::OwnedFd;

/// The bytes of an archive, as the unpacker uses them.
pub(crate) trait LayerInput: BufRead {
    /// Consumes bytes that the file `path` of the layer now has at its end.
    fn consume_content(&mut self, bytes: usize, path: &[u8]);

    /// A file whose first bytes are the next bytes of the input. Asked before the first byte of a file's content.
    fn kept_file(&mut self) -> io::Result<Option<KeptFile>>;

    /// A path that was written is replaced.
    fn replaced(&mut self);
}

/// A file of an earlier attempt, and how many of its bytes are known.
#[derive(Clone, Debug)]
pub(crate) struct KeptFile {
    /// The folder of the earlier attempt's files.
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) path: Vec<u8>,
    pub(crate) length: u64,
}

/// The bytes alone.
pub(crate) struct BytesOnly<'a>(pub(crate) &'a mut dyn BufRead);

impl Read for BytesOnly<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl BufRead for BytesOnly<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

impl LayerInput for BytesOnly<'_> {
    fn consume_content(&mut self, bytes: usize, _path: &[u8]) {
        self.consume(bytes);
    }

    fn kept_file(&mut self) -> io::Result<Option<KeptFile>> {
        Ok(None)
    }

    fn replaced(&mut self) {}
}
