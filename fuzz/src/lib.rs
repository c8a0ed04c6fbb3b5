//! What every target is made of: the input goes to the check of its name, mutated by libFuzzer and by the check's own
//! knowledge of its format in turn.

use std::{path::Path, sync::OnceLock};

pub use libfuzzer_sys;

#[path = "../../crates/imagelet/tests/fuzz/mod.rs"]
mod fuzz;

use fuzz::{TARGETS, Target};

/// Of so many mutations one is libFuzzer's own; the others know the format.
const FOREIGN_MUTATIONS: u32 = 3;

/// Makes the two functions libFuzzer calls.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::run($name, bytes));
        $crate::libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, size_max: usize, seed: u32| {
            $crate::mutate($name, data, size, size_max, seed)
        });
    };
}

/// Checks one input; a panic is a finding.
pub fn run(name: &str, bytes: &[u8]) {
    target(name).run(bytes, folder());
}

/// Changes one input in place; answers its new size.
pub fn mutate(name: &str, data: &mut [u8], size: usize, size_max: usize, seed: u32) -> usize {
    let target = target(name);
    let mut bytes = if seed.is_multiple_of(FOREIGN_MUTATIONS) {
        let size = libfuzzer_sys::fuzzer_mutate(data, size, size_max);
        let mut bytes = data[..size].to_vec();
        target.repair(&mut bytes);
        bytes
    } else {
        let mut bytes = data[..size].to_vec();
        target.mutate(&mut bytes, seed.into());
        bytes
    };
    bytes.truncate(size_max.min(data.len()));
    data[..bytes.len()].copy_from_slice(&bytes);
    bytes.len()
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect("each binary is called as a target")
}

/// Where unpackers may write: memory, so that no disk is worn.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<std::path::PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new("/dev/shm").join(format!("imagelet-fuzz-{}", std::process::id()));
        // One that is there was left by an earlier process of the same number.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).expect("memory takes a folder");
        // Names such as `/proc/self/cwd/host` lead to what must not be touched.
        std::env::set_current_dir(&folder).expect("the folder was just made");
        folder
    })
}
