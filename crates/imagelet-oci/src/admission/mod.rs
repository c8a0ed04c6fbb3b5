//! Admission: whether the store's file system has space for a pull, decided before its first layer byte.
//!
//! A manifest has only compressed sizes. So every amount here has two numbers: the estimate, and the certain minimum.

mod expansion_ratio;
mod refusal_message;
mod reservations;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    expansion_ratio::{Expansions, Expected},
    refusal_message::refusal,
    reservations::{Reservation, Reservations, WrittenBytes},
};
use crate::manifest::Compression;

/// When a pull is rejected for lack of space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// When its estimated unpacked size does not fit.
    Strict,
    /// When not even its compressed size fits. A pull that fails only the estimate requests space, waits for other
    /// pulls, and then proceeds.
    #[default]
    Compressed,
    /// Never; the disk decides.
    Off,
}

/// Bytes and inodes, as estimated and as certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) bytes_min: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_min: u64,
}

impl Amount {
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            bytes_min: self.bytes_min.saturating_add(other.bytes_min),
            inodes: self.inodes.saturating_add(other.inodes),
            inodes_min: self.inodes_min.saturating_add(other.inodes_min),
        }
    }

    /// Inodes shrink in proportion.
    #[must_use]
    fn after(self, written: u64) -> Self {
        let bytes = self.bytes.saturating_sub(written);
        let share = |inodes: u64| {
            let left = u128::from(inodes) * u128::from(bytes) / u128::from(self.bytes.max(1));
            u64::try_from(left).unwrap_or(inodes)
        };
        Self {
            bytes,
            bytes_min: self.bytes_min.saturating_sub(written),
            inodes: share(self.inodes),
            inodes_min: share(self.inodes_min),
        }
    }
}

/// The absent layers that no other pull brings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demand {
    pub(crate) layers: usize,
    pub(crate) compressed: u64,
    pub(crate) amount: Amount,
    pub(crate) is_measured: bool,
    pub(crate) keeps_blobs: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) free_bytes: u64,
    /// `None`: a file system without an inode table.
    pub(crate) free_inodes: Option<u64>,
    pub(crate) bytes_floor: u64,
    pub(crate) inodes_floor: u64,
    pub(crate) reserved: Amount,
    pub(crate) pulls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingSpace {
    /// Until the estimate fits.
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    /// Until the pull is not rejected.
    pub(crate) bytes_least: u64,
    pub(crate) inodes_least: u64,
}

impl MissingSpace {
    /// Otherwise the pull runs out of space if the estimate is right, which rejects no pull.
    pub(crate) fn is_refusal(&self) -> bool {
        self.bytes_least > 0 || self.inodes_least > 0
    }
}

/// Compares demand and space. `None`: the pull fits.
pub(crate) fn decide(admission: Admission, demand: &Demand, space: &Space) -> Option<MissingSpace> {
    let (all, least) = (demand.amount.plus(space.reserved), admission != Admission::Strict);
    let bytes_short = |bytes: u64| bytes.saturating_add(space.bytes_floor).saturating_sub(space.free_bytes);
    let inodes_short = |inodes: u64| {
        let wanted = inodes.saturating_add(space.inodes_floor);
        space.free_inodes.map_or(0, |free| wanted.saturating_sub(free))
    };
    let missing = MissingSpace {
        bytes: bytes_short(all.bytes),
        inodes: inodes_short(all.inodes),
        bytes_least: bytes_short(if least { all.bytes_min } else { all.bytes }),
        inodes_least: inodes_short(if least { all.inodes_min } else { all.inodes }),
    };
    // Layers that are present or come with another pull need no space.
    let fits = admission == Admission::Off || demand.layers == 0 || (missing.bytes == 0 && missing.inodes == 0);
    (!fits).then_some(missing)
}

/// Whether to wait for the other pulls to end: only their estimates prevent this pull.
pub(crate) fn helps_to_wait(admission: Admission, demand: &Demand, space: &Space) -> bool {
    let alone = Space { reserved: Amount::default(), pulls: 0, ..*space };
    let certain = Amount { bytes: space.reserved.bytes_min, inodes: space.reserved.inodes_min, ..space.reserved };
    let at_best = Space { reserved: certain, ..*space };
    space.pulls > 0
        && decide(admission, demand, &alone).is_none()
        && decide(admission, demand, &at_best).is_none_or(|missing| !missing.is_refusal())
}
