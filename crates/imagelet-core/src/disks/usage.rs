//! How full a file system is, and what must go until it is full no further than wanted.

/// A file system without room, or one that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid capacity 0 on image filesystem")]
pub struct NoCapacity;

/// How full a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    capacity: u64,
    available: u64,
    is_cut: bool,
}

impl DiskUsage {
    /// Of one with this capacity and so much of it available; unknown is none, and more than all is all.
    ///
    /// # Errors
    /// Where there is no capacity.
    pub fn of(capacity: Option<u64>, available: Option<u64>) -> Result<Self, NoCapacity> {
        let (capacity, available) = (capacity.unwrap_or(0), available.unwrap_or(0));
        let is_cut = Self::cuts(capacity, available);
        if capacity == 0 { Err(NoCapacity) } else { Ok(Self { capacity, available: available.min(capacity), is_cut }) }
    }

    /// Whether more is said to be available than there is; told in the log, as the kubelet tells it.
    pub fn cuts(capacity: u64, available: u64) -> bool {
        let is_cut = available > capacity;
        if is_cut {
            tracing::info!(available, capacity, "Availability is larger than capacity");
        }
        is_cut
    }

    /// All there is.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What of it can be written.
    pub fn available(&self) -> u64 {
        self.available
    }

    /// Whether more was said to be available than there is.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The share in use, rounded up to the next percent, because what is available is cut.
    pub fn used_percent(&self) -> u8 {
        // 128 bits: a hundred times what is available overflows 64 above 92 PB.
        let free = u128::from(self.available) * 100 / u128::from(self.capacity);
        100 - u8::try_from(free.min(100)).unwrap_or(100)
    }

    /// What must go until no more than this share is in use. Below zero where more is free already.
    pub fn excess(&self, low_percent: u8) -> i128 {
        i128::from(self.capacity) * i128::from(100 - low_percent.min(100)) / 100 - i128::from(self.available)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_disks_do_not_overflow() {
        let full = DiskUsage::of(Some(u64::MAX), Some(u64::MAX / 10)).unwrap();
        assert_eq!(full.used_percent(), 91);
        assert!(full.excess(0) > i128::from(u64::MAX) / 2);
    }
}
