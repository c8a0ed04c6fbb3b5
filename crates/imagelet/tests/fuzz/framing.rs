//! Compressed layers: what a pull inflates is what reference decoders make of the same bytes, or an error.

use std::{io::Read as _, path::Path};

use imagelet_core::error::RuntimeErrorKind;

use super::{
    assert_short_message, fingerprint,
    gunzip::gunzip,
    mutation::{self, Dice},
};
use imagelet_oci::fuzzing::{Inflated, inflate_frames};

/// Inflated bytes that are allowed; some blocks, and soon reached.
const LIMIT: usize = 512 << 10;
/// What may have been handed on before the limit was seen.
const BLOCK: usize = 256 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const WORDS: [&[u8]; 8] = [
    b"\x1f\x8b\x08\0\0\0\0\0\0\xff",
    // An empty stored block, and an empty last one.
    b"\0\0\0\xff\xff",
    b"\x03\0\0\0\0\0\0\0\0\0",
    &ZSTD,
    // A skippable frame, an empty frame, frames with large windows.
    b"\x50\x2a\x4d\x18\x04\0\0\0skip",
    b"\x28\xb5\x2f\xfd\x20\0\x01\0\0",
    b"\x28\xb5\x2f\xfd\0\x88",
    b"\x28\xb5\x2f\xfd\0\x90",
];

/// Inflates in frames of two sizes, and compares.
pub(crate) fn check(bytes: &[u8], _: &Path) {
    let small = 1 + usize::try_from(fingerprint(bytes) % 50).expect("a small number");
    let (pieces, whole) = (run(bytes, small), run(bytes, bytes.len().max(1)));
    assert_eq!(pieces.outcome.is_ok(), whole.outcome.is_ok(), "frames of {small} bytes: {pieces:?}");
    let wanted = reference(bytes);
    match (&whole.outcome, wanted) {
        (Ok(()), Some(wanted)) => {
            assert!(pieces.bytes == wanted, "frames of {small} bytes change what comes out");
            assert!(whole.bytes == wanted, "what comes out is not what went in");
        }
        (Err(_), None) => {}
        (outcome, wanted) => {
            panic!("a pull says {outcome:?}, a reference decoder gives {:?} bytes", wanted.map(|bytes| bytes.len()))
        }
    }
}

fn run(bytes: &[u8], frame: usize) -> Inflated {
    let inflated = inflate_frames(bytes, frame, LIMIT as u64);
    assert_eq!(inflated.outcome.is_ok(), inflated.ended, "a broken stream looks whole: {:?}", inflated.outcome);
    assert!(inflated.bytes.len() <= LIMIT + BLOCK, "{} bytes got past the limit", inflated.bytes.len());
    if let Err(error) = &inflated.outcome {
        assert_short_message(error);
        assert!(matches!(error.kind(), RuntimeErrorKind::Corrupt | RuntimeErrorKind::Unacceptable), "{error:?}");
    }
    inflated
}

/// All the bytes there are; `None` where they are broken or too many.
fn reference(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.starts_with(&GZIP) {
        return gunzip(bytes, LIMIT);
    }
    if !bytes.starts_with(&ZSTD) && !matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]) {
        return (bytes.len() <= LIMIT).then(|| bytes.to_vec());
    }
    let mut streamed = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(bytes).ok()?;
    let whole = decoder.take(LIMIT as u64 + 1).read_to_end(&mut streamed).is_ok() && streamed.len() <= LIMIT;
    // The call for whole buffers knows no window and shares little with the one for streams; it alone always holds a
    // frame to the size it states.
    let at_once = zstd::bulk::decompress(bytes, LIMIT).ok().filter(|_| whole)?;
    assert!(at_once == streamed, "two ways to decode disagree");
    Some(at_once)
}

/// Changes bytes, or packs them again.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    match dice.below(12) {
        // Checksums keep changed bytes from being read far; unpacked and packed again they get through.
        0 => {
            if let Some(mut plain) = gunzip(bytes, LIMIT) {
                plain.truncate(super::INPUT_MAX / 2);
                mutation::change(&mut plain, dice, &[]);
                let level = flate2::Compression::new(u32::from(dice.byte() % 10));
                let mut packed = Vec::new();
                let read = flate2::read::GzEncoder::new(&plain[..], level).read_to_end(&mut packed);
                read.expect("memory holds all");
                *bytes = packed;
            }
        }
        1 => {
            let level = i32::from(dice.byte() % 8);
            let plain = &bytes[..bytes.len().min(super::INPUT_MAX / 2)];
            *bytes = zstd::encode_all(plain, level).expect("memory holds all");
        }
        2 => {
            let copy = bytes.clone();
            mutation::insert(bytes, 0, &copy);
        }
        _ => mutation::change(bytes, dice, &WORDS),
    }
}
