//! Unpacks a layer's tar stream into a directory of its own, in the form overlayfs mounts.
//!
//! Whatever the archive says, nothing outside the directory is read or changed: a leading slash means the directory,
//! names that climb out are refused, links on the way are walked here as a container would see them, all is done below
//! directory descriptors (see `tree`). What a layer may take is bounded (see `limits`). The last entry of a name wins.
//!
//! Whiteouts become overlayfs': a layer does not need those below it to be unpacked. Directories that no entry names
//! are made with mode 0755 and reported, because a layer below may know better. Nothing is synced: the directory is
//! garbage until the caller has committed it.

mod archive;
mod budget;
mod error;
mod limits;
mod name;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    io::BufRead,
    sync::{Arc, atomic::AtomicBool},
};

use rustix::fd::BorrowedFd;

pub(crate) use self::writer::tree::process_umask;
use self::{archive::Reader, error::Fault, writer::Writer};
pub(crate) use self::{
    budget::{Claim, MemoryError},
    writer::manifest_writer::{xattrs_at, xattrs_of},
};
pub(crate) use self::{
    budget::{LAYERS_MAX, LayerMemory, UnpackBudget},
    error::{UnpackError, UnpackErrorKind},
    limits::UnpackLimits,
    writer::{
        deferred_metadata::OwnershipRecord,
        manifest_writer::{FileEntry, FileEntryKind, FileManifest, FileRecord, Sum},
        whiteout::OverlayForm,
    },
};

pub use self::budget::{UNPACK_MEMORY_DEFAULT, UNPACK_MEMORY_MIN};

const DIRECTORY_COST: u64 = 4096;

/// How a layer is to be unpacked.
#[derive(Clone, Debug)]
pub(crate) struct UnpackOptions {
    pub(crate) ownership: Ownership,
    pub(crate) overlay: OverlayForm,
    /// What an entry means where readers of archives differ.
    pub(crate) rules: EntryRules,
    pub(crate) limits: UnpackLimits,
    /// Bits that the process takes from new modes; [`process_umask`], read before the thread is confined.
    pub(crate) umask: u32,
    pub(crate) memory: Arc<LayerMemory>,
    /// Once true, unpacking ends soon with [`UnpackErrorKind::Cancelled`].
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// What becomes of owners and devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Set on disk; wants root.
    Apply,
    /// Files belong to us; what the archive says is reported. Directories stay open to us (`u+rwx`).
    Record,
}

/// What an entry means where readers of archives differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EntryRules {
    /// As the OCI image specification has it, or GNU tar where that says nothing.
    #[default]
    Own,
    /// As containerd unpacks, for trees that become containerd's:
    ///
    /// - the layer's root has no metadata of its own, whatever an entry says;
    /// - a hard link sets the metadata of the file that it names once more;
    /// - a directory that takes the place of something else in the same layer, as of its whiteout, merges with that of the
    ///   layers below;
    /// - times before 1970 and after 2262 are 1970-01-01;
    /// - attributes are those in records of `SCHILY.xattr`, all but `trusted.*`, and only as far as the file system has them;
    /// - global PAX headers mean nothing.
    Containerd,
}

/// What was unpacked.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnpackReport {
    /// Entries, without extension headers.
    pub(crate) entries: u64,
    /// Sizes of the files that stand, holes counted, hard links once.
    pub(crate) bytes: u64,
    /// About what the layer takes on disk: data in units of 4 KiB, directories.
    pub(crate) disk_bytes: u64,
    /// What the archive gives and the disk does not have, by path.
    pub(crate) ownership: Vec<OwnershipRecord>,
    /// Directories that no entry names, as raw bytes below the root: a lower layer may know their metadata.
    pub(crate) implicit_directories: Vec<Vec<u8>>,
    /// The layer hides all below it. Set on the root as any opaque directory's mark, which overlayfs does not read there.
    pub(crate) root_opaque: bool,
}

/// Unpacks one uncompressed tar stream into an empty directory, and records every path in `manifest` when it is finished.
///
/// Reads `input` up to the archive's end blocks and no further; what follows them is never extracted. File data goes
/// from the input's buffer straight to the file, so that buffer's size (128 KiB and more serve well) is that of a write.
pub(crate) fn unpack_layer<'a>(
    input: &mut dyn BufRead,
    root: BorrowedFd<'a>,
    options: &UnpackOptions,
    manifest: Option<FileManifest<'a>>,
) -> Result<UnpackReport, UnpackError> {
    let mut reader = Reader::new(input, options, Claim::on(&options.memory));
    let mut writer = Writer::new(root, options, manifest).map_err(|fault| fault.at(reader.place()))?;
    loop {
        match unpack_next(&mut reader, &mut writer) {
            Ok(true) => {}
            Ok(false) => break,
            Err(fault) => return Err(fault.at(reader.place())),
        }
    }
    writer.finish()
}

fn unpack_next(reader: &mut Reader<'_>, writer: &mut Writer<'_>) -> Result<bool, Fault> {
    let entry = reader.next()?;
    writer.gauge.headers(reader.headers())?;
    let Some(entry) = entry else {
        return Ok(false);
    };
    writer.write(entry, reader)?;
    Ok(true)
}

/// What a file of `size` bytes of data takes on disk.
pub(crate) fn disk_size(size: u64) -> u64 {
    const UNIT: u64 = 4096;
    size.div_ceil(UNIT).saturating_mul(UNIT)
}
