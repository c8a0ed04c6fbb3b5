//! Archives by chance: a seed, the bytes, and the story of what is in them.

use crate::{
    archive::{Archive, Header},
    seen::is_root,
};

/// How far an archive goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Temper {
    /// Every name once, every parent a folder, no absolute name: all readers agree.
    Tidy,
    /// Names come again as something else, links lead to folders and to nothing, names are odd.
    Wild,
}

/// An archive by chance.
pub(super) struct Generated {
    pub(super) seed: u64,
    pub(super) temper: Temper,
    pub(super) bytes: Vec<u8>,
    /// One line an entry, for who has to find out.
    pub(super) story: Vec<String>,
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a usize")
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// The fields all entries have.
#[derive(Clone, Copy)]
struct Metadata {
    mode: u64,
    owner: (u64, u64),
    mtime: &'static str,
}

/// Types that nobody defined; the names of such entries start with [`UNKNOWN`].
const UNKNOWN_FLAGS: [u8; 3] = *b"8QZ";
/// Others extract entries of unknown types as files; we skip them.
pub(super) const UNKNOWN: &str = "unknown-";
const TIMES: [&str; 7] = ["0", "1", "1500000000", "1500000000.25", "1699999999.999999999", "-1.5", "8589934593"];

impl Generated {
    pub(super) fn new(seed: u64, temper: Temper) -> Self {
        let mut builder =
            Builder { chance: Chance(seed), temper, archive: Archive::new(), story: Vec::new(), names: Vec::new() };
        let entries = 1 + builder.chance.below(24);
        for at in 0..entries {
            builder.entry(at);
        }
        Self { seed, temper, bytes: builder.archive.end(), story: builder.story }
    }
}

/// What was named so far, and as what.
struct Known {
    name: Vec<u8>,
    kind: u8,
    metadata: Metadata,
}

struct Builder {
    chance: Chance,
    temper: Temper,
    archive: Archive,
    story: Vec<String>,
    names: Vec<Known>,
}

impl Builder {
    fn entry(&mut self, at: usize) {
        let mut metadata = self.metadata();
        let kinds: &[u8] = if is_root() { b"00000005555222111634" } else { b"00000005555222111" };
        let kind = self.chance.pick(kinds);
        if self.chance.one_in(40) {
            let flag = self.chance.pick(&UNKNOWN_FLAGS);
            return self.write(flag, format!("{UNKNOWN}{at}").as_bytes(), &[], b"data of no file", &metadata);
        }
        let name = self.name(at, kind);
        let mut target = Vec::new();
        match kind {
            b'1' => {
                let Some((linked, of)) = self.hard_link_target() else { return };
                target = linked;
                if self.temper == Temper::Tidy {
                    // Writers repeat what the file has, and Python sets it again.
                    metadata = of;
                }
            }
            b'2' => target = self.symlink_target(),
            _ => {}
        }
        let content = if kind == b'0' { self.content() } else { Vec::new() };
        self.write(kind, &name, &target, &content, &metadata);
        self.names.push(Known { name: clean(&name), kind, metadata });
    }

    fn metadata(&mut self) -> Metadata {
        let modes: &[u64] =
            if is_root() { &[0o644, 0o755, 0o600, 0o4755, 0o2711, 0o1777, 0, 0o777] } else { &[0o755, 0o700] };
        let mode = self.chance.pick(modes);
        let ids = [0, 0, 1000, 65534, 2_097_151, 2_097_152, 3_000_000_000];
        let owner = (self.chance.pick(&ids), self.chance.pick(&ids));
        Metadata { mode, owner, mtime: self.chance.pick(&TIMES) }
    }

    fn name(&mut self, at: usize, kind: u8) -> Vec<u8> {
        let tidy = self.temper == Temper::Tidy;
        let mut name = Vec::new();
        let folders: Vec<Vec<u8>> =
            self.names.iter().filter(|known| !tidy || known.kind == b'5').map(|known| known.name.clone()).collect();
        if !folders.is_empty() && !self.chance.one_in(3) {
            name = self.chance.pick(&folders);
            name.push(b'/');
        } else if self.chance.one_in(4) {
            name.extend_from_slice(format!("implied{at}/x/").as_bytes());
        }
        let part: &[u8] = match self.chance.below(12) {
            0 => &[b'l'; 120],
            1 => "Gr\u{f6}\u{df}e \u{1f980}".as_bytes(),
            2 => b"\xff\xfe raw",
            3 => b"new\nline",
            4 => &[b'm'; 99],
            _ => self.chance.pick(&[b"a".as_slice(), b"b", b"c"]),
        };
        name.extend_from_slice(part);
        if tidy {
            name.extend_from_slice(format!("-{at}").as_bytes());
        } else {
            if self.chance.one_in(10) {
                // One that was there before.
                if let Some(known) = self.names.last() {
                    name.clone_from(&known.name);
                }
            }
            match self.chance.below(12) {
                0 => name.insert(0, b'/'),
                1 => name = [b".//", name.as_slice()].concat(),
                _ => {}
            }
        }
        if kind == b'5' && self.chance.one_in(2) {
            name.push(b'/');
        }
        if self.chance.one_in(4) && name.first() != Some(&b'/') {
            name = [b"./", name.as_slice()].concat();
        }
        name
    }

    fn content(&mut self) -> Vec<u8> {
        let length = self.chance.pick(&[0, 1, 511, 512, 513, 3000]);
        // Now and then what could be taken for a header.
        if self.chance.one_in(6) {
            return Archive::new().file("smuggled", "evil").0;
        }
        let byte = self.chance.pick(b"xyz\0");
        vec![byte; length]
    }

    fn hard_link_target(&mut self) -> Option<(Vec<u8>, Metadata)> {
        let tidy = self.temper == Temper::Tidy;
        let wanted = |kind: u8| if tidy { kind == b'0' } else { kind != b'5' };
        let known: Vec<_> = self.names.iter().filter(|known| wanted(known.kind)).collect();
        let known = if known.is_empty() { None } else { Some(known[self.chance.below(known.len())]) };
        let target = known.map(|known| (known.name.clone(), known.metadata))?;
        Some(if !tidy && self.chance.one_in(30) { (b"gone".to_vec(), target.1) } else { target })
    }

    /// Relative and never up: other readers follow it on this machine.
    fn symlink_target(&mut self) -> Vec<u8> {
        let known: Vec<Vec<u8>> = self.names.iter().map(|known| known.name.clone()).collect();
        if known.is_empty() || self.chance.one_in(3) {
            return self.chance.pick(&[b"nowhere".to_vec(), b"a".to_vec(), b"b/c".to_vec(), vec![b't'; 150]]);
        }
        self.chance.pick(&known)
    }

    fn write(&mut self, flag: u8, name: &[u8], target: &[u8], content: &[u8], metadata: &Metadata) {
        let gnu = self.chance.one_in(2);
        let mut archive = std::mem::take(&mut self.archive);
        let size = content.len() as u64;
        let mut header = Header::new(flag, name, size).mode(metadata.mode).link(target).device(1, 3);
        let (uid, gid) = metadata.owner;
        let mut records: Vec<(&str, Vec<u8>)> = Vec::new();
        let mut seconds = metadata.mtime;
        if let Some(point) = seconds.find('.') {
            records.push(("mtime", seconds.into()));
            seconds = &seconds[..point];
        }
        let seconds: i64 = seconds.parse().expect("a number");
        match u64::try_from(seconds) {
            Ok(seconds) => header = header.mtime(seconds),
            Err(_) if gnu => header = header.binary(136, 12, seconds.into()),
            Err(_) => {}
        }
        if gnu {
            header = header.gnu();
        }
        for (at, key, id) in [(108, "uid", uid), (116, "gid", gid)] {
            if id < 1 << 21 {
                header = header.octal(at, 8, id);
            } else if gnu {
                header = header.binary(at, 8, id.into());
            } else {
                records.push((key, id.to_string().into_bytes()));
            }
        }
        if size > 0 && flag == b'0' && self.chance.one_in(8) {
            records.push(("size", size.to_string().into_bytes()));
            header = header.octal(124, 12, 0);
        }
        for (key, flag, long) in [("path", b'L', name), ("linkpath", b'K', target)] {
            if long.len() <= 100 {
                continue;
            }
            if gnu {
                archive = archive.gnu_long(flag, long);
            } else {
                records.push((key, long.to_vec()));
            }
        }
        if !records.is_empty() {
            archive = archive.pax(&records);
        }
        self.archive = archive.header(&header).data(content);
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let (flag, target) = (char::from(flag), shown(target));
        let Metadata { mode, owner, mtime } = metadata;
        let dialect = if gnu { "gnu" } else { "pax" };
        self.story.push(format!("{flag} {} -> {target} {mode:o} {owner:?} {mtime} {size} {dialect}", shown(name)));
    }
}

/// A name without what readers drop.
fn clean(name: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = name.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    parts.join(&b'/')
}
