//! Admission: whether the store's file system has space for a pull, decided before its first layer byte.
//!
//! A manifest has only compressed sizes. So every amount here has two numbers: the estimate, and the certain minimum.

mod refusal_message;
mod reservations;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    refusal_message::refusal,
    reservations::{Reservation, Reservations, RunningPull, WrittenBytes},
};

use crate::manifest::Compression;

/// What a pull holds against others, and asks for at a time.
const STEP_SECONDS: u64 = 60;
const STEP_MIN: u64 = 64 << 20;
/// Packed bytes of a layer that say how it expands.
const MEASURED_MIN: u64 = 4 << 20;
/// The least free space of which a pull gets a part: more than what is queued before it is written.
const PART_MIN: u64 = 4 << 20;

/// When a pull is rejected for lack of space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
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
    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            bytes: of(self.bytes, other.bytes),
            bytes_min: of(self.bytes_min, other.bytes_min),
            inodes: of(self.inodes, other.inodes),
            inodes_min: of(self.inodes_min, other.inodes_min),
        }
    }

    #[must_use]
    pub(crate) fn min(self, most: Self) -> Self {
        self.each(most, u64::min)
    }

    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// The part that a pull needs next: what so many bytes a second write in a minute, and 64 MiB at least.
    #[must_use]
    pub(crate) fn step(self, rate: u64) -> Self {
        let bytes = rate.saturating_mul(STEP_SECONDS).max(STEP_MIN);
        self.with_bytes(self.bytes.min(bytes), self.bytes_min.min(bytes))
    }

    /// Of missing space: whether even the minimum is missing. Otherwise the pull runs out of space if the estimate is
    /// right, which rejects no pull.
    pub(crate) fn is_refusal(&self) -> bool {
        self.bytes_min > 0 || self.inodes_min > 0
    }

    /// Inodes change in proportion, and only down.
    fn with_bytes(self, bytes: u64, bytes_min: u64) -> Self {
        let share = |inodes: u64| {
            let left = u128::from(inodes) * u128::from(bytes) / u128::from(self.bytes.max(1));
            u64::try_from(left).unwrap_or(inodes).min(inodes)
        };
        Self { bytes, bytes_min, inodes: share(self.inodes), inodes_min: share(self.inodes_min) }
    }
}

/// What each layer uses beside its files: records, file list, folders.
const LAYER_BYTES: u64 = 64 << 10;
const LAYER_BYTES_MIN: u64 = 16 << 10;
const LAYER_INODES: u64 = 6;
const MARGIN_DIVISOR: u64 = 20;
const MEBIBYTE: u64 = 1 << 20;

/// The assumption, rather high: unpacked to packed bytes in thousandths, and inodes per packed MiB.
fn assumed(compression: Compression) -> (u64, u64) {
    match compression {
        Compression::None => (1_500, 48),
        Compression::Gzip => (3_000, 128),
        Compression::Zstd => (3_500, 160),
        Compression::Stored => (1_000, 1),
    }
}

/// Estimates a layer of `packed` bytes, unpacked, with its blob where blobs are kept.
pub(crate) fn expected(compression: Compression, packed: u64, keeps_blob: bool) -> Amount {
    let (thousandths, per_mebibyte) = assumed(compression);
    let blob = if keeps_blob { packed } else { 0 };
    Amount {
        bytes: scaled(packed, thousandths, 1_000).saturating_add(LAYER_BYTES).saturating_add(blob),
        bytes_min: packed.saturating_add(packed / MARGIN_DIVISOR).saturating_add(LAYER_BYTES_MIN + blob),
        inodes: scaled(packed, per_mebibyte, MEBIBYTE).saturating_add(LAYER_INODES),
        inodes_min: LAYER_INODES,
    }
}

fn scaled(value: u64, factor: u64, divisor: u64) -> u64 {
    let product = u128::from(value) * u128::from(factor);
    u64::try_from(product.div_ceil(u128::from(divisor))).unwrap_or(u64::MAX)
}

/// The state of a layer that is being fetched, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerBytes {
    pub(crate) packed: u64,
    /// Of the packed bytes.
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl LayerBytes {
    pub(crate) fn is_measured(self) -> bool {
        self.read >= MEASURED_MIN
    }
}

/// What a layer of this amount still writes. From [`MEASURED_MIN`] on, its own ratio replaces the estimate.
pub(crate) fn rest(amount: Amount, layer: LayerBytes) -> Amount {
    let LayerBytes { packed, read, written } = layer;
    if !layer.is_measured() {
        return amount.with_bytes(amount.bytes.saturating_sub(written), amount.bytes_min.saturating_sub(written));
    }
    let packed = packed.saturating_sub(read);
    let unpacked = u128::from(packed) * u128::from(written.max(read)) / u128::from(read);
    amount.with_bytes(u64::try_from(unpacked).unwrap_or(u64::MAX), packed)
}

/// The absent layers that no other pull brings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demand {
    pub(crate) layers: usize,
    pub(crate) compressed: u64,
    pub(crate) amount: Amount,
    /// The pull says by itself how its layers expand.
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
    /// The part of `reserved` that other tenants hold.
    pub(crate) others: Amount,
    pub(crate) pulls: usize,
}

impl Space {
    /// Space that no pull has reserved: what is free and what stays free, in bytes and in inodes.
    pub(crate) fn new((free_bytes, bytes_floor): (u64, u64), (free_inodes, inodes_floor): (Option<u64>, u64)) -> Self {
        let (reserved, others) = (Amount::default(), Amount::default());
        Self { free_bytes, free_inodes, bytes_floor, inodes_floor, reserved, others, pulls: 0 }
    }

    /// The most that one tenant holds against others: half of what is free.
    pub(crate) fn share_max(&self) -> Amount {
        let bytes = self.free_bytes.saturating_sub(self.bytes_floor) / 2;
        let inodes = self.free_inodes.map_or(u64::MAX, |free| free.saturating_sub(self.inodes_floor) / 2);
        Amount { bytes, bytes_min: bytes, inodes, inodes_min: inodes }
    }

    /// Bytes above the floor that no pull holds.
    pub(crate) fn usable(&self) -> u64 {
        self.free_bytes.saturating_sub(self.bytes_floor).saturating_sub(self.reserved.bytes)
    }
}

/// Compares demand and space: what is missing until the estimate fits, and as the minimum until the pull is not rejected.
/// `None`: the pull fits.
pub(crate) fn decide(admission: Admission, demand: &Demand, space: &Space) -> Option<Amount> {
    let all = demand.amount.plus(space.reserved);
    let least = if admission == Admission::Strict { (all.bytes, all.inodes) } else { (all.bytes_min, all.inodes_min) };
    let bytes_short = |bytes: u64| bytes.saturating_add(space.bytes_floor).saturating_sub(space.free_bytes);
    let inodes_short = |inodes: u64| {
        let wanted = inodes.saturating_add(space.inodes_floor);
        space.free_inodes.map_or(0, |free| wanted.saturating_sub(free))
    };
    let missing = Amount {
        bytes: bytes_short(all.bytes),
        inodes: inodes_short(all.inodes),
        bytes_min: bytes_short(least.0),
        inodes_min: inodes_short(least.1),
    };
    // Layers that are present or come with another pull need no space.
    let fits = admission == Admission::Off || demand.layers == 0 || (missing.bytes == 0 && missing.inodes == 0);
    (!fits).then_some(missing)
}

/// What has to fit into the free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Whole,
    /// The next step: a collection can free space for the others.
    Step,
    /// Some of it: whether the whole fits is only estimated, and the bytes of the pull say more.
    Part,
}

/// The bytes that a pull may write before it asks again; or what is missing for the whole and for the next step.
pub(crate) fn grant(
    admission: Admission,
    fit: Fit,
    (demand, whole): (&Demand, &Space),
    (step, now): (Amount, &Space),
) -> Result<u64, (Amount, Amount)> {
    let missing = decide(admission, demand, whole).filter(|_| fit == Fit::Whole);
    let missing_now = decide(admission, &Demand { amount: step, ..demand.clone() }, now);
    let usable = now.usable();
    match (missing, missing_now) {
        (None, None) => Ok(step.bytes),
        (_, Some(missing)) if fit == Fit::Part && missing.inodes_min == 0 && usable >= PART_MIN => Ok(usable / 2),
        // The disk decides.
        (_, Some(missing)) if fit == Fit::Part && !missing.is_refusal() => Ok(u64::MAX),
        (missing, missing_now) => {
            let now = missing_now.unwrap_or_default();
            Err((missing.unwrap_or(now), now))
        }
    }
}

/// Whether to wait for the other pulls to end: only their estimates prevent this pull. A pull that may proceed without
/// does not wait for other tenants.
pub(crate) fn helps_to_wait(admission: Admission, demand: &Demand, space: &Space) -> bool {
    let beside = |reserved| decide(admission, demand, &Space { reserved, ..*space });
    let stays = if admission == Admission::Strict { Amount::default() } else { space.others };
    let certain = Amount { bytes: space.reserved.bytes_min, inodes: space.reserved.inodes_min, ..space.reserved };
    space.pulls > 0 && beside(stays).is_none() && beside(certain).is_none_or(|missing| !missing.is_refusal())
}
