//! Limits of one layer, counted while it is written.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rustix::fd::BorrowedFd;

use super::error::Fault;

const BYTES_BETWEEN_CHECKS: u64 = 8 << 20;
const ENTRIES_BETWEEN_CHECKS: u64 = 1_000;

/// Each bound is inclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnpackLimits {
    pub(crate) entries_max: u64,
    /// Sum of all file sizes, holes included.
    pub(crate) bytes_max: u64,
    pub(crate) header_max: usize,
    /// Also bounds a link's target.
    pub(crate) path_max: usize,
    pub(crate) depth_max: usize,
    pub(crate) ranges_max: usize,
    pub(crate) free_bytes_floor: u64,
    pub(crate) free_inodes_floor: u64,
}

impl Default for UnpackLimits {
    /// Wide enough for any real image, narrow enough for a node with 1 GiB of memory. No floors.
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
        // The first entry checks at once: a full disk is reported before the first write.
        let unchecked_entries = ENTRIES_BETWEEN_CHECKS;
        Gauge { limits, root, cancelled, entries: 0, bytes: 0, unchecked_bytes: 0, unchecked_entries }
    }

    /// Counts headers up to `seen`, the reader's count.
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

    /// Counts a file before it is written: `apparent` bytes long, of which `stored` take space.
    pub(crate) fn file(&mut self, apparent: u64, stored: u64) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(apparent.max(stored));
        if self.bytes > self.limits.bytes_max {
            return Err(Fault::limit(format!("files of more than {} bytes in all", self.limits.bytes_max)));
        }
        if stored > BYTES_BETWEEN_CHECKS { self.check_space(stored) } else { Ok(()) }
    }

    pub(crate) fn wrote(&mut self, bytes: usize) -> Result<(), Fault> {
        self.unchecked_bytes += bytes as u64;
        if self.unchecked_bytes >= BYTES_BETWEEN_CHECKS {
            self.check_space(0)?;
        }
        self.check_cancelled()
    }

    pub(crate) fn check_cancelled(&self) -> Result<(), Fault> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Fault::Cancelled) } else { Ok(()) }
    }

    /// Checks that the floors hold after `wanted` more bytes.
    fn check_space(&mut self, wanted: u64) -> Result<(), Fault> {
        self.unchecked_bytes = 0;
        self.unchecked_entries = 0;
        let disk = rustix::fs::fstatvfs(self.root).map_err(Fault::io("measure the disk for"))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let floor = self.limits.free_bytes_floor;
        if free < floor.saturating_add(wanted) {
            let wants = if wanted == 0 { String::new() } else { format!("{wanted} bytes are wanted, ") };
            return Err(Fault::Full(format!("{wants}{free} bytes are free, of which {floor} must stay free")));
        }
        // File systems without inode tables, such as btrfs, report zero of zero.
        let floor = self.limits.free_inodes_floor;
        if disk.f_files > 0 && disk.f_favail < floor {
            return Err(Fault::Full(format!("{} inodes are free, {floor} must stay free", disk.f_favail)));
        }
        Ok(())
    }
}
