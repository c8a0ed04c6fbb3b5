//! Writes large files with direct I/O, which bypasses the page cache: they do not evict the pages of pods, and a `fsync`
//! of a pod does not wait for their write-back. Sparse files are written through the page cache.

use std::{
    fs::File,
    io, mem,
    os::unix::fs::FileExt as _,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{Builder, Scope},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

/// From this size on, a file is written with direct I/O if a writer is free. Its first reader reads it from the disk.
pub(crate) const DIRECT_MIN: u64 = 256 << 20;
/// The size of a write: large enough that a disk reaches its full rate with one write at a time.
const CHUNK: usize = 1 << 20;
/// The kernel requires that memory, offset and length are multiples of the disk's logical block. Few disks have a larger
/// block than this.
const ALIGNMENT: usize = 4 << 10;

struct Chunk {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Chunk {
    fn new() -> Self {
        let bytes = vec![0; CHUNK + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, length: 0 }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length]
    }

    /// Returns the bytes that did not fit.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (head, rest) = bytes.split_at(bytes.len().min(CHUNK - self.length));
        self.bytes[self.start + self.length..][..head.len()].copy_from_slice(head);
        self.length += head.len();
        rest
    }
}

/// Appends to a file on a thread of its own. The thread that fills the chunks meanwhile hashes and unpacks.
pub(super) struct DirectWriter<'a> {
    file: &'a File,
    chunk: Chunk,
    offset: u64,
    /// The second chunk, unless it is being written.
    spare: Option<Chunk>,
    full: SyncSender<(Chunk, u64)>,
    written: Receiver<io::Result<Chunk>>,
}

/// The offset at or before `offset` from which a [`DirectWriter`] can write.
pub(super) fn aligned(offset: u64) -> u64 {
    offset - offset % ALIGNMENT as u64
}

impl<'scope> DirectWriter<'scope> {
    /// The bytes go to the [`aligned`] offset `offset`. `None`: the file system has no direct I/O, or no thread started.
    pub(super) fn start(scope: &'scope Scope<'scope, '_>, file: &'scope File, offset: u64) -> Option<Self> {
        set_direct(file, true).ok()?;
        let (full, chunks) = sync_channel::<(Chunk, u64)>(1);
        let (done, written) = sync_channel(1);
        let write = move || {
            for (chunk, offset) in chunks {
                let written = write(file, chunk.filled(), offset).map(|()| chunk);
                let is_last = written.is_err();
                // Without a receiver, the layer has failed.
                if done.send(written).is_err() || is_last {
                    break;
                }
            }
        };
        if Builder::new().name("layer".into()).spawn_scoped(scope, write).is_err() {
            let _ = set_direct(file, false);
            return None;
        }
        Some(Self { file, chunk: Chunk::new(), offset, spare: Some(Chunk::new()), full, written })
    }

    /// Returns how many more bytes of all calls are in the file. After an error, all further calls fail.
    pub(super) fn append(&mut self, mut bytes: &[u8]) -> io::Result<usize> {
        let mut in_file = 0;
        while !bytes.is_empty() {
            bytes = self.chunk.fill(bytes);
            if self.chunk.length == CHUNK {
                in_file += self.wait()?;
                let empty = self.spare.take().map(|spare| Chunk { length: 0, ..spare });
                let full = mem::replace(&mut self.chunk, empty.expect("no chunk is being written"));
                self.full.send((full, self.offset)).map_err(|_| io::ErrorKind::BrokenPipe)?;
                self.offset += CHUNK as u64;
            }
        }
        Ok(in_file)
    }

    /// Writes the rest. Returns the number of bytes that [`Self::append`] has not returned.
    pub(super) fn finish(mut self) -> io::Result<usize> {
        let in_file = self.wait()?;
        // The end of a file is not aligned.
        set_direct(self.file, false)?;
        self.file.write_all_at(self.chunk.filled(), self.offset)?;
        Ok(in_file + self.chunk.length)
    }

    /// Waits for the chunk that is being written, and returns its length.
    fn wait(&mut self) -> io::Result<usize> {
        if self.spare.is_some() {
            return Ok(0);
        }
        let written = self.written.recv().map_err(|_| io::ErrorKind::BrokenPipe)??;
        Ok(self.spare.insert(written).length)
    }
}

fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    match file.write_all_at(bytes, offset) {
        // The disk has larger blocks, or the file system takes the flag and no such write.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::OPNOTSUPP)) => {
            set_direct(file, false)?;
            file.write_all_at(bytes, offset)
        }
        written => written,
    }
}

fn set_direct(file: &File, is_direct: bool) -> Result<(), Errno> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, is_direct);
    fcntl_setfl(file, flags)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn is_direct(file: &File) -> bool {
        fcntl_getfl(file).unwrap().contains(OFlags::DIRECT)
    }

    #[test]
    fn files_of_any_length_are_whole_and_each_byte_is_reported_once_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (length, piece) in [
            (0, 1),
            (ALIGNMENT - 1, 1000),
            (CHUNK - 1, 128 << 10),
            (CHUNK, 128 << 10),
            (CHUNK + 1, 4096),
            (3 * CHUNK, CHUNK + 1),
            (5 * CHUNK + 4097, 100_000),
            (4 * CHUNK + 5, 10 * CHUNK),
        ] {
            let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            let file = File::create(&path).unwrap();
            thread::scope(|scope| {
                let mut direct = DirectWriter::start(scope, &file, 0).expect("this file system has direct I/O");
                assert!(is_direct(&file));
                let mut reported = 0;
                for piece in bytes.chunks(piece) {
                    reported += direct.append(piece).unwrap();
                    assert!(file.metadata().unwrap().len() >= reported as u64, "{length}");
                }
                reported += direct.finish().unwrap();
                assert_eq!(reported, length);
            });
            assert!(!is_direct(&file));
            assert!(std::fs::read(&path).unwrap() == bytes, "{length}");
        }
    }

    #[test]
    fn a_file_is_continued_at_an_aligned_offset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 10_000]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let from = aligned(9_999);
        assert_eq!((from, aligned(4096), aligned(4095)), (8192, 4096, 0));
        thread::scope(|scope| {
            let mut direct = DirectWriter::start(scope, &file, from).unwrap();
            direct.append(&vec![2; 2 * CHUNK]).unwrap();
            direct.finish().unwrap();
        });
        let expected = [vec![1; 8192], vec![2; 2 * CHUNK]].concat();
        assert!(std::fs::read(&path).unwrap() == expected);
    }

    #[test]
    fn a_disk_with_larger_blocks_gets_the_bytes_through_the_page_cache() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * CHUNK).collect();
        thread::scope(|scope| {
            // No disk has blocks so small that this offset is aligned.
            let mut direct = DirectWriter::start(scope, &file, 1).unwrap();
            let reported = direct.append(&bytes).unwrap();
            assert_eq!(reported + direct.finish().unwrap(), bytes.len());
        });
        let mut found = vec![0; bytes.len()];
        file.read_exact_at(&mut found, 1).unwrap();
        assert!(found == bytes);
    }

    #[test]
    fn a_failed_write_is_reported_and_a_file_without_direct_io_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"").unwrap();
        // It cannot be written.
        let file = File::open(&path).unwrap();
        thread::scope(|scope| {
            let mut direct = DirectWriter::start(scope, &file, 0).unwrap();
            let errors = [(); 3].map(|()| direct.append(&vec![1; CHUNK]).err());
            let errno = errors[1].as_ref().and_then(Errno::from_io_error);
            assert!(errors[0].is_none() && errno == Some(Errno::BADF) && errors[2].is_some(), "{errors:?}");
            direct.finish().unwrap_err();
        });
        let proc = File::open("/proc/self/status").unwrap();
        thread::scope(|scope| assert!(DirectWriter::start(scope, &proc, 0).is_none()));
    }
}
