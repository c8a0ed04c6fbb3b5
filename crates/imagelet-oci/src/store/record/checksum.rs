//! The checksum of the store's JSON records. It reveals any changed byte of a record.
//!
//! ```text
//! {"sealed":1,…the record's own fields…,"check":"sha256:HEX"}
//! ```
//!
//! The digest covers every byte before `,"check"`. The marks `sealed` and `check` show that a record has a checksum.
//! Damage to one mark leaves the other, so the record is rejected. A record with neither mark is not checked.

use std::io;

use imagelet_core::image::Digest;
use serde::{Serialize, de::DeserializeOwned};

const HEAD: &[u8] = b"{\"sealed\":1,";
const CHECK: &[u8] = b",\"check\":\"sha256:";
const HEX: usize = 64;
const TAIL: &[u8] = b"\"}";

pub(crate) fn seal<T: Serialize>(record: &T) -> Vec<u8> {
    let plain = serde_json::to_vec(record).expect("a record is JSON");
    let fields = plain.strip_prefix(b"{").and_then(|plain| plain.strip_suffix(b"}")).expect("a record is an object");
    let mut bytes = [HEAD, fields].concat();
    let digest = Digest::of(&bytes);
    bytes.extend_from_slice(CHECK);
    bytes.extend_from_slice(digest.hex().as_bytes());
    bytes.extend_from_slice(TAIL);
    bytes
}

fn is_broken(bytes: &[u8]) -> bool {
    let length = CHECK.len() + HEX + TAIL.len();
    let (covered, check) = bytes.split_at(bytes.len().saturating_sub(length));
    match check.strip_prefix(CHECK).and_then(|check| check.strip_suffix(TAIL)) {
        Some(digits) => !bytes.starts_with(HEAD) || digits != Digest::of(covered).hex().as_bytes(),
        None => bytes.starts_with(HEAD),
    }
}

pub(crate) fn open<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    if is_broken(bytes) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not what was written: its check does not hold"));
    }
    serde_json::from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_or_missing_byte_breaks_a_seal() {
        let whole = seal(&serde_json::json!({ "names": { "a": "b" }, "count": 10 }));
        assert!(!is_broken(&whole));
        assert_eq!(open::<serde_json::Value>(&whole).expect("it reads")["count"], 10);
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert!(is_broken(&flipped), "byte {at} bit {bit}");
            }
            let cut = &whole[..at];
            assert!(open::<serde_json::Value>(cut).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_record_without_a_seal_is_read() {
        let old = br#"{"version":1,"names":{}}"#;
        assert!(!is_broken(old));
        assert_eq!(open::<serde_json::Value>(old).expect("it reads")["version"], 1);
    }
}
