//! A compressed archive, inflated once into an unnamed file.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek as _, SeekFrom, Write as _},
    path::Path,
    sync::atomic::AtomicBool,
};

use imagelet_core::{error::RuntimeError, image::ByteSize};

use super::check_cancelled;
use crate::{
    manifest::{corrupt, unacceptable},
    store::storage_error,
};

/// A power of two: the largest window that zstd writes without `--long=28`.
const WINDOW_LOG_MAX: u32 = 27;
const BUFFER: usize = 256 << 10;
/// The position of a tar header's magic, and the number of bytes up to the magic's end.
const USTAR_AT: usize = 257;
const MAGIC_BYTES: u64 = 262;
const BYTES_BETWEEN_CHECKS: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    pub(super) fn of(what: &str, file: impl Read) -> Result<Self, RuntimeError> {
        let mut magic = Vec::new();
        let read = file.take(MAGIC_BYTES).read_to_end(&mut magic);
        read.map_err(|error| storage_error(format!("could not read {what}"), error))?;
        let (name, command) = match &magic[..] {
            [0x1f, 0x8b, ..] => return Ok(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return Ok(Self::Zstd),
            // A tar file begins with a name, which may look like another magic.
            _ if magic.get(USTAR_AT..).is_some_and(|rest| rest.starts_with(b"ustar")) => return Ok(Self::Plain),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => ("xz", "xz -d"),
            [b'B', b'Z', b'h', b'1'..=b'9', b'1' | 0x17, ..] => ("bzip2", "bzip2 -d"),
            [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => ("lz4", "lz4 -d"),
            [0x5d, 0, 0, _, _, ..] => ("lzma", "xz -d"),
            [b'L', b'Z', b'I', b'P', 0 | 1, ..] => ("lzip", "lzip -d"),
            [0x89, b'L', b'Z', b'O', 0, ..] => ("lzop", "lzop -d"),
            [0x1f, 0x9d, ..] => ("compress", "uncompress"),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => ("zip", "unzip"),
            [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => ("7z", "7z x"),
            _ => return Ok(Self::Plain),
        };
        Err(unacceptable(format!("{what} is packed by `{name}`; a plain tar file, gzip and zstd are taken"))
            .with_hint(format!("unpack it first: {command}")))
    }
}

/// The archive as a plain tar file: the file itself, or an inflated and unnamed copy in `folder`.
pub(crate) fn plain(
    mut file: File,
    folder: &Path,
    (expansion_max, expansion_free, free_bytes_floor): (u64, u64, u64),
    cancelled: &AtomicBool,
) -> Result<File, RuntimeError> {
    let unread = |error| storage_error("could not read the archive", error);
    let size = file.metadata().map_err(unread)?.len();
    let packing = Packing::of("it", &file)?;
    file.rewind().map_err(unread)?;
    let source = BufReader::with_capacity(BUFFER, file);
    let mut inflated: Box<dyn Read> = match packing {
        Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(source)),
        Packing::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(source).map_err(unread)?;
            decoder.window_log_max(WINDOW_LOG_MAX).map_err(unread)?;
            Box::new(decoder)
        }
        Packing::Plain => return Ok(source.into_inner()),
    };
    let free_min = free_bytes_floor.saturating_add(BYTES_BETWEEN_CHECKS);
    let inflated_max = size.saturating_mul(expansion_max).saturating_add(expansion_free);
    let unwritten = |error| storage_error(format!("could not inflate the archive into `{}`", folder.display()), error);
    let path = folder.join("spool");
    let mut spool = File::options().read(true).write(true).create_new(true).open(&path).map_err(unwritten)?;
    std::fs::remove_file(&path).map_err(unwritten)?;
    let (mut buffer, mut written, mut unchecked) = (vec![0; BUFFER], 0_u64, BYTES_BETWEEN_CHECKS);
    loop {
        check_cancelled(cancelled)?;
        let read = match inflated.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(corrupt("the archive does not decompress").caused_by(error)),
        };
        written += read as u64;
        if written > inflated_max {
            let limit = ByteSize(inflated_max);
            return Err(unacceptable(format!("the archive inflates to more than {limit}")));
        }
        unchecked += read as u64;
        if unchecked >= BYTES_BETWEEN_CHECKS {
            unchecked = 0;
            let disk = rustix::fs::fstatvfs(&spool).map_err(|error| unwritten(error.into()))?;
            if disk.f_bavail.saturating_mul(disk.f_frsize) < free_min {
                return Err(unwritten(io::ErrorKind::StorageFull.into()));
            }
        }
        spool.write_all(&buffer[..read]).map_err(unwritten)?;
    }
    spool.seek(SeekFrom::Start(0)).map_err(unwritten)?;
    Ok(spool)
}
