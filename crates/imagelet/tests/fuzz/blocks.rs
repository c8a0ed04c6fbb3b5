//! Mutates tar archives as sequences of entries, and keeps the checksums of their headers right.

use std::ops::Range;

use super::mutation::{self, Dice};

const BLOCK: usize = 512;
/// The fields of a header: where, and how long.
const NAME: Range<usize> = 0..100;
const SIZE: Range<usize> = 124..136;
const CHECKSUM: Range<usize> = 148..156;
const FLAG: usize = 156;
const LINK: Range<usize> = 157..257;
const NUMBERS: [Range<usize>; 8] = [100..108, 108..116, 116..124, SIZE, 136..148, 329..337, 337..345, 483..495];
const FLAGS: &[u8] = b"0000125551234567SxgLKVM\0";
const MAGICS: [&[u8]; 4] = [b"ustar\x0000", b"ustar  \0", b"\0\0\0\0\0\0\0\0", b"ustar\0\0\0"];
const NAMES: [&[u8]; 25] = [
    b"a",
    b"b",
    b"a/b",
    b"b/a",
    b"a/b/c",
    b"./",
    b".",
    b"/",
    b"",
    b"..",
    b"../host/secret",
    b"a/../../host/dir",
    b"/proc/self/cwd/host/secret",
    b"/proc/self/cwd/host/dir",
    b"a/secret",
    b"a/dir/file",
    b".wh.a",
    b"a/.wh.b",
    b".wh..wh..opq",
    b"a/.wh..wh..opq",
    b".wh.",
    b".wh...",
    b".wh..wh.plnk",
    b"././@LongLink",
    b"a//b/",
];
const VALUES: [u64; 12] = [0, 1, 2, 255, 511, 512, 513, 1024, 0o7777, 0o4755, 0o77_777_777_777, u64::MAX];
const RECORDS: [&[&[u8]]; 14] = [
    &[b"path=a/b"],
    &[b"path=../host/secret"],
    &[b"linkpath=../host"],
    &[b"size=0"],
    &[b"size=512"],
    &[b"size=-1"],
    &[b"uid=4294967295", b"gid=1000"],
    &[b"mtime=1.5", b"atime=-99999999999.9"],
    &[b"SCHILY.xattr.user.a=b"],
    &[b"SCHILY.xattr.trusted.overlay.opaque=y", b"SCHILY.xattr.security.capability=a"],
    &[b"LIBARCHIVE.xattr.user%2Eoverlay.redirect=L2V0Yw"],
    &[b"GNU.sparse.size=9", b"GNU.sparse.numblocks=1", b"GNU.sparse.map=0,1"],
    &[b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"GNU.sparse.realsize=9", b"GNU.sparse.name=a"],
    &[b"GNU.sparse.numblocks=1", b"GNU.sparse.offset=4", b"GNU.sparse.numbytes=1"],
];

/// Changes entries, their fields, or plain bytes.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..=dice.below(4) {
        let entries = entries(bytes);
        if entries.is_empty() || dice.below(8) == 0 {
            mutation::change(bytes, dice, &NAMES);
            continue;
        }
        let entry = entries[dice.below(entries.len())].clone();
        let other = entries[dice.below(entries.len())].clone();
        let start = entry.start;
        match dice.below(11) {
            0 => {
                let copy = bytes[entry].to_vec();
                mutation::insert(bytes, other.start, &copy);
            }
            1 => drop(bytes.drain(entry)),
            2 => bytes[start + FLAG] = FLAGS[dice.below(FLAGS.len())],
            3 => put(bytes, start, NAME, dice.pick(&NAMES)),
            4 => put(bytes, start, LINK, dice.pick(&NAMES)),
            5 => {
                let name = bytes[other.start..][NAME].to_vec();
                let field = if dice.below(2) == 0 { NAME } else { LINK };
                put(bytes, start, field, &name);
            }
            6 => {
                let field = NUMBERS[dice.below(NUMBERS.len())].clone();
                let number = number(dice, field.len());
                put(bytes, start, field, &number);
            }
            7 => put(bytes, start, 257..265, dice.pick(&MAGICS)),
            8 => {
                let record = pax(dice.pick(&RECORDS), if dice.below(6) == 0 { b'g' } else { b'x' });
                mutation::insert(bytes, start, &record);
            }
            9 => {
                let header = header(FLAGS[dice.below(FLAGS.len())], dice.pick(&NAMES), dice.pick(&NAMES), 0);
                mutation::insert(bytes, start, &header);
            }
            _ => {
                let at = start + dice.below(entry.len());
                bytes[at] = dice.byte();
            }
        }
    }
}

/// Makes the checksum of each header right.
pub(crate) fn repair(bytes: &mut [u8]) {
    for entry in entries(bytes) {
        seal(&mut bytes[entry.start..entry.start + BLOCK]);
    }
}

/// A ustar header with its checksum.
pub(crate) fn header(flag: u8, name: &[u8], link: &[u8], mtime: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    put(&mut block, 0, NAME, name);
    put(&mut block, 0, LINK, link);
    put(&mut block, 0, 100..108, if flag == b'5' { b"0000755" } else { b"0000644" });
    put(&mut block, 0, 108..124, b"0000000\x000000000");
    put(&mut block, 0, 136..148, format!("{mtime:011o}").as_bytes());
    put(&mut block, 0, 257..265, MAGICS[0]);
    block[FLAG] = flag;
    seal(&mut block);
    block
}

/// A header with data behind it.
pub(crate) fn file(flag: u8, name: &[u8], data: &[u8], mtime: u64) -> Vec<u8> {
    let mut block = header(flag, name, b"", mtime);
    put(&mut block, 0, SIZE, format!("{:011o}", data.len()).as_bytes());
    seal(&mut block);
    block.extend_from_slice(data);
    block.resize(block.len().next_multiple_of(BLOCK), 0);
    block
}

fn pax(records: &[&[u8]], flag: u8) -> Vec<u8> {
    let mut text = Vec::new();
    for record in records {
        let rest = record.len() + 2;
        let digits = (1..5).find(|digits| (rest + digits).to_string().len() == *digits).unwrap_or(1);
        text.extend_from_slice(&[format!("{} ", rest + digits).as_bytes(), record, b"\n"].concat());
    }
    file(flag, b"PaxHeaders/x", &text, 0)
}

/// Where entries lie: each header with its data. Reads sizes as leniently as it can.
fn entries(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + BLOCK <= bytes.len() {
        let block = &bytes[at..at + BLOCK];
        if block.iter().all(|&byte| byte == 0) {
            at += BLOCK;
            continue;
        }
        let size = if matches!(block[FLAG], b'1'..=b'6') { 0 } else { octal(&block[SIZE]) };
        let end = size.next_multiple_of(BLOCK).saturating_add(at + BLOCK);
        let end = if end > bytes.len() { at + BLOCK } else { end };
        found.push(at..end);
        at = end;
    }
    found
}

fn octal(field: &[u8]) -> usize {
    let digits = field.iter().skip_while(|byte| **byte == b' ').take_while(|byte| (b'0'..=b'7').contains(byte));
    digits.fold(0, |value: usize, digit| value.saturating_mul(8).saturating_add(usize::from(digit - b'0'))) & 0xf_ffff
}

fn number(dice: &mut Dice, width: usize) -> Vec<u8> {
    let value = VALUES[dice.below(VALUES.len())];
    if dice.below(4) > 0 {
        let digits = width - 1;
        return format!("{value:0digits$o}").into_bytes();
    }
    let mut field = vec![if dice.below(4) == 0 { 0xff } else { 0x80 }; 1];
    field.resize(width.saturating_sub(8), 0);
    field.extend_from_slice(&value.to_be_bytes());
    field.truncate(width);
    field
}

fn put(bytes: &mut [u8], start: usize, field: Range<usize>, text: &[u8]) {
    let field = &mut bytes[start..][field];
    let length = text.len().min(field.len());
    field.fill(0);
    field[..length].copy_from_slice(&text[..length]);
}

fn seal(block: &mut [u8]) {
    block[CHECKSUM].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_and_mended() {
        let parts = [file(b'0', b"a", &[1; 600], 0), header(b'5', b"b", b"", 0), vec![0; 1024]];
        let whole = parts.concat();
        assert_eq!(entries(&whole), [0..1536, 1536..2048]);
        let mut broken = whole.clone();
        broken[CHECKSUM].fill(b'7');
        broken[1536..][CHECKSUM].fill(b'7');
        repair(&mut broken);
        assert_eq!(broken, whole);
    }

    #[test]
    fn a_seed_decides_a_mutation() {
        let archive = [file(b'0', b"a", b"1", 0), header(b'5', b"b", b"", 0)].concat();
        let mutated = |seed| {
            let mut bytes = archive.clone();
            mutate(&mut bytes, &mut Dice::new(seed));
            bytes
        };
        assert!((0..100).all(|seed| mutated(seed) == mutated(seed)));
        assert!((0..100).filter(|seed| mutated(*seed) != archive).count() > 90);
    }
}
