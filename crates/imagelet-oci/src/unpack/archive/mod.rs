//! Reads tar archives (ustar, PAX, GNU, star, v7) as containerd does. Rejects entries on which readers disagree.
//!
//! **Invariant:** only the archive decides which bytes are headers, as in Go's `archive/tar`. Sizes of symbolic links,
//! directories and devices are ignored. A hard link must have no size. A PAX size overrides the header's size, for the
//! next entry only. The limits bound the memory, whatever the archive declares.

pub(super) mod header;
pub(super) mod pax;
pub(super) mod sparse;

use imagelet_core::image::ByteSize;
use std::io::{self, ErrorKind, Read as _};

use self::{
    header::{BLOCK, Header},
    pax::{Extended, Overrides, SparseRecords, Time},
    sparse::{Builder, Version},
};
use super::{EntryRules, LayerInput, MemoryReservation, UnpackLimits, error::Fault};

pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Memory of a header's parsed form, without attributes and ranges, as a multiple of the header's bytes.
const HEADER_COST: usize = 4;
/// Memory of an xattr in addition to its name and value, and of a range of a sparse file. Both include copies.
const XATTR_COST: usize = 256;
const RANGE_COST: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TarKind {
    File,
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    Directory,
    Fifo,
    #[default]
    Unknown,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TarMetadata {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    /// The access time, which is not earlier than `mtime`.
    pub(crate) atime: Time,
}

#[derive(Debug, Default)]
pub(crate) struct TarEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) kind: TarKind,
    pub(crate) metadata: TarMetadata,
    pub(crate) data: TarData,
    pub(crate) device: (i64, i64),
    pub(crate) xattrs: Xattrs,
}

#[derive(Debug, Default)]
pub(crate) struct TarData {
    pub(crate) size: u64,
    /// The number of the file's bytes in the archive.
    pub(crate) stored: u64,
    /// For a sparse file, offset and length of each range with data: in order, without overlap, within the file's size.
    pub(crate) ranges: Option<Vec<(u64, u64)>>,
}

/// Reads the entries in order. The data of an entry is read between two calls of [`Reader::next`].
pub(crate) struct Reader<'a> {
    pub(crate) input: &'a mut dyn LayerInput,
    limits: UnpackLimits,
    rules: EntryRules,
    claim: MemoryReservation,
    globals: Overrides,
    remaining: u64,
    padding: u64,
    /// The number of headers that were read, including extension headers.
    pub(crate) headers: u64,
    pub(crate) place: Vec<u8>,
}

#[derive(Default)]
struct Pending {
    extended: Option<Extended>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        input: &'a mut dyn LayerInput,
        limits: UnpackLimits,
        rules: EntryRules,
        claim: MemoryReservation,
    ) -> Self {
        let (place, globals) = (b"(start of layer)".to_vec(), Overrides::default());
        Reader { input, limits, rules, claim, globals, remaining: 0, padding: 0, headers: 0, place }
    }

    pub(crate) fn next(&mut self) -> Result<Option<TarEntry>, Fault> {
        self.claim.clear();
        let mut pending = Pending::default();
        loop {
            self.skip_rest()?;
            let mut block = [0; BLOCK];
            if !self.next_header(&mut block)? {
                // End blocks may follow extension headers. An input that ends after extension headers is truncated.
                return Ok(None);
            }
            self.headers += 1;
            if self.headers > self.limits.entries_max {
                return Err(Fault::limit(format!("more than {} entries", self.limits.entries_max)));
            }
            let header = Header::parse(&block)?;
            match header.type_flag() {
                b'x' => {
                    let records = self.extension(&header, "PAX header")?;
                    let extended = Extended::parse(&records, self.limits.ranges_max, self.rules)?;
                    self.claim.grow(extended.xattrs.count() * XATTR_COST)?;
                    pending.extended = Some(extended);
                }
                b'g' => {
                    let records = self.extension(&header, "global PAX header")?;
                    self.globals.merge_global(&records, self.rules)?;
                }
                b'L' => pending.long_name = Some(self.long_text(&header, "GNU long name")?),
                b'K' => pending.long_link = Some(self.long_text(&header, "GNU long link")?),
                _ => return self.entry(&header, pending).map(Some),
            }
            self.skip_rest()?;
            let is_pending = pending.extended.is_some() || pending.long_name.is_some() || pending.long_link.is_some();
            if is_pending && self.is_at_end()? {
                return Err(truncated());
            }
        }
    }

    /// Bytes of the current entry's data, from the input's buffer; empty at the end of the data.
    pub(crate) fn fill(&mut self) -> Result<&[u8], Fault> {
        if self.remaining == 0 {
            return Ok(&[]);
        }
        if self.is_at_end()? {
            return Err(truncated());
        }
        let wanted = usize::try_from(self.remaining).unwrap_or(usize::MAX);
        let buffer = self.input.fill_buf().map_err(Fault::read)?;
        Ok(&buffer[..wanted.min(buffer.len())])
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.input.consume(bytes);
        self.remaining -= bytes as u64;
    }

    /// Consumes bytes of a whole file. [`Self::content_written`] follows when they are in the file.
    pub(crate) fn consume_content(&mut self, bytes: usize) {
        self.input.consume_content(bytes);
        self.remaining -= bytes as u64;
    }

    /// The writer has appended the next `bytes` of the consumed content to the file `path`.
    pub(crate) fn content_written(&mut self, bytes: usize, path: &[u8]) {
        self.input.content_written(bytes, path);
    }

    fn entry(&mut self, header: &Header<'_>, pending: Pending) -> Result<TarEntry, Fault> {
        header.short_name().clone_into(&mut self.place);
        let mode = header.number(100..108, "mode")?;
        let (uid, gid) = (header.number(108..116, "uid")?, header.number(116..124, "gid")?);
        let (mut size, mtime) = (header.size()?, header.number(136..148, "mtime")?);
        let device = header.device()?;
        let (flag, mut extended) = (header.type_flag(), pending.extended.unwrap_or_default());
        let mut name = pending.long_name.or_else(|| extended.path.take()).unwrap_or_else(|| header.name());
        let link = pending.long_link.or_else(|| extended.link.take()).unwrap_or_else(|| header.link());
        name.clone_into(&mut self.place);
        size = extended.size.unwrap_or(size);
        let overrides = extended.overrides.or(self.globals);
        let mtime = overrides.mtime.unwrap_or(Time { secs: mtime, nanos: 0 });
        let metadata = TarMetadata {
            mode: u32::try_from(mode & 0o7777).expect("four octal digits fit"),
            uid: owner(overrides.uid.unwrap_or(uid), "uid")?,
            gid: owner(overrides.gid.unwrap_or(gid), "gid")?,
            mtime,
            atime: overrides.atime.map_or(mtime, |atime| atime.max(mtime)),
        };
        let kind = match flag {
            0 if name.ends_with(b"/") => TarKind::Directory,
            0 | b'0' | b'7' | b'S' => TarKind::File,
            b'1' => TarKind::HardLink,
            b'2' => TarKind::Symlink,
            b'3' => TarKind::CharDevice,
            b'4' => TarKind::BlockDevice,
            b'5' => TarKind::Directory,
            b'6' => TarKind::Fifo,
            _ => TarKind::Unknown,
        };
        if kind == TarKind::HardLink && size != 0 {
            // POSIX allows a hard link with data. Most readers expect no data, and would parse it as headers.
            return Err(Fault::malformed("it is a hard link with data of its own"));
        }
        if matches!(kind, TarKind::File | TarKind::Unknown) {
            self.begin(size)?;
        } else {
            size = 0;
        }
        let mut size = size.cast_unsigned();
        let mut ranges = None;
        let version = if flag == b'S' { Some(Version::Header) } else { sparse::version(&extended.sparse)? };
        if let Some(version) = version {
            if kind != TarKind::File {
                return Err(Fault::malformed("it has a sparse map and is no file"));
            }
            if let Some(real) = extended.sparse.name.take().filter(|_| version != Version::Header) {
                real.clone_into(&mut self.place);
                name = real;
            }
            let (map, real) = self.sparse_map(header, &version, &extended.sparse, size)?;
            size = real;
            ranges = Some(map);
        }
        self.claim.grow(ranges.as_ref().map_or(0, Vec::len) * RANGE_COST)?;
        Ok(TarEntry {
            name,
            link,
            kind,
            metadata,
            data: TarData { size, stored: self.remaining, ranges },
            device,
            xattrs: extended.xattrs.all(),
        })
    }

    fn sparse_map(
        &mut self,
        header: &Header<'_>,
        version: &Version,
        records: &SparseRecords,
        stored: u64,
    ) -> Result<(Vec<(u64, u64)>, u64), Fault> {
        let mut builder = Builder::new(self.limits.ranges_max);
        let mut real = records.size.or(records.real_size).unwrap_or(stored.cast_signed());
        match version {
            Version::Header => {
                if !header.is_gnu() {
                    return Err(Fault::malformed("it is a GNU sparse file in a header of another kind"));
                }
                real = header.number(483..495, "real size")?;
                let mut more = sparse::push_old(header.block, true, &mut builder)?;
                let mut blocks = 0;
                while more {
                    // Blocks are counted, because even a block without ranges may announce another block.
                    blocks += 1;
                    if blocks > self.limits.ranges_max {
                        return Err(Fault::limit(format!("its sparse map has more than {blocks} blocks")));
                    }
                    let mut extension = [0; BLOCK];
                    self.read_exact(&mut extension)?;
                    more = sparse::push_old(&extension, false, &mut builder)?;
                }
            }
            Version::Records => sparse::push_records(records, &mut builder)?,
            Version::Data => sparse::push_data(
                |block| {
                    if self.remaining < BLOCK as u64 {
                        return Err(Fault::malformed("its sparse map is malformed"));
                    }
                    self.read_exact(block)?;
                    self.remaining -= BLOCK as u64;
                    Ok(())
                },
                &mut builder,
            )?,
        }
        let real = u64::try_from(real).map_err(|_| negative_size())?;
        Ok((builder.finish(real, self.remaining)?, real))
    }

    fn extension(&mut self, header: &Header<'_>, what: &'static str) -> Result<Vec<u8>, Fault> {
        header.short_name().clone_into(&mut self.place);
        self.begin(header.size()?)?;
        if self.remaining > self.limits.header_max as u64 {
            let limit = ByteSize(self.limits.header_max as u64);
            return Err(Fault::limit(format!("a {what} is longer than {limit}")));
        }
        let length = usize::try_from(self.remaining).expect("it is within a limit");
        self.claim.grow(HEADER_COST * length)?;
        let mut content = Vec::with_capacity(length);
        (&mut *self.input).take(self.remaining).read_to_end(&mut content).map_err(Fault::read)?;
        if content.len() < length {
            return Err(truncated());
        }
        self.remaining = 0;
        Ok(content)
    }

    fn long_text(&mut self, header: &Header<'_>, what: &'static str) -> Result<Vec<u8>, Fault> {
        Ok(header::text(&self.extension(header, what)?).to_vec())
    }

    fn begin(&mut self, size: i64) -> Result<(), Fault> {
        self.remaining = u64::try_from(size).map_err(|_| negative_size())?;
        self.padding = self.remaining.next_multiple_of(BLOCK as u64) - self.remaining;
        Ok(())
    }

    /// Skips the rest of the current entry. The last entry may lack its padding.
    fn skip_rest(&mut self) -> Result<(), Fault> {
        for (length, may_lack) in [(&mut self.remaining, false), (&mut self.padding, true)] {
            let mut rest = (&mut *self.input).take(std::mem::take(length));
            io::copy(&mut rest, &mut io::sink()).map_err(Fault::read)?;
            if rest.limit() > 0 && !may_lack {
                return Err(truncated());
            }
        }
        Ok(())
    }

    fn next_header(&mut self, block: &mut [u8; BLOCK]) -> Result<bool, Fault> {
        if self.is_at_end()? {
            return Ok(false);
        }
        self.read_exact(block)?;
        if block.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
        if self.is_at_end()? {
            return Ok(false);
        }
        self.read_exact(block)?;
        if block.iter().any(|&byte| byte != 0) {
            return Err(Fault::malformed("a single zero block follows it, and then more"));
        }
        Ok(false)
    }

    fn read_exact(&mut self, block: &mut [u8; BLOCK]) -> Result<(), Fault> {
        self.input.read_exact(block).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => truncated(),
            _ => Fault::read(error),
        })
    }

    fn is_at_end(&mut self) -> Result<bool, Fault> {
        loop {
            match self.input.fill_buf() {
                Ok(buffer) => return Ok(buffer.is_empty()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::read(error)),
            }
        }
    }
}

/// Converts an owner. Systems with signed ids write negative owners such as -2, whose bits the kernel uses. The owner
/// -1 is rejected, because the kernel reads it as "unchanged".
fn owner(id: i64, what: &'static str) -> Result<u32, Fault> {
    let negative = || i32::try_from(id).map(i32::cast_unsigned);
    u32::try_from(id)
        .or_else(|_| negative())
        .ok()
        .filter(|&id| id != u32::MAX)
        .ok_or_else(|| Fault::malformed(format!("its {what} {id} is out of range")))
}

fn truncated() -> Fault {
    Fault::malformed("the archive is truncated")
}

fn negative_size() -> Fault {
    Fault::malformed("its size is negative")
}
