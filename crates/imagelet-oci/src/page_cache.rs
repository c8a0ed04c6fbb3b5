//! When the kernel writes files back, and what large blobs leave in the page cache: little, so that they do not evict the
//! pages of pods.

use std::{fs::File, num::NonZeroU64, ops::Range};

use rustix::fs::{Advice, fadvise};

/// The write-back of a growing file starts each time after this many new bytes.
const WRITE_BACK_PERIOD: u64 = 4 << 20;
/// From this size on, the earlier pages of a blob are dropped from the page cache after their write-back.
const UNCACHED_MIN: u64 = 256 << 20;
/// The write-back of a whole file starts from this size on. For a smaller file, the call costs more than it gains.
const WHOLE_MIN: u64 = 32 << 10;
const PAGE: u64 = 4 << 10;

/// Starts the write-back of a whole file of `size` bytes. Unlike a sync, it writes no metadata, which the next files of
/// the same folders would change again.
pub(crate) fn start_write_back(file: &File, size: u64) {
    if size >= WHOLE_MIN {
        dont_need(file, 0, None);
    }
}

/// Starts the write-back of the new bytes of a growing file, and drops the earlier pages of a large file from the page
/// cache. Returns the offset that the next call takes as `written_back`.
pub(crate) fn write_back(file: &File, written_back: u64, length: u64) -> u64 {
    let Some(range) = due(written_back, length) else { return written_back };
    if let Some(size) = NonZeroU64::new(range.end - range.start) {
        dont_need(file, range.start, Some(size));
    }
    range.end
}

/// The kernel cannot drop a dirty page, but starts its write-back. Errors are ignored: the sync reports them.
fn dont_need(file: &File, offset: u64, size: Option<NonZeroU64>) {
    let _ = fadvise(file, offset, size, Advice::DontNeed);
}

/// The range whose new bytes are written back and whose earlier bytes are dropped. `None` if it is too early.
fn due(written_back: u64, length: u64) -> Option<Range<u64>> {
    let end = length - length % PAGE;
    if end.saturating_sub(written_back) < WRITE_BACK_PERIOD {
        return None;
    }
    // The write-back of the last calls is complete by now, so their bytes can be dropped.
    let start = if length >= UNCACHED_MIN { written_back.saturating_sub(4 * WRITE_BACK_PERIOD) } else { written_back };
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_written_each_period_and_dropped_of_large_files_alone() {
        const MIB: u64 = 1 << 20;
        for (written_back, length, range) in [
            (0, 4 * MIB - 1, None),
            (0, 4 * MIB, Some(0..4 * MIB)),
            (4 * MIB, 8 * MIB + 5, Some(4 * MIB..8 * MIB)),
            (4 * MIB, 7 * MIB, None),
            (252 * MIB, 256 * MIB, Some(236 * MIB..256 * MIB)),
            (0, 300 * MIB, Some(0..300 * MIB)),
            // A blob that was cut.
            (8 * MIB, 4 * MIB, None),
        ] {
            assert_eq!(due(written_back, length), range, "{written_back} of {length}");
        }
    }
}
