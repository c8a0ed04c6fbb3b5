//! What large files leave in the page cache: little, so that they do not evict the pages of pods.

use std::{fs::File, num::NonZeroU64, ops::Range};

use rustix::fs::{Advice, fadvise};

/// The kernel starts to write a file to the disk each time after this many bytes.
const WRITE_BACK_PERIOD: u64 = 4 << 20;
/// From this size on, the earlier pages of a blob leave the page cache once the disk has them.
const UNCACHED_MIN: u64 = 256 << 20;
/// So many of the newest bytes of a layer's file stay in the page cache: the early syncs have written the others.
const CACHED_MAX: u64 = 256 << 20;
const DROP_PERIOD: u64 = 16 << 20;
const PAGE: u64 = 4 << 10;

/// Starts to write the newest bytes of a growing file to the disk, and removes earlier ones of a large file from the page
/// cache. `written_back`: where the last call ended. Returns where this one ends.
pub(crate) fn write_back(file: &File, written_back: u64, length: u64) -> u64 {
    let Some(range) = due(written_back, length) else { return written_back };
    if let Some(size) = NonZeroU64::new(range.end - range.start) {
        // The kernel cannot drop a dirty page, and starts to write it. Only a hint: the sync reports errors.
        let _ = fadvise(file, range.start, Some(size), Advice::DontNeed);
    }
    range.end
}

/// Removes the earlier bytes of a growing file from the page cache. `dropped`: where the last call ended. Returns where
/// this one ends.
///
/// Starts no write-back of its own as long as the early syncs keep up: in the thread that unpacks, it cost a large pull a
/// twentieth of its time.
pub(crate) fn drop_written(file: &File, dropped: u64, length: u64) -> u64 {
    let Some(range) = droppable(dropped, length) else { return dropped };
    let _ = fadvise(file, range.start, NonZeroU64::new(range.end - range.start), Advice::DontNeed);
    range.end
}

fn droppable(dropped: u64, length: u64) -> Option<Range<u64>> {
    let end = length.checked_sub(CACHED_MAX)?;
    let end = end - end % PAGE;
    (end.saturating_sub(dropped) >= DROP_PERIOD).then_some(dropped..end)
}

/// The bytes that the kernel should write, or drop where it has written them.
fn due(written_back: u64, length: u64) -> Option<Range<u64>> {
    let end = length - length % PAGE;
    if end.saturating_sub(written_back) < WRITE_BACK_PERIOD {
        return None;
    }
    // What the last calls have started to write is on the disk by now.
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

    #[test]
    fn of_a_file_the_newest_bytes_stay_and_earlier_ones_go_in_pieces() {
        const MIB: u64 = 1 << 20;
        for (dropped, length, range) in [
            (0, 255 * MIB, None),
            (0, 272 * MIB - 1, None),
            (0, 272 * MIB + 5, Some(0..16 * MIB)),
            (16 * MIB, 280 * MIB, None),
            (16 * MIB, 400 * MIB, Some(16 * MIB..144 * MIB)),
        ] {
            assert_eq!(droppable(dropped, length), range, "{dropped} of {length}");
        }
    }
}
