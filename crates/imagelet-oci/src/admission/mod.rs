//! Whether a pull has room on the store's file system, before its first layer byte.
//!
//! ```text
//! mod        decides, from what a pull puts on the disk and what the disk has: touches nothing
//! expansion  how much larger layers become, learned from those that are here
//! reservations     what running pulls have reserved, and how much of it the disk has by now
//! refusal_message      the arithmetic of a refusal
//! ```
//!
//! A pull's size on the disk is a guess until it is there: a manifest has only compressed sizes. So two numbers go
//! through everything here: what the guess expects, and the least that is certain.

mod expansion_ratio;
mod refusal_message;
mod reservations;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    expansion_ratio::Expansions,
    refusal_message::refusal,
    reservations::{Reservation, Reservations, WrittenBytes},
};
use crate::manifest::Compression;

/// When a pull is refused for want of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// When what it is expected to take unpacked does not fit.
    Strict,
    /// When not even what it takes compressed fits. A pull that may not fit by expectation alone asks for room, waits for
    /// other pulls, and then goes on.
    #[default]
    Compressed,
    /// Never; the disk decides.
    Off,
}

/// Bytes and inodes, as expected and as certain.
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

    /// What is still to come once so many bytes of it have written; inodes come with the bytes.
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

/// What a pull would put on the disk: layers that are not here and that no other pull brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) layers: usize,
    pub(crate) compressed: u64,
    pub(crate) amount: Amount,
    pub(crate) is_measured: bool,
    /// The compressed blobs are kept, too, and counted.
    pub(crate) keeps_blobs: bool,
}

/// What the disk has, and what of it is spoken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) free_bytes: u64,
    /// `None`: a file system without a table of inodes.
    pub(crate) free_inodes: Option<u64>,
    pub(crate) bytes_floor: u64,
    pub(crate) inodes_floor: u64,
    pub(crate) reserved: Amount,
    pub(crate) pulls: usize,
}

/// What becomes of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Fits,
    /// It may run out of room, if the guess is right; that refuses no pull.
    Uncertain(MissingSpace),
    Refused(MissingSpace),
}

/// What is missing; all zero would be nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingSpace {
    /// Until the expectation fits.
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    /// Until it is not refused any more.
    pub(crate) bytes_least: u64,
    pub(crate) inodes_least: u64,
}

pub(crate) fn decide(admission: Admission, demand: &Demand, space: &Space) -> Decision {
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
    // What is all here, or comes with another pull, takes no room of its own.
    if admission == Admission::Off || demand.layers == 0 || (missing.bytes == 0 && missing.inodes == 0) {
        Decision::Fits
    } else if missing.bytes_least > 0 || missing.inodes_least > 0 {
        Decision::Refused(missing)
    } else {
        Decision::Uncertain(missing)
    }
}

/// Whether it helps to wait for the other pulls to end: only what is guessed of them stands in the way.
pub(crate) fn helps_to_wait(admission: Admission, demand: &Demand, space: &Space) -> bool {
    let alone = Space { reserved: Amount::default(), pulls: 0, ..*space };
    let certain = Amount { bytes: space.reserved.bytes_min, inodes: space.reserved.inodes_min, ..space.reserved };
    let at_best = Space { reserved: certain, ..*space };
    space.pulls > 0
        && decide(admission, demand, &alone) == Decision::Fits
        && !matches!(decide(admission, demand, &at_best), Decision::Refused(_))
}
