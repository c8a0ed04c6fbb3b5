//! Builds tar archives byte by byte: well-formed ones, and such as no writer would make.

/// When the builder's entries were last changed, unless they say otherwise.
pub(crate) const MTIME: i64 = 1_500_000_000;

/// One 512-byte header; ustar unless changed.
#[derive(Clone)]
pub(crate) struct Header(pub(crate) [u8; 512]);

impl Header {
    /// `name` is cut at 100 bytes: longer ones need [`Archive::pax`] or [`Archive::gnu_long`].
    pub(crate) fn new(flag: u8, name: impl AsRef<[u8]>, size: u64) -> Self {
        let name = name.as_ref();
        let mode = if flag == b'5' { 0o755 } else { 0o644 };
        Self([0; 512])
            .put(0, &name[..name.len().min(100)])
            .mode(mode)
            .owner(0, 0)
            .octal(124, 12, size)
            .octal(136, 12, MTIME.unsigned_abs())
            .put(156, &[flag])
            .put(257, b"ustar\x0000")
    }

    pub(crate) fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn octal(self, at: usize, width: usize, value: u64) -> Self {
        self.put(at, format!("{value:0digits$o}\0", digits = width - 1).as_bytes())
    }

    /// A number in GNU's base 256.
    pub(crate) fn binary(self, at: usize, width: usize, value: i128) -> Self {
        let bytes = value.to_be_bytes();
        let mut field = if width > 16 { vec![0; width - 16] } else { Vec::new() };
        field.extend_from_slice(&bytes[16_usize.saturating_sub(width)..]);
        field[0] |= 0x80;
        self.put(at, &field)
    }

    pub(crate) fn link(self, target: impl AsRef<[u8]>) -> Self {
        let target = target.as_ref();
        self.put(157, &target[..target.len().min(100)])
    }

    pub(crate) fn mode(self, mode: u64) -> Self {
        self.octal(100, 8, mode)
    }

    pub(crate) fn owner(self, uid: u64, gid: u64) -> Self {
        self.octal(108, 8, uid).octal(116, 8, gid)
    }

    pub(crate) fn device(self, major: u64, minor: u64) -> Self {
        self.octal(329, 8, major).octal(337, 8, minor)
    }

    pub(crate) fn mtime(self, seconds: u64) -> Self {
        self.octal(136, 12, seconds)
    }

    pub(crate) fn gnu(self) -> Self {
        self.put(257, b"ustar  \0")
    }

    /// The block with its checksum.
    pub(crate) fn sealed(&self) -> [u8; 512] {
        let mut block = self.0;
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

/// An archive in the making.
#[derive(Clone, Default)]
pub(crate) struct Archive(pub(crate) Vec<u8>);

impl Archive {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn header(self, header: &Header) -> Self {
        self.raw(&header.sealed())
    }

    /// Data, padded to a block.
    pub(crate) fn data(self, data: impl AsRef<[u8]>) -> Self {
        let mut archive = self.raw(data.as_ref());
        let end = archive.0.len().next_multiple_of(512);
        archive.0.resize(end, 0);
        archive
    }

    pub(crate) fn file(self, name: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Self {
        let size = content.as_ref().len() as u64;
        self.named(&Header::new(b'0', &name, size), name.as_ref()).data(content)
    }

    pub(crate) fn dir(self, name: impl AsRef<[u8]>) -> Self {
        self.named(&Header::new(b'5', &name, 0), name.as_ref())
    }

    pub(crate) fn symlink(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.linked(b'2', name.as_ref(), target.as_ref())
    }

    pub(crate) fn hard_link(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.linked(b'1', name.as_ref(), target.as_ref())
    }

    pub(crate) fn device(self, name: &str, flag: u8, major: u64, minor: u64) -> Self {
        self.header(&Header::new(flag, name, 0).device(major, minor))
    }

    pub(crate) fn fifo(self, name: &str) -> Self {
        self.header(&Header::new(b'6', name, 0))
    }

    /// GNU's `L` (long name) or `K` (long link target) before the next entry.
    pub(crate) fn gnu_long(self, flag: u8, text: impl AsRef<[u8]>) -> Self {
        let text = [text.as_ref(), b"\0"].concat();
        self.header(&Header::new(flag, "././@LongLink", text.len() as u64).gnu()).data(text)
    }

    /// A PAX header for the next entry.
    pub(crate) fn pax<K: AsRef<[u8]>, V: AsRef<[u8]>>(self, records: &[(K, V)]) -> Self {
        self.extended(b'x', &pax_records(records))
    }

    /// An extension header with whatever content.
    pub(crate) fn extended(self, flag: u8, records: &[u8]) -> Self {
        self.header(&Header::new(flag, "PaxHeaders/next", records.len() as u64)).data(records)
    }

    /// With the end blocks.
    pub(crate) fn end(self) -> Vec<u8> {
        self.raw(&[0; 1024]).0
    }

    fn named(self, header: &Header, name: &[u8]) -> Self {
        let archive = if name.len() > 100 { self.gnu_long(b'L', name) } else { self };
        archive.header(header)
    }

    fn linked(self, flag: u8, name: &[u8], target: &[u8]) -> Self {
        let archive = if target.len() > 100 { self.gnu_long(b'K', target) } else { self };
        archive.named(&Header::new(flag, name, 0).link(target), name)
    }
}

/// PAX records, each with its own length in front.
pub(crate) fn pax_records<K: AsRef<[u8]>, V: AsRef<[u8]>>(records: &[(K, V)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in records {
        let (key, value) = (key.as_ref(), value.as_ref());
        let rest = key.len() + value.len() + 3;
        let length = (1..12).map(|digits| rest + digits).find(|length| length.to_string().len() == length - rest);
        bytes.extend_from_slice(length.expect("a length has under twelve digits").to_string().as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(key);
        bytes.push(b'=');
        bytes.extend_from_slice(value);
        bytes.push(b'\n');
    }
    bytes
}
