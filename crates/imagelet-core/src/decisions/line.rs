//! One line of a segment: a checksum, and a document that is compressed where it is long.
//!
//! ```text
//! CCCCCCCC {"act":…}        CRC-32 of what follows the mark, in hex; blank: the document as it is
//! CCCCCCCC~eJyrVkpU…        tilde: deflated, in base64
//! ```
//!
//! No document has a line end in it, so whoever comes upon damage goes on with the next line.

use std::io::{Read as _, Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use flate2::{Compression, Crc, read::ZlibDecoder, write::ZlibEncoder};
use serde::{Serialize, de::DeserializeOwned};

/// Documents shorter than this stay readable for `grep`.
const PLAIN_LENGTH_MAX: usize = 4096;
/// The longest document; the inputs of a hundred thousand images fit.
const DOCUMENT_LENGTH_MAX: u64 = 256 << 20;
/// Checksum and mark.
const PREFIX_LENGTH: usize = 9;

/// Writes a document as a line with its end.
pub(super) fn encode(document: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let plain = serde_json::to_vec(document).map_err(std::io::Error::other)?;
    let (mark, payload) = if plain.len() <= PLAIN_LENGTH_MAX {
        (b' ', plain)
    } else {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&plain)?;
        drop(plain);
        (b'~', STANDARD_NO_PAD.encode(encoder.finish()?).into_bytes())
    };
    let mut line = format!("{:08x}", checksum(&payload)).into_bytes();
    line.reserve(payload.len() + 2);
    line.push(mark);
    line.extend(payload);
    line.push(b'\n');
    Ok(line)
}

/// Reads a line without its end; `None`: it is damaged.
pub(super) fn decode<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let (prefix, payload) = line.split_at_checked(PREFIX_LENGTH)?;
    let told = u32::from_str_radix(std::str::from_utf8(&prefix[..PREFIX_LENGTH - 1]).ok()?, 16).ok()?;
    if told != checksum(payload) {
        return None;
    }
    match prefix[PREFIX_LENGTH - 1] {
        b' ' => serde_json::from_slice(payload).ok(),
        b'~' => {
            let mut plain = Vec::new();
            let packed = STANDARD_NO_PAD.decode(payload).ok()?;
            ZlibDecoder::new(packed.as_slice()).take(DOCUMENT_LENGTH_MAX).read_to_end(&mut plain).ok()?;
            serde_json::from_slice(&plain).ok()
        }
        _ => None,
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut checksum = Crc::new();
    checksum.update(bytes);
    checksum.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_documents_stay_readable_and_long_ones_are_packed() {
        let short = vec!["kept".to_owned()];
        let line = encode(&short).unwrap();
        assert!(line.ends_with(b" [\"kept\"]\n"), "{}", String::from_utf8_lossy(&line));
        assert_eq!(decode::<Vec<String>>(line.trim_ascii_end()), Some(short));
        let long: Vec<String> = (0..2000).map(|number| format!("image-{number}")).collect();
        let line = encode(&long).unwrap();
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
        assert!(line.len() < serde_json::to_vec(&long).unwrap().len() / 2);
        assert_eq!(decode::<Vec<String>>(&line[..line.len() - 1]), Some(long));
    }

    #[test]
    fn every_changed_byte_is_seen() {
        let line = encode(&["a pinned image", "stays"]).unwrap();
        let line = &line[..line.len() - 1];
        for place in 0..line.len() {
            for bit in 0..8 {
                let mut damaged = line.to_vec();
                damaged[place] ^= 1 << bit;
                // Hex digits may be written large, which changes nothing.
                if damaged.eq_ignore_ascii_case(line) && place < PREFIX_LENGTH - 1 {
                    continue;
                }
                assert_eq!(decode::<Vec<String>>(&damaged), None, "bit {bit} of byte {place}");
            }
            assert_eq!(decode::<Vec<String>>(&line[..place]), None, "cut at {place}");
        }
    }
}
