//! A seal on our own JSON records: a changed byte anywhere in one is seen when it is read.
//!
//! ```text
//! {"sealed":1,…the record's own fields…,"check":"sha256:HEX"}
//! ```
//!
//! The digest covers every byte before `,"check"`. Readers skip the two fields as unknown ones, so older versions read
//! sealed records and this one reads unsealed ones. With two marks, one accident cannot make a sealed record look old.

use std::io;

use imagelet_core::image::Digest;
use serde::{Serialize, de::DeserializeOwned};

const HEAD: &[u8] = b"{\"sealed\":1,";
const CHECK: &[u8] = b",\"check\":\"sha256:";
const HEX: usize = 64;
const TAIL: &[u8] = b"\"}";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seal {
    Whole,
    Broken,
    None,
}

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

pub(crate) fn look(bytes: &[u8]) -> Seal {
    let length = CHECK.len() + HEX + TAIL.len();
    let (covered, check) = bytes.split_at(bytes.len().saturating_sub(length));
    let digits = check.strip_prefix(CHECK).and_then(|check| check.strip_suffix(TAIL));
    match (bytes.starts_with(HEAD), digits) {
        (true, Some(digits)) if digits == Digest::of(covered).hex().as_bytes() => Seal::Whole,
        (false, None) => Seal::None,
        _ => Seal::Broken,
    }
}

/// Reads a record. A broken seal is invalid data, as is a parse error.
pub(crate) fn open<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    if look(bytes) == Seal::Broken {
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
        assert_eq!(look(&whole), Seal::Whole);
        assert_eq!(open::<serde_json::Value>(&whole).expect("it reads")["count"], 10);
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(look(&flipped), Seal::Broken, "byte {at} bit {bit}");
            }
            let cut = &whole[..at];
            assert!(open::<serde_json::Value>(cut).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_record_from_before_there_were_seals_is_read() {
        let old = br#"{"version":1,"names":{}}"#;
        assert_eq!(look(old), Seal::None);
        assert_eq!(open::<serde_json::Value>(old).expect("it reads")["version"], 1);
    }
}
