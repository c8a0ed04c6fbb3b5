//! Unpacks a layer's tar stream into a separate directory, in the form that overlayfs mounts.
//!
//! For any archive, the unpacker accesses no file outside the directory. A leading slash in a name means the directory.
//! Names that lead out of it are rejected. Links are resolved in user space as in a container. All calls use directory
//! descriptors (see `tree`). `limits` bounds a layer's size. Of entries with one name, the last entry wins.
//!
//! Whiteouts have overlayfs' form, so a layer is unpacked without the layers below it. A directory without an entry
//! gets mode 0755 and is reported, because a lower layer may have its metadata. The unpacker does not sync.
//!
//! An artifact's blob is one file, or an archive with the rules in `member`.

mod archive;
mod budget;
mod disk_usage;
mod error;
mod limits;
mod member;
mod name;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    io::{self, BufRead},
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use rustix::fd::{BorrowedFd, OwnedFd};

pub use self::budget::{UNPACK_MEMORY_DEFAULT, UNPACK_MEMORY_MIN};
use self::{archive::Reader, error::Fault, writer::Writer};
pub(crate) use self::{
    archive::{TarEntry, TarKind},
    budget::{LayerMemory, MemoryError, MemoryReservation, UnpackBudget},
    disk_usage::{BLOCK, DiskUsage},
    error::{UnpackError, UnpackErrorKind},
    limits::UnpackLimits,
    writer::{
        deferred_metadata::OwnershipRecord,
        direct_io::DIRECT_MIN,
        manifest_writer::{FileEntry, FileEntryKind, FileManifest, FileRecord, Sum, xattrs_at, xattrs_of},
        tree::process_umask,
    },
};

pub(crate) const ARTIFACT_NAMES_MAX: u64 = 1_000_000;

const DIRECTORY_COST: u64 = 4096;

#[derive(Clone, Debug)]
pub(crate) struct UnpackOptions {
    pub(crate) ownership: Ownership,
    pub(crate) rules: EntryRules,
    pub(crate) limits: UnpackLimits,
    /// The umask of the process. [`process_umask`] reads it before the thread is confined.
    pub(crate) umask: u32,
    pub(crate) memory: Arc<LayerMemory>,
    /// The folder into which an artifact's archive is unpacked, empty for the root; `None` for a layer of an image.
    pub(crate) folder: Option<String>,
    pub(crate) cancelled: Arc<AtomicBool>,
    /// From this size on, files that are not sparse are written with direct I/O if a writer is free.
    pub(crate) direct_min: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The files get the owners in the archive, which needs root. A whiteout is a character device 0:0. An opaque
    /// directory has the attribute `trusted.overlay.opaque`.
    Apply,
    /// The process owns the files; the owners in the archive are reported. Directories stay accessible (`u+rwx`).
    /// Mounts of the layer need `userxattr`. A whiteout is a character device 0:0 if the kernel permits that. Otherwise
    /// it is an empty file with `user.overlay.whiteout`, in a directory whose `user.overlay.opaque` is `x`.
    Record,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EntryRules {
    /// As in the OCI image specification, or as in GNU tar if the specification is silent.
    #[default]
    Own,
    /// As containerd unpacks, for its snapshots:
    ///
    /// - the layer's root has no metadata of its own, whatever an entry says;
    /// - a hard link sets the metadata of its target again;
    /// - a directory that replaces something else in the same layer, such as its whiteout, merges with the directory
    ///   of the layers below;
    /// - times before 1970 and after 2262 are 1970-01-01;
    /// - xattrs come from `SCHILY.xattr` records, without `trusted.*`, as far as the file system supports them;
    /// - global PAX headers are ignored.
    Containerd,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct UnpackReport {
    pub(crate) entries: u64,
    /// The sizes of the final files, with holes; hard links count once.
    pub(crate) bytes: u64,
    /// The estimated disk usage of data, in units of 4 KiB, and of directories.
    pub(crate) disk_bytes: u64,
    /// The disk usage of the root and everything below it; `None` if the caller must measure it.
    pub(crate) allocated: Option<DiskUsage>,
    /// The metadata, by path, that the archive has but the disk does not.
    pub(crate) ownership: Vec<OwnershipRecord>,
    /// The directories without an entry, as raw bytes below the root. A lower layer may have their metadata.
    pub(crate) implicit_directories: Vec<Vec<u8>>,
    /// Whether the layer hides all layers below it. Overlayfs ignores the opaque mark of a root.
    pub(crate) root_opaque: bool,
}

/// The bytes of an archive, and the files that an earlier attempt has left.
///
/// The default methods are for an archive that has neither an earlier attempt nor a journal.
pub(crate) trait LayerInput: BufRead {
    /// Consumes bytes of a file's content. [`Self::content_written`] follows when they are in the file.
    fn consume_content(&mut self, bytes: usize) {
        self.consume(bytes);
    }

    /// The next `bytes` of the consumed content are in the file `path`.
    fn content_written(&mut self, _bytes: usize, _path: &[u8]) {}

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
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) path: Vec<u8>,
    pub(crate) length: u64,
}

/// Unpacks one uncompressed tar stream into an empty directory, and records each finished path in `manifest`.
///
/// Reads `input` up to the end blocks, and never extracts the bytes after them. Each write to a file has the size of
/// the input's buffer, which should be at least 128 KiB; direct I/O has its own size.
pub(crate) fn unpack_layer<'a>(
    input: &mut dyn LayerInput,
    root: BorrowedFd<'a>,
    options: &'a UnpackOptions,
    manifest: Option<FileManifest<'a>>,
) -> Result<UnpackReport, UnpackError> {
    let mut reader = Reader::new(input, options.limits, options.rules, MemoryReservation::on(&options.memory));
    let mut writer = Writer::new(root, options, manifest).map_err(|fault| fault.at(&reader.place))?;
    let written = write_all(&mut reader, &mut writer, options.folder.is_some());
    written.map_err(|fault| fault.at(&reader.place))?;
    writer.finish()
}

/// A whole and verified file of an artifact. Its owner is root, and all users can read it.
#[derive(Debug)]
pub(crate) struct WholeFile<'a> {
    pub(crate) path: &'a str,
    pub(crate) from: &'a Path,
    pub(crate) size: u64,
    pub(crate) content: Sum,
}

pub(crate) fn place_file<'a>(
    file: &WholeFile<'_>,
    root: BorrowedFd<'a>,
    options: &'a UnpackOptions,
    manifest: Option<FileManifest<'a>>,
) -> Result<UnpackReport, UnpackError> {
    let failed = |fault: Fault| fault.at(file.path.as_bytes());
    let mut writer = Writer::new(root, options, manifest).map_err(failed)?;
    writer.place(file).map_err(failed)?;
    writer.finish()
}

fn write_all(reader: &mut Reader<'_>, writer: &mut Writer<'_>, is_artifact: bool) -> Result<(), Fault> {
    loop {
        let entry = reader.next()?;
        writer.gauge.headers(reader.headers)?;
        let Some(entry) = entry else { return Ok(()) };
        let entry = if is_artifact { member::of_artifact(entry)? } else { entry };
        writer.write(&entry, reader)?;
        if writer.take_replaced() {
            reader.input.invalidate_journal();
        }
    }
}

/// Reads the headers of the next entry; `None` at the archive's end. The caller skips or reads the entry's data.
pub(crate) fn read_head(
    mut input: &mut dyn BufRead,
    memory: &Arc<LayerMemory>,
) -> Result<Option<TarEntry>, UnpackError> {
    let claim = MemoryReservation::on(memory);
    let mut reader = Reader::new(&mut input, UnpackLimits::default(), EntryRules::Own, claim);
    reader.next().map_err(|fault| fault.at(&reader.place))
}

pub(crate) fn disk_size(size: u64) -> u64 {
    const UNIT: u64 = 4096;
    size.div_ceil(UNIT).saturating_mul(UNIT)
}
