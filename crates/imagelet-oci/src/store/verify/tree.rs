//! Compares a layer's tree with its file manifest.

use std::{
    fs::File,
    io,
    os::{fd::BorrowedFd, unix::fs::FileExt as _},
    path::Path,
};

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat},
    io::Errno,
};
use twox_hash::xxhash3_128::Hasher;

use super::{
    BUFFER, FileManifestReader, LayerCheck, Watch,
    compare::{compare, size},
    ends_check, forget_cached,
};
use crate::{
    layer_folders::open_folder,
    store::files::walk::walk,
    unpack::{FileEntry, FileEntryKind, Sum, xattrs_at, xattrs_of},
};

const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

pub(super) fn check(
    root: &Path,
    list: &mut FileManifestReader,
    watch: &Watch,
    check: &mut LayerCheck,
) -> io::Result<()> {
    let root = match open_folder(root) {
        Ok(root) => root,
        Err(errno) => {
            check.findings.unreadable("fs", &errno.into());
            return Ok(());
        }
    };
    let mut run = TreeCheck { list, watch, check, buffer: vec![0; BUFFER] };
    if let (Some(listed), Ok(stat)) = (run.see(&[]), rustix::fs::fstat(&root)) {
        let found = xattrs_of(&root).map(|xattrs| FileEntry::of(&stat, FileEntryKind::Directory, xattrs));
        run.judge(&[], &listed, found.map_err(io::Error::from))?;
    }
    walk(root, |path, found| match found {
        Ok((directory, name)) => run.entry(directory, name, path),
        Err(error) => run.report_unreadable(path, error).map(|()| false),
    })?;
    match run.list.unseen() {
        Ok(paths) => paths.iter().for_each(|path| run.report(path, "missing", "it is missing".into())),
        Err(error) => run.check.findings.unreadable(super::LIST, &error),
    }
    Ok(())
}

struct TreeCheck<'a> {
    list: &'a mut FileManifestReader,
    watch: &'a Watch,
    check: &'a mut LayerCheck,
    buffer: Vec<u8>,
}

impl TreeCheck<'_> {
    fn entry(&mut self, parent: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> io::Result<bool> {
        (self.watch)(0)?;
        self.check.files += 1;
        let listed = self.see(path);
        let stat = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(errno) => {
                self.report_unreadable(path, errno)?;
                return Ok(false);
            }
        };
        let Some(listed) = listed else {
            self.report(path, "extra", "the layer has no such path".into());
            return Ok(false);
        };
        let found = self.found((parent, name), &stat, &listed);
        self.judge(path, &listed, found)?;
        Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    fn see(&mut self, path: &[u8]) -> Option<FileEntry> {
        self.list.see(path).unwrap_or_else(|error| {
            self.check.findings.unreadable(super::LIST, &error);
            None
        })
    }

    fn judge(&mut self, path: &[u8], listed: &FileEntry, found: io::Result<FileEntry>) -> io::Result<()> {
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.report_unreadable(path, error),
        };
        for (word, text) in compare(listed, &found) {
            self.report(path, word, text);
        }
        Ok(())
    }

    fn found(
        &mut self,
        (parent, name): (BorrowedFd<'_>, &[u8]),
        stat: &Stat,
        listed: &FileEntry,
    ) -> io::Result<FileEntry> {
        let length = stat.st_size.cast_unsigned();
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            // A different length is damage, so the content is not read.
            FileType::RegularFile if size(&listed.kind) != Some(length) => {
                FileEntryKind::File { size: length, content: 0 }
            }
            FileType::RegularFile => match rustix::fs::openat(parent, name, FILE, Mode::empty()) {
                Ok(file) => {
                    let file = File::from(file);
                    let kind = self.regular(&file, length, listed)?;
                    return Ok(FileEntry::of(stat, kind, xattrs_of(&file)?));
                }
                // Without root privileges, a file whose mode forbids its owner to read it is skipped.
                Err(Errno::ACCESS) if stat.st_mode & 0o400 == 0 => {
                    self.check.unread += 1;
                    listed.kind.clone()
                }
                Err(errno) => return Err(errno.into()),
            },
            FileType::Symlink => FileEntryKind::Symlink(rustix::fs::readlinkat(parent, name, Vec::new())?.into_bytes()),
            _ => FileEntryKind::of_special(stat),
        };
        Ok(FileEntry::of(stat, kind, xattrs_at(parent, name)?))
    }

    fn regular(&mut self, file: &File, length: u64, listed: &FileEntry) -> io::Result<FileEntryKind> {
        forget_cached(file);
        let kind = match &listed.kind {
            FileEntryKind::Sparse { ranges, .. } => self.sparse(file, length, ranges)?,
            _ => FileEntryKind::File { size: length, content: self.content(file, &[(0, length)])? },
        };
        forget_cached(file);
        Ok(kind)
    }

    fn content(&mut self, file: &File, ranges: &[(u64, u64)]) -> io::Result<Sum> {
        let mut hasher = Hasher::new();
        for &(offset, length) in ranges {
            self.each_piece(file, offset, offset + length, |piece| {
                hasher.write(piece);
                true
            })?;
        }
        Ok(hasher.finish_128())
    }

    /// Reads the data ranges, and the other allocated blocks, which must be zeros. Holes are not read.
    fn sparse(&mut self, file: &File, length: u64, ranges: &[(u64, u64)]) -> io::Result<FileEntryKind> {
        let content = self.content(file, ranges)?;
        let mut clean = true;
        let mut before = 0;
        for &(offset, length) in ranges.iter().chain([&(length, 0)]) {
            clean = clean && self.is_zero(file, before, offset)?;
            before = offset + length;
        }
        let ranges = if clean { ranges.to_vec() } else { vec![(0, length)] };
        Ok(FileEntryKind::Sparse { size: length, content, ranges })
    }

    fn is_zero(&mut self, file: &File, mut at: u64, end: u64) -> io::Result<bool> {
        while at < end {
            let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => return Ok(true),
                // On a file system without holes, which rejects the call, the whole file is allocated.
                Err(Errno::INVAL | Errno::NOTSUP) => at,
                Err(errno) => return Err(errno.into()),
            };
            let stop = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
                Ok(stop) => stop.min(end),
                Err(Errno::INVAL | Errno::NOTSUP) => end,
                Err(errno) => return Err(errno.into()),
            };
            let zero = |piece: &[u8]| piece.iter().all(|byte| *byte == 0);
            if start < stop && !self.each_piece(file, start, stop, zero)? {
                return Ok(false);
            }
            at = stop.max(start + 1);
        }
        Ok(true)
    }

    fn each_piece(
        &mut self,
        file: &File,
        mut at: u64,
        end: u64,
        mut fine: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<bool> {
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(self.buffer.len());
            let read = file.read_at(&mut self.buffer[..wanted], at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.check.bytes += read as u64;
            (self.watch)(read as u64)?;
            if !fine(&self.buffer[..read]) {
                return Ok(false);
            }
            at += read as u64;
        }
        Ok(true)
    }

    fn report_unreadable(&mut self, path: &[u8], error: impl Into<io::Error>) -> io::Result<()> {
        let error = error.into();
        if ends_check(&error) {
            return Err(error);
        }
        self.report(path, "unreadable", format!("it cannot be read: {error}"));
        Ok(())
    }

    fn report(&mut self, path: &[u8], word: &str, text: String) {
        let shown = if path.is_empty() { "fs".to_owned() } else { format!("fs/{}", percent_encode(path, ESCAPED)) };
        self.check.findings.add(shown, word, text);
    }
}
