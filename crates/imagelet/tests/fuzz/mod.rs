//! Fuzz targets: for each format from outside one check of any bytes and one mutator that knows the format.
//!
//! The binaries in `fuzz/` and the replay in `tests/fuzz_replay.rs` include these files. A check panics on a broken
//! invariant; a rejected input is never a finding.

mod answers;
mod archive;
mod artifacts;
mod blocks;
mod configuration;
mod containerd;
mod cri;
mod disk;
mod documents;
mod file_manifest;
mod framing;
mod gunzip;
mod import;
mod messages;
mod model;
mod mutation;
mod names;
mod policy;
mod registries;
mod state;
mod whiteouts;

use std::{error::Error, path::Path};

use self::mutation::Dice;

/// Longer inputs are cut: short ones find the same defects, and a run stays short.
pub(crate) const INPUT_MAX: usize = 64 << 10;
const MESSAGE_MAX: usize = 4096;

/// One format under test.
#[derive(Debug)]
pub(crate) struct Target {
    /// The binary in `fuzz/`, and the folder of its seeds.
    pub(crate) name: &'static str,
    check: fn(&[u8], &Path),
    mutate: fn(&mut Vec<u8>, &mut Dice),
    repair: fn(&mut [u8]),
}

/// All targets.
pub(crate) const TARGETS: [Target; 19] = [
    Target { name: "tar", check: archive::check, mutate: blocks::mutate, repair: blocks::repair },
    Target { name: "manifest", check: documents::check, mutate: documents::mutate, repair: leave },
    Target { name: "artifact", check: artifacts::check, mutate: artifacts::mutate, repair: artifacts::repair },
    Target { name: "framing", check: framing::check, mutate: framing::mutate, repair: gunzip::repair },
    Target { name: "whiteouts", check: whiteouts::check, mutate: whiteouts::mutate, repair: leave },
    Target { name: "reference", check: names::check_reference, mutate: names::mutate_reference, repair: leave },
    Target { name: "challenge", check: names::check_challenge, mutate: names::mutate_challenge, repair: leave },
    Target { name: "registries", check: registries::check, mutate: registries::mutate, repair: leave },
    Target { name: "policy", check: policy::check, mutate: policy::mutate, repair: leave },
    Target { name: "import", check: import::check, mutate: import::mutate, repair: import::repair },
    Target { name: "logins", check: answers::check_logins, mutate: answers::mutate_logins, repair: leave },
    Target { name: "plugins", check: answers::check_plugins, mutate: answers::mutate_plugins, repair: leave },
    Target { name: "tokens", check: answers::check_tokens, mutate: answers::mutate_tokens, repair: leave },
    Target { name: "records", check: state::check_records, mutate: state::mutate_records, repair: leave },
    Target { name: "ledger", check: state::check_ledger, mutate: state::mutate_ledger, repair: state::repair_ledger },
    Target { name: "decisions", check: state::check_decisions, mutate: state::mutate_decisions, repair: leave },
    Target { name: "configuration", check: configuration::check, mutate: configuration::mutate, repair: leave },
    Target { name: "cri", check: cri::check, mutate: cri::mutate, repair: leave },
    Target { name: "containerd", check: containerd::check, mutate: containerd::mutate, repair: leave },
];

impl Target {
    /// Checks one input. `folder` is the caller's, initially empty, and reusable.
    ///
    /// # Panics
    /// On a broken invariant: a finding.
    pub(crate) fn run(&self, bytes: &[u8], folder: &Path) {
        (self.check)(&bytes[..bytes.len().min(INPUT_MAX)], folder);
    }

    /// Mutates an input, deterministically for a seed.
    pub(crate) fn mutate(&self, bytes: &mut Vec<u8>, seed: u64) {
        (self.mutate)(bytes, &mut Dice::new(seed));
        bytes.truncate(INPUT_MAX);
        self.repair(bytes);
    }

    /// Corrects checksums that would end the parsing of a mutated input early.
    pub(crate) fn repair(&self, bytes: &mut [u8]) {
        (self.repair)(bytes);
    }
}

fn leave(_: &mut [u8]) {}

/// An error message fits a log line: bounded, and on one line.
fn assert_short_message(error: &dyn Error) {
    let mut cause = Some(error);
    while let Some(error) = cause {
        assert_short_text(&error.to_string());
        cause = error.source();
    }
}

fn assert_short_text(text: &str) {
    assert_bounded_text(text, MESSAGE_MAX);
}

fn assert_bounded_text(text: &str, length_max: usize) {
    assert!(text.len() <= length_max, "a message of {} bytes: {}", text.len(), &text[..text.floor_char_boundary(200)]);
    assert!(!text.contains(char::is_control), "a message with control characters: {text:?}");
}

/// A number that depends on all bytes, for choices within a check.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
