//! Gives memory back to the kernel that a process at rest does not need.
//!
//! An idle daemon is mostly pages of its own program that only its start has used, and heap that its last work has left
//! behind. Neither can be bounded or given back without calls that Rust has no safe form of: they are here, and nowhere else.

use std::{fs, io};

/// A file of mappings longer than this is not ours to understand.
const MAPPINGS_SIZE_MAX: usize = 4 << 20;

/// Heaps of the C library for all threads together; it makes eight for each processor otherwise, and each keeps its own scraps.
#[cfg(target_env = "gnu")]
const HEAPS_MAX: libc::c_int = 4;
/// Pieces from this size on are mapped one by one and go back when they are free: the window of a decompressor, not the
/// blocks that a pull recycles. Left to itself the C library raises this with each such piece it frees.
#[cfg(target_env = "gnu")]
const MAPPED_MIN: libc::c_int = 1 << 20;
/// Free memory that the end of a heap may keep.
#[cfg(target_env = "gnu")]
const KEPT_MAX: libc::c_int = 2 << 20;

/// A heap grows by this much: each time costs a call, and what is not used takes no memory.
#[cfg(target_env = "gnu")]
const GROWTH: libc::c_int = 1 << 20;

/// Bounds what the heap keeps for later; to be called before the first thread starts.
pub fn bound_heap() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, HEAPS_MAX),
        (libc::M_MMAP_THRESHOLD, MAPPED_MIN),
        (libc::M_TRIM_THRESHOLD, KEPT_MAX),
        (libc::M_TOP_PAD, GROWTH),
    ] {
        // SAFETY: `mallopt` takes two numbers and locks the heap itself; an unknown parameter is refused with 0.
        unsafe {
            libc::mallopt(parameter, value);
        }
    }
}

/// Gives free heap and the pages of program files back.
///
/// What is given back is read again when it is touched: program pages from their files, which costs a page fault each.
/// Answers the bytes of program files that were offered to the kernel, which takes what nobody else uses.
///
/// # Errors
/// When `/proc` cannot be read. That the kernel refuses an offer is no error: it is advice.
pub fn give_back() -> io::Result<usize> {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` has no preconditions; it locks the heaps itself and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
    let text = fs::read_to_string("/proc/self/maps")?;
    if text.len() > MAPPINGS_SIZE_MAX {
        return Err(io::Error::other("the list of mappings is too long"));
    }
    let mut offered = 0;
    for Mapping { start, length } in text.lines().filter_map(program_mapping) {
        // SAFETY: the advice changes no byte that the process can see. The range is of a private mapping of a file that is
        // not writable, so all its pages can be read again from the file; were it gone meanwhile, the call would answer
        // ENOMEM, and were something else mapped there, its pages would be written out and read again.
        let advised = unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_PAGEOUT) };
        if advised == 0 {
            offered += length;
        }
    }
    Ok(offered)
}

/// The resident memory of this process in bytes, program files included.
///
/// # Errors
/// When `/proc` cannot be read or says something else.
pub fn resident() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let kilobytes =
        text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| io::Error::other("/proc does not tell the resident memory"))
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    length: usize,
}

/// A line of `/proc/self/maps`, if it maps a file privately and read-only: the program or a library.
fn program_mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let access = words.next()?;
    let path = words.nth(3)?;
    if !matches!(access, "r-xp" | "r--p") || !path.starts_with('/') {
        return None;
    }
    let start = usize::from_str_radix(start, 16).ok()?;
    let length = usize::from_str_radix(end, 16).ok()?.checked_sub(start)?;
    Some(Mapping { start, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_read_only_mappings_of_files_are_offered() {
        let code = "55d0c0a00000-55d0c0b00000 r-xp 00100000 fe:00 123   /usr/bin/imagelet";
        assert_eq!(program_mapping(code), Some(Mapping { start: 0x55d0_c0a0_0000, length: 1 << 20 }));
        for line in [
            "55d0c0a00000-55d0c0b00000 rw-p 00100000 fe:00 123   /usr/bin/imagelet",
            "55d0c0a00000-55d0c0b00000 r--s 00100000 fe:00 123   /var/cache/shared",
            "7f0000000000-7f0000100000 rw-p 00000000 00:00 0 ",
            "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0     [stack]",
            "7ffd00100000-7ffd00102000 r-xp 00000000 00:00 0     [vdso]",
            "55d0c0b00000-55d0c0a00000 r-xp 00100000 fe:00 123   /usr/bin/imagelet",
            "nonsense",
            "",
        ] {
            assert_eq!(program_mapping(line), None, "{line}");
        }
    }

    #[test]
    fn a_process_goes_on_with_all_it_had() {
        bound_heap();
        let kept: Vec<Vec<u8>> = (0_u8..200).map(|byte| vec![byte; 10_000]).collect();
        drop((0..200).map(|_| vec![1_u8; 10_000]).collect::<Vec<_>>());
        assert!(resident().expect("/proc is there") > 1 << 20);
        let offered = give_back().expect("/proc is there");
        assert!(offered > 0, "a process has a program");
        assert!(kept.iter().zip(0_u8..).all(|(bytes, byte)| bytes.iter().all(|found| *found == byte)));
    }
}
