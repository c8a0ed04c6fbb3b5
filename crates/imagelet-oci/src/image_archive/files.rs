//! The files of an archive by name, each a span of a tar file or a file of a folder.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, BufReader, Read as _, Seek as _, SeekFrom},
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::ByteSize,
    lock::locked,
};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::{
    manifest::{corrupt, printable, unacceptable},
    store::storage_error,
    unpack::{LayerMemory, TarKind, read_head},
};

/// Maximum files of an archive. An image has at most a few thousand files in any format.
const ENTRIES_MAX: usize = 100_000;
/// Maximum bytes of all names together, and of each name.
const NAMES_BYTES_MAX: usize = 8 << 20;
const NAME_BYTES_MAX: usize = 1024;
const LINKS_MAX: usize = 8;
const BLOCK: u64 = 512;
/// Maximum bytes that failing images may read, as a multiple of the archive's bytes. A good archive needs fewer.
const FAILED_READS_MAX: u64 = 8;
const PLAIN: &str = "an archive is a plain tar file, or one packed by gzip or zstd: unpack any other first";
const READ_AHEAD: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct ArchiveFiles {
    pub(super) place: String,
    pub(super) source: FileSource,
    opened: Mutex<OpenedFiles>,
}

#[derive(Debug, Default)]
struct OpenedFiles {
    files: HashSet<FileId>,
    /// The bytes of all opened files: each file once, and (`in_all`) once for each opening.
    distinct: u64,
    in_all: u64,
}

/// Identifies a file under all its names: its span in the tar file, or its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId(u64, u64);

/// A file of an archive. `file` is open at the first byte of the content, which is inside the archive for a tar file.
pub(super) struct FoundFile {
    pub(super) file: File,
    pub(super) size: u64,
    pub(super) id: FileId,
}

#[derive(Debug)]
pub(super) enum FileSource {
    Folder(File),
    Tar { file: File, files: HashMap<String, TarFile> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TarFile {
    Span { offset: u64, size: u64 },
    Link(String),
}

impl ArchiveFiles {
    pub(crate) fn of_folder(path: &Path) -> Result<Self, RuntimeError> {
        let place = path.display().to_string();
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(folder) => Ok(Self::new(place, FileSource::Folder(File::from(folder)))),
            Err(error) => Err(unopened(&place, error.into())),
        }
    }

    pub(crate) fn of_tar(file: File, path: &Path, memory: &Arc<LayerMemory>) -> Result<Self, RuntimeError> {
        let files = index(&file, memory)?;
        Ok(Self::new(path.display().to_string(), FileSource::Tar { file, files }))
    }

    fn new(place: String, source: FileSource) -> Self {
        Self { place, source, opened: Mutex::default() }
    }

    pub(super) fn find(&self, name: &str) -> Result<Option<FoundFile>, RuntimeError> {
        let Some(name) = normalised(name) else { return Ok(None) };
        let found = match &self.source {
            FileSource::Folder(folder) => open_beneath(folder, &name),
            FileSource::Tar { file, files } => open_span(file, files, &name),
        };
        found.map_err(|error| storage_error(format!("could not open a file of the archive `{}`", self.place), error))
    }

    /// Finds a file whose bytes the caller will all read.
    pub(super) fn open(&self, name: &str) -> Result<Option<FoundFile>, RuntimeError> {
        Ok(self.find(name)?.inspect(|found| self.count(found)))
    }

    pub(super) fn count(&self, found: &FoundFile) {
        let mut opened = locked(&self.opened);
        opened.in_all += found.size;
        opened.distinct += if opened.files.insert(found.id) { found.size } else { 0 };
    }

    /// The bytes read so far, and the maximum for failing images, many of which may refer to the same large file.
    pub(super) fn reads(&self) -> (u64, u64) {
        let opened = locked(&self.opened);
        (opened.in_all, opened.distinct.saturating_mul(FAILED_READS_MAX))
    }

    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, RuntimeError> {
        self.open(name)?.map(|found| read_small(found, name, limit)).transpose()
    }
}

/// The path of an archive with all links resolved, so that the checked path and the opened path are the same.
pub(crate) fn without_links(path: &Path) -> Result<PathBuf, RuntimeError> {
    path.canonicalize().map_err(|error| unopened(&path.display().to_string(), error))
}

/// Opens a regular file for reading, without waiting for the writer of a pipe. Rejects other kinds of files.
pub(crate) fn open_file(path: &Path) -> Result<File, RuntimeError> {
    let place = path.display().to_string();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| unopened(&place, error.into()))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(|error| unopened(&place, error))?;
    if metadata.is_dir() {
        let error = RuntimeError::new(RuntimeErrorKind::InvalidArgument, format!("`{place}` is a folder, not a file"));
        return Err(error.with_hint(format!("if it is an OCI layout, say `oci:{place}`")));
    }
    if !metadata.is_file() {
        return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, format!("`{place}` is no regular file")));
    }
    Ok(file)
}

pub(super) fn read_small(found: FoundFile, name: &str, limit: u64) -> Result<Vec<u8>, RuntimeError> {
    let (name, size) = (printable(name), found.size);
    if size > limit {
        let (size, limit) = (ByteSize(size), ByteSize(limit));
        return Err(unacceptable(format!("`{name}` has {size}; the limit is {limit}")));
    }
    read_span(found.file, size)
        .map_err(|error| corrupt(format!("could not read `{name}` of the archive")).caused_by(error))
}

pub(super) fn read_span(file: File, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == size { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn unopened(place: &str, error: io::Error) -> RuntimeError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => RuntimeErrorKind::NotFound,
        io::ErrorKind::NotADirectory => RuntimeErrorKind::InvalidArgument,
        _ => RuntimeErrorKind::Other,
    };
    RuntimeError::new(kind, format!("could not open the archive `{place}`")).caused_by(error)
}

/// Opens a file of a folder. Links cannot lead out of the folder.
fn open_beneath(folder: &File, name: &str) -> io::Result<Option<FoundFile>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = match rustix::fs::openat2(folder, name, flags, Mode::empty(), how) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    let id = FileId(metadata.dev(), metadata.ino());
    Ok(metadata.is_file().then_some(FoundFile { file, size: metadata.len(), id }))
}

fn open_span(file: &File, files: &HashMap<String, TarFile>, name: &str) -> io::Result<Option<FoundFile>> {
    let mut name = name;
    for _ in 0..=LINKS_MAX {
        match files.get(name) {
            None => return Ok(None),
            Some(TarFile::Link(target)) => name = target,
            Some(TarFile::Span { offset, size }) => {
                // Opens the file again, because duplicated descriptors share one position.
                let mut own = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
                own.seek(SeekFrom::Start(*offset))?;
                return Ok(Some(FoundFile { file: own, size: *size, id: FileId(*offset, *size) }));
            }
        }
    }
    Err(io::Error::other("its links lead in a circle"))
}

/// The files of a tar archive. The last entry of a name wins, as in an extraction.
fn index(file: &File, memory: &Arc<LayerMemory>) -> Result<HashMap<String, TarFile>, RuntimeError> {
    let unread = |error| corrupt("it is truncated").caused_by(error);
    let length = file.metadata().map_err(unread)?.len();
    let mut input = BufReader::with_capacity(READ_AHEAD, file);
    let (mut files, mut entries, mut names) = (HashMap::new(), 0_usize, 0_usize);
    loop {
        let head = read_head(&mut input, memory)
            .map_err(|error| corrupt("it is no tar archive, or a damaged one").caused_by(error).with_hint(PLAIN))?;
        let Some(head) = head else { return Ok(files) };
        entries += 1;
        if entries > ENTRIES_MAX {
            return Err(unacceptable(format!("more than {ENTRIES_MAX} entries")));
        }
        let offset = input.stream_position().map_err(unread)?;
        let end = offset.checked_add(head.data.stored).filter(|end| *end <= length);
        let Some(end) = end else { return Err(corrupt("it is truncated")) };
        let found = match head.kind {
            TarKind::File if head.data.ranges.is_none() => Some(TarFile::Span { offset, size: head.data.stored }),
            TarKind::HardLink => text(&head.link).and_then(normalised).map(TarFile::Link),
            TarKind::Symlink => text(&head.link).zip(text(&head.name)).and_then(target).map(TarFile::Link),
            _ => None,
        };
        if let Some((name, found)) = text(&head.name).and_then(normalised).zip(found) {
            names += name.len() + if let TarFile::Link(target) = &found { target.len() } else { 0 };
            if names > NAMES_BYTES_MAX {
                let limit = ByteSize(NAMES_BYTES_MAX as u64);
                return Err(unacceptable(format!("names of more than {limit} in all")));
            }
            files.insert(name, found);
        }
        // The last entry may lack its padding.
        let rest = end.next_multiple_of(BLOCK).min(length) - offset;
        input.seek_relative(rest.cast_signed()).map_err(unread)?;
    }
}

fn text(name: &[u8]) -> Option<&str> {
    std::str::from_utf8(name).ok()
}

/// Returns a relative name without `.`; `None` if the name leads out of the archive, or is too long.
fn normalised(name: &str) -> Option<String> {
    resolved("", name).filter(|name| !name.is_empty())
}

fn target((link, name): (&str, &str)) -> Option<String> {
    let name = normalised(name)?;
    resolved(name.rsplit_once('/').map_or("", |(folder, _)| folder), link)
}

fn resolved(folder: &str, path: &str) -> Option<String> {
    if path.starts_with('/') || path.contains('\0') {
        return None;
    }
    let mut parts: Vec<&str> = folder.split_terminator('/').collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/")).filter(|name| name.len() <= NAME_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    type Made<'a> = (&'a str, tar::EntryType, &'a str);

    fn tar_of(entries: &[Made<'_>]) -> File {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            if matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link) {
                header.set_size(0);
                builder.append_link(&mut header, name, content).expect("memory takes it");
            } else {
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, name, content.as_bytes()).expect("memory takes it");
            }
        }
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&builder.into_inner().expect("memory takes it")).expect("written");
        file.rewind().expect("at its start");
        file
    }

    fn entries(file: File) -> Result<ArchiveFiles, RuntimeError> {
        ArchiveFiles::of_tar(file, Path::new("x.tar"), &LayerMemory::of_its_own(4 << 20))
    }

    #[test]
    fn files_and_links_are_found_by_any_spelling_inside_the_archive() {
        use tar::EntryType::{Link, Regular, Symlink};
        let long = format!("{}/layer.tar", "x".repeat(150));
        let found = entries(tar_of(&[
            ("./a/layer.tar", Regular, "one"),
            ("b/layer.tar", Symlink, "../a/layer.tar"),
            ("c", Link, "a/layer.tar"),
            (&long, Regular, "long"),
            ("d", Symlink, "../../etc/passwd"),
            ("e", Symlink, "/etc/passwd"),
            ("f", Symlink, "g"),
            ("g", Symlink, "f"),
            ("twice", Regular, "first"),
            ("twice", Regular, "second"),
        ]))
        .expect("an archive");
        let read = |name: &str| found.read(name, 100).map(|bytes| bytes.map(|bytes| String::from_utf8(bytes).unwrap()));
        for (name, content) in [
            ("a/layer.tar", Some("one")),
            ("./b/layer.tar", Some("one")),
            ("c", Some("one")),
            (&long, Some("long")),
            ("twice", Some("second")),
            ("d", None),
            ("e", None),
            ("../a", None),
            ("absent", None),
        ] {
            assert_eq!(read(name).expect("no failure").as_deref(), content, "{name}");
        }
        assert!(read("f").expect_err("a circle").chain().contains("circle"));
        assert!(found.read("a/layer.tar", 2).expect_err("too long").chain().contains("the limit is 2B"));
    }

    #[test]
    fn a_cut_archive_and_one_that_is_none_are_refused() {
        let whole = tar_of(&[("a", tar::EntryType::Regular, &"x".repeat(4000))]);
        whole.set_len(2000).expect("it is cut");
        assert!(entries(whole).expect_err("cut").chain().contains("truncated"));
        let mut text = tempfile::tempfile().expect("a file");
        text.write_all(&[b'x'; 2000]).expect("written");
        text.rewind().expect("at its start");
        assert!(entries(text).expect_err("text").chain().contains("no tar archive"));
    }

    #[test]
    fn a_folder_is_not_left_by_its_links() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("in"), "in").expect("written");
        std::os::unix::fs::symlink("in", folder.path().join("link")).expect("linked");
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("out")).expect("linked");
        let found = ArchiveFiles::of_folder(folder.path()).expect("a folder");
        assert_eq!(found.read("link", 9).expect("readable"), Some(b"in".to_vec()));
        found.read("out", 9000).expect_err("it leads out");
        assert_eq!(found.read("in/x", 9).expect("no failure"), None);
    }
}
