//! A second reader of gzip, which shares only raw inflating and the checksum with the one of a pull.

use flate2::{Crc, Decompress, FlushDecompress, Status};

/// Bits of a header's flags, and the one field after another that they announce.
const CHECKED: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;
/// Magic, method, flags, time, two more.
const FIXED: usize = 10;
/// Checksum and size.
const TRAILER: usize = 8;
/// Members that inflate to more are not mended.
const MENDED_MAX: usize = 256 << 10;
/// Bytes inflated at once.
const STEP: usize = 32 << 10;

/// All members, one after the other; `None` where a byte is wrong, missing or left over, or beyond the limit.
pub(crate) fn gunzip(mut bytes: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let member = member(bytes, limit - out.len())?;
        let trailer = bytes.get(member.data_end..member.data_end + TRAILER)?;
        if trailer != member.trailer {
            return None;
        }
        out.extend_from_slice(&member.data);
        bytes = &bytes[member.data_end + TRAILER..];
    }
    Some(out)
}

/// Makes the checksum and the size of each member right.
pub(crate) fn repair(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(member) = member(&bytes[at..], MENDED_MAX) {
        let trailer = at + member.data_end;
        let Some(place) = bytes.get_mut(trailer..trailer + TRAILER) else {
            return;
        };
        place.copy_from_slice(&member.trailer);
        at = trailer + TRAILER;
    }
}

struct Member {
    data: Vec<u8>,
    /// Where the raw data ends and the trailer begins.
    data_end: usize,
    /// What it has to be.
    trailer: [u8; TRAILER],
}

fn member(bytes: &[u8], limit: usize) -> Option<Member> {
    let start = header_length(bytes)?;
    let mut inflater = Decompress::new(false);
    let mut data = Vec::new();
    loop {
        let consumed = usize::try_from(inflater.total_in()).ok()?;
        let before = data.len();
        data.reserve(STEP);
        let status = inflater.decompress_vec(&bytes[start + consumed..], &mut data, FlushDecompress::None).ok()?;
        if data.len() > limit {
            return None;
        }
        if status == Status::StreamEnd {
            break;
        }
        if data.len() == before && usize::try_from(inflater.total_in()).ok()? == consumed {
            return None;
        }
    }
    let mut crc = Crc::new();
    crc.update(&data);
    let mut trailer = [0; TRAILER];
    trailer[..4].copy_from_slice(&crc.sum().to_le_bytes());
    trailer[4..].copy_from_slice(&crc.amount().to_le_bytes());
    Some(Member { data, data_end: start + usize::try_from(inflater.total_in()).ok()?, trailer })
}

fn header_length(bytes: &[u8]) -> Option<usize> {
    let fixed = bytes.get(..FIXED)?;
    let flags = fixed[3];
    // RFC 1952 wants an error where a reserved bit is set.
    if fixed[..3] != [0x1f, 0x8b, 8] || flags & RESERVED != 0 {
        return None;
    }
    let mut at = FIXED;
    if flags & EXTRA != 0 {
        let length = bytes.get(at..at + 2)?;
        at += 2 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            at += bytes.get(at..)?.iter().position(|&byte| byte == 0)? + 1;
        }
    }
    if flags & CHECKED != 0 {
        let mut crc = Crc::new();
        crc.update(bytes.get(..at)?);
        let stated = bytes.get(at..at + 2)?;
        if crc.sum().to_le_bytes()[..2] != *stated {
            return None;
        }
        at += 2;
    }
    (at <= bytes.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn members_are_read_to_the_last_byte() {
        let two = [gzip(b"first "), gzip(b"second")].concat();
        assert_eq!(gunzip(&two, 12).as_deref(), Some(&b"first second"[..]));
        assert_eq!(gunzip(&two, 11), None, "over the limit");
        for length in (1..two.len()).filter(|length| *length != gzip(b"first ").len()) {
            assert_eq!(gunzip(&two[..length], 100), None, "cut at {length}");
        }
        assert_eq!(gunzip(&[&two[..], b"x"].concat(), 100), None, "a byte left over");
    }

    #[test]
    fn a_wrong_checksum_is_refused_and_mended() {
        let mut bytes = [gzip(b"first"), gzip(b"second")].concat();
        let whole = bytes.clone();
        let end = bytes.len();
        bytes[end - 8..].fill(0);
        assert_eq!(gunzip(&bytes, 100), None);
        repair(&mut bytes);
        assert_eq!(bytes, whole);
    }
}
