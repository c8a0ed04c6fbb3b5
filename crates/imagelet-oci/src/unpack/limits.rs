//! The limits of one layer, counted while the layer is written.

use imagelet_core::image::ByteSize;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rustix::{fd::BorrowedFd, fs::StatVfs};

use super::error::{Fault, UnpackErrorKind};

const BYTES_BETWEEN_CHECKS: u64 = 8 << 20;
const ENTRIES_BETWEEN_CHECKS: u64 = 1_000;

/// The limits of one layer. A value equal to its limit is permitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnpackLimits {
    pub(crate) entries_max: u64,
    /// Maximum sum of all file sizes, including holes.
    pub(crate) bytes_max: u64,
    pub(crate) header_max: usize,
    /// Maximum bytes of a path, and of a link's target.
    pub(crate) path_max: usize,
    pub(crate) depth_max: usize,
    pub(crate) ranges_max: usize,
    pub(crate) free_bytes_floor: u64,
    pub(crate) free_inodes_floor: u64,
}

impl Default for UnpackLimits {
    /// Limits large enough for any real image, and small enough for a node with 1 GiB of memory. The floors are zero.
    fn default() -> Self {
        UnpackLimits {
            entries_max: 2_000_000,
            bytes_max: 256 << 30,
            header_max: 1 << 20,
            path_max: 4096,
            depth_max: 512,
            ranges_max: 1 << 16,
            free_bytes_floor: 0,
            free_inodes_floor: 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Gauge<'a> {
    pub(crate) limits: UnpackLimits,
    root: BorrowedFd<'a>,
    cancelled: Arc<AtomicBool>,
    entries: u64,
    bytes: u64,
    unchecked_bytes: u64,
    unchecked_entries: u64,
}

impl<'a> Gauge<'a> {
    pub(crate) fn new(limits: UnpackLimits, root: BorrowedFd<'a>, cancelled: Arc<AtomicBool>) -> Self {
        // The first entry triggers a check, so that a full disk is reported before the first write.
        let unchecked_entries = ENTRIES_BETWEEN_CHECKS;
        Gauge { limits, root, cancelled, entries: 0, bytes: 0, unchecked_bytes: 0, unchecked_entries }
    }

    pub(crate) fn headers(&mut self, seen: u64) -> Result<(), Fault> {
        self.check_cancelled()?;
        let more = seen.saturating_sub(self.entries);
        self.entries = seen;
        if seen > self.limits.entries_max {
            return Err(Fault::limit(format!("more than {} entries", self.limits.entries_max)));
        }
        self.unchecked_entries += more;
        if self.unchecked_entries >= ENTRIES_BETWEEN_CHECKS { self.check_space(0) } else { Ok(()) }
    }

    /// Counts a file before it is written. `apparent` is its size; `stored` is its size without holes.
    pub(crate) fn file(&mut self, apparent: u64, stored: u64) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(apparent.max(stored));
        if self.bytes > self.limits.bytes_max {
            let limit = ByteSize(self.limits.bytes_max);
            return Err(Fault::limit(format!("files of more than {limit} in all")));
        }
        // Space for the rest of a large file may be freed during the write, so only the first part is checked now.
        if stored > BYTES_BETWEEN_CHECKS { self.check_space(BYTES_BETWEEN_CHECKS) } else { Ok(()) }
    }

    pub(crate) fn wrote(&mut self, bytes: usize) -> Result<(), Fault> {
        self.unchecked_bytes += bytes as u64;
        if self.unchecked_bytes >= BYTES_BETWEEN_CHECKS {
            self.check_space(0)?;
        }
        self.check_cancelled()
    }

    pub(crate) fn check_cancelled(&self) -> Result<(), Fault> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Fault::cancelled()) } else { Ok(()) }
    }

    fn check_space(&mut self, wanted: u64) -> Result<(), Fault> {
        self.unchecked_bytes = 0;
        self.unchecked_entries = 0;
        let disk = rustix::fs::fstatvfs(self.root).map_err(Fault::io("measure the disk for"))?;
        missing_space(&disk, &self.limits, wanted).map_or(Ok(()), |short| Err(Fault::new(UnpackErrorKind::Full, short)))
    }
}

fn missing_space(disk: &StatVfs, limits: &UnpackLimits, wanted: u64) -> Option<String> {
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let floor = limits.free_bytes_floor;
    if free < floor.saturating_add(wanted) {
        let wants = if wanted == 0 { String::new() } else { format!("{} wanted, ", ByteSize(wanted)) };
        return Some(format!("{wants}{} free, of which {} must stay free", ByteSize(free), ByteSize(floor)));
    }
    // A file system without an inode table, such as btrfs, reports zero inodes.
    let floor = limits.free_inodes_floor;
    let are_short = disk.f_files > 0 && disk.f_favail < floor;
    are_short.then(|| format!("{} inodes are free, {floor} must stay free", disk.f_favail))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd};

    use super::*;

    /// A gauge whose checks of the disk fail, after the one of the first entry.
    fn with_gauge(test: impl FnOnce(&mut Gauge<'_>)) {
        let folder = tempfile::tempdir().unwrap();
        let root = File::open(folder.path()).unwrap();
        let mut gauge = Gauge::new(UnpackLimits::default(), root.as_fd(), Arc::default());
        gauge.headers(1).unwrap();
        gauge.limits.free_bytes_floor = u64::MAX;
        test(&mut gauge);
    }

    #[test]
    fn the_disk_is_checked_each_thousand_entries() {
        with_gauge(|gauge| {
            for seen in [2, 500, 1_000] {
                gauge.headers(seen).unwrap();
            }
            gauge.headers(1_001).unwrap_err();
            gauge.limits.free_bytes_floor = 0;
            gauge.headers(2_001).unwrap();
            gauge.limits.free_bytes_floor = u64::MAX;
            gauge.headers(3_000).unwrap();
            gauge.headers(3_001).unwrap_err();
        });
    }

    #[test]
    fn the_disk_is_checked_each_8_mib_and_before_a_larger_file() {
        const EACH: usize = 8 << 20;
        with_gauge(|gauge| {
            gauge.wrote(EACH / 2).unwrap();
            gauge.wrote(EACH / 2 - 1).unwrap();
            gauge.wrote(1).unwrap_err();
            gauge.wrote(EACH - 1).unwrap();
            gauge.wrote(1).unwrap_err();
            gauge.file(0, EACH as u64).unwrap();
            gauge.file(0, EACH as u64 + 1).unwrap_err();
        });
    }

    #[test]
    fn a_layer_may_reach_each_bound() {
        with_gauge(|gauge| {
            gauge.limits.entries_max = 3;
            gauge.limits.bytes_max = 10;
            gauge.headers(3).unwrap();
            gauge.headers(4).unwrap_err();
            gauge.file(6, 2).unwrap();
            gauge.file(1, 4).unwrap();
            gauge.file(1, 0).unwrap_err();
        });
    }

    #[test]
    fn floors_hold_to_the_byte_and_to_the_inode() {
        let disk = |free: u64, inodes: u64, free_inodes: u64| StatVfs {
            f_bsize: 4096,
            f_frsize: 10,
            f_blocks: 1_000,
            f_bfree: 1_000,
            f_bavail: free,
            f_files: inodes,
            f_ffree: 1_000,
            f_favail: free_inodes,
            f_fsid: 0,
            f_flag: rustix::fs::StatVfsMountFlags::empty(),
            f_namemax: 255,
        };
        let limits = UnpackLimits { free_bytes_floor: 100, free_inodes_floor: 5, ..UnpackLimits::default() };
        for (disk, wanted, short) in [
            (disk(10, 50, 5), 0, None),
            (disk(9, 50, 5), 0, Some("90B free, of which 100B must stay free")),
            (disk(15, 50, 5), 50, None),
            (disk(15, 50, 5), 51, Some("51B wanted, 150B free, of which 100B must stay free")),
            (disk(10, 50, 4), 0, Some("4 inodes are free, 5 must stay free")),
            (disk(10, 0, 0), 0, None),
        ] {
            assert_eq!(missing_space(&disk, &limits, wanted).as_deref(), short, "{wanted}");
        }
    }
}
