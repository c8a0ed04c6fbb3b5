//! Usage of a file system, and the bytes to reclaim to reach a wanted share.

/// The file system has no capacity, or its capacity is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid capacity 0 on image filesystem")]
pub struct NoCapacity;

/// Capacity and available bytes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    capacity: u64,
    available: u64,
    is_cut: bool,
}

impl DiskUsage {
    /// Unknown values count as zero; available bytes above the capacity are cut to it.
    ///
    /// # Errors
    /// When the capacity is zero or unknown.
    pub fn of(capacity: Option<u64>, available: Option<u64>) -> Result<Self, NoCapacity> {
        let (capacity, available) = (capacity.unwrap_or(0), available.unwrap_or(0));
        let is_cut = Self::cuts(capacity, available);
        if capacity == 0 { Err(NoCapacity) } else { Ok(Self { capacity, available: available.min(capacity), is_cut }) }
    }

    /// Whether the reported available bytes exceed the capacity; the kubelet logs this case.
    pub fn cuts(capacity: u64, available: u64) -> bool {
        let is_cut = available > capacity;
        if is_cut {
            tracing::info!(available, capacity, "Availability is larger than capacity");
        }
        is_cut
    }

    /// Total bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Writable bytes.
    pub fn available(&self) -> u64 {
        self.available
    }

    /// Whether the reported available bytes exceeded the capacity.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The share in use, rounded up to the next percent, because the available share is truncated.
    pub fn used_percent(&self) -> u8 {
        // 100 times the available bytes overflows 64 bits above 92 PB.
        let free = u128::from(self.available) * 100 / u128::from(self.capacity);
        100 - u8::try_from(free.min(100)).unwrap_or(100)
    }

    /// Bytes to reclaim until at most this share is in use; negative below that share.
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
