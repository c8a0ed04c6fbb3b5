//! Builds archives byte by byte, including malformed ones.

#[derive(Clone, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
}

/// Ustar unless changed.
#[derive(Clone)]
pub(super) struct Header(pub(super) [u8; 512]);

impl Header {
    pub(super) fn new(flag: u8, name: &str, size: usize) -> Header {
        let mut header = Header([0; 512]);
        header.put(0, &name.as_bytes()[..name.len().min(100)]);
        header.put(100, if flag == b'5' { b"0000755\0" } else { b"0000644\0" });
        header.number(108, 8, 0).number(116, 8, 0).number(124, 12, size as u64).number(136, 12, 1_000_000_000);
        header.0[156] = flag;
        header.put(257, b"ustar\x0000");
        header
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Header {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(super) fn number(&mut self, at: usize, width: usize, value: u64) -> &mut Header {
        let text = format!("{value:0digits$o}\0", digits = width - 1);
        self.put(at, text.as_bytes())
    }

    pub(super) fn link(&mut self, target: &str) -> &mut Header {
        self.put(157, &target.as_bytes()[..target.len().min(100)])
    }

    pub(super) fn mode(&mut self, mode: u64) -> &mut Header {
        self.number(100, 8, mode)
    }

    pub(super) fn owner(&mut self, uid: u64, gid: u64) -> &mut Header {
        self.number(108, 8, uid).number(116, 8, gid)
    }

    pub(super) fn device(&mut self, major: u64, minor: u64) -> &mut Header {
        self.number(329, 8, major).number(337, 8, minor)
    }

    pub(super) fn gnu(&mut self) -> &mut Header {
        self.put(257, b"ustar  \0")
    }

    /// With the right checksum.
    pub(super) fn sealed(&self) -> [u8; 512] {
        let mut block = self.0;
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

impl Archive {
    pub(super) fn new() -> Archive {
        Archive::default()
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Archive {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn header(self, header: &Header) -> Archive {
        self.raw(&header.sealed())
    }

    pub(super) fn data(mut self, data: &[u8]) -> Archive {
        self.bytes.extend_from_slice(data);
        let end = self.bytes.len().next_multiple_of(512);
        self.bytes.resize(end, 0);
        self
    }

    pub(super) fn file(self, name: &str, content: &str) -> Archive {
        self.header(&Header::new(b'0', name, content.len())).data(content.as_bytes())
    }

    pub(super) fn dir(self, name: &str) -> Archive {
        self.header(&Header::new(b'5', name, 0))
    }

    pub(super) fn symlink(self, name: &str, target: &str) -> Archive {
        self.linked(b'2', name, target)
    }

    pub(super) fn hard_link(self, name: &str, target: &str) -> Archive {
        self.linked(b'1', name, target)
    }

    fn linked(self, flag: u8, name: &str, target: &str) -> Archive {
        let archive = if target.len() > 100 { self.gnu_long(b'K', target) } else { self };
        archive.header(Header::new(flag, name, 0).link(target))
    }

    pub(super) fn gnu_long(self, flag: u8, text: &str) -> Archive {
        let header = Header::new(flag, "././@LongLink", text.len() + 1).gnu().clone();
        self.header(&header).data(format!("{text}\0").as_bytes())
    }

    pub(super) fn pax(self, records: &[(&str, &[u8])]) -> Archive {
        self.pax_raw(b'x', &pax_records(records))
    }

    pub(super) fn pax_raw(self, flag: u8, records: &[u8]) -> Archive {
        self.header(&Header::new(flag, "PaxHeaders/x", records.len())).data(records)
    }

    pub(super) fn end(self) -> Vec<u8> {
        self.raw(&[0; 1024]).bytes
    }

    /// The archive without its end blocks.
    pub(super) fn bytes(self) -> Vec<u8> {
        self.bytes
    }
}

pub(super) fn pax_records(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let length = (1..12).map(|digits| rest + digits).find(|length| length.to_string().len() == length - rest);
        bytes.extend_from_slice(format!("{} {key}=", length.unwrap()).as_bytes());
        bytes.extend_from_slice(value);
        bytes.push(b'\n');
    }
    bytes
}
