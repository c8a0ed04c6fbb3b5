//! Admission: whether the store's file system has space for a pull, decided before its first layer byte.

mod refusal_message;
mod reservations;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    refusal_message::refusal,
    reservations::{Reservation, Reservations, RunningPull, WriteGate, WrittenBytes},
};

use self::reservations::GRANT_MIN;
use crate::manifest::Compression;

/// A pull reserves space step by step. A step is the bytes that the pull writes in one minute, but at least 64 MiB.
const STEP_SECONDS: u64 = 60;
const STEP_MIN: u64 = 64 << 20;
/// Once this many compressed bytes of a layer are read, its measured expansion ratio replaces the assumed ratio.
const MEASURED_MIN: u64 = 4 << 20;
/// A pull gets a grant for a part of its step only if this much is free. The queues of a layer hold fewer bytes.
const PART_MIN: u64 = 4 << 20;

/// The condition under which a pull is rejected for lack of space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// A pull is rejected if the estimated unpacked size of its layers does not fit.
    Strict,
    /// A pull is rejected if the compressed size of its layers does not fit. If only the estimate does not fit, the
    /// pull requests space, waits for other pulls, and then proceeds.
    #[default]
    Compressed,
    /// No pull is rejected. Writes fail when the disk is full.
    Off,
}

/// Needed bytes and inodes: a certain minimum (`_min`), and an estimate, because a manifest has only compressed sizes.
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

    /// The part of this amount that is the pull's next step. The pull writes `rate` bytes per second.
    #[must_use]
    pub(crate) fn step(self, rate: u64) -> Self {
        let bytes = rate.saturating_mul(STEP_SECONDS).max(STEP_MIN);
        self.with_bytes(self.bytes.min(bytes), self.bytes_min.min(bytes))
    }

    /// Whether this missing space rejects the pull: a part of the minimum is missing, not only of the estimate.
    pub(crate) fn is_refusal(&self) -> bool {
        self.bytes_min > 0 || self.inodes_min > 0
    }

    /// Replaces the bytes. The inodes shrink in proportion to the bytes, and never grow.
    fn with_bytes(self, bytes: u64, bytes_min: u64) -> Self {
        let share = |inodes: u64| {
            let left = u128::from(inodes) * u128::from(bytes) / u128::from(self.bytes.max(1));
            u64::try_from(left).unwrap_or(inodes).min(inodes)
        };
        Self { bytes, bytes_min, inodes: share(self.inodes), inodes_min: share(self.inodes_min) }
    }
}

/// The space that each layer needs in addition to its files: records, file list, folders.
const LAYER_BYTES: u64 = 64 << 10;
const LAYER_BYTES_MIN: u64 = 16 << 10;
const LAYER_INODES: u64 = 6;
/// The inodes that one file of an artifact needs, with the folders in its path.
const FILE_INODES: u64 = 16;
const MARGIN_DIVISOR: u64 = 20;
const MEBIBYTE: u64 = 1 << 20;

/// Returns unpacked bytes per 1000 compressed bytes, and inodes per compressed MiB. Both are assumed, rather too high.
fn assumed(compression: Compression) -> (u64, u64) {
    match compression {
        Compression::None => (1_500, 48),
        Compression::Gzip => (3_000, 128),
        Compression::Zstd => (3_500, 160),
        Compression::Stored => (1_000, 0),
    }
}

/// The space for a layer of `packed` compressed bytes, plus its blob if `keeps_blob`. A stored file is its own blob.
pub(crate) fn expected(compression: Compression, packed: u64, keeps_blob: bool) -> Amount {
    let (thousandths, per_mebibyte) = assumed(compression);
    let is_stored = compression == Compression::Stored;
    let blob = if keeps_blob && !is_stored { packed } else { 0 };
    let (margin, own_inodes) = if is_stored { (0, FILE_INODES) } else { (packed / MARGIN_DIVISOR, 0) };
    Amount {
        bytes: scaled(packed, thousandths, 1_000).saturating_add(LAYER_BYTES).saturating_add(blob),
        bytes_min: packed.saturating_add(margin).saturating_add(LAYER_BYTES_MIN + blob),
        inodes: scaled(packed, per_mebibyte, MEBIBYTE).saturating_add(LAYER_INODES + own_inodes),
        inodes_min: LAYER_INODES,
    }
}

fn scaled(value: u64, factor: u64, divisor: u64) -> u64 {
    let product = u128::from(value) * u128::from(factor);
    u64::try_from(product.div_ceil(u128::from(divisor))).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerBytes {
    pub(crate) packed: u64,
    pub(crate) read: u64,
    pub(crate) written: u64,
    pub(crate) keeps_blob: bool,
}

impl LayerBytes {
    pub(crate) fn unread(self) -> u64 {
        self.packed.saturating_sub(self.read)
    }

    pub(crate) fn blob(self) -> u64 {
        if self.keeps_blob { self.unread() } else { 0 }
    }

    pub(crate) fn is_measured(self) -> bool {
        self.read >= MEASURED_MIN
    }
}

/// The space that the layer still needs. `amount` is the estimate for the whole layer.
pub(crate) fn rest(amount: Amount, layer: LayerBytes) -> Amount {
    let LayerBytes { read, written, .. } = layer;
    if !layer.is_measured() {
        return amount.with_bytes(amount.bytes.saturating_sub(written), amount.bytes_min.saturating_sub(written));
    }
    let packed = layer.unread();
    let unpacked = u128::from(packed) * u128::from(written.max(read)) / u128::from(read);
    amount.with_bytes(u64::try_from(unpacked).unwrap_or(u64::MAX), packed)
}

/// The space that a pull needs for its absent layers, without the layers that another pull fetches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demand {
    pub(crate) layers: usize,
    pub(crate) compressed: u64,
    pub(crate) amount: Amount,
    /// Whether `amount` uses the measured expansion ratio of a layer. If not, it uses assumed ratios.
    pub(crate) is_measured: bool,
    /// The part of `amount` for blobs that are kept, in bytes.
    pub(crate) blobs: u64,
}

impl Demand {
    /// The demand of layers that need `amount` in all.
    pub(crate) fn of(layers: impl Iterator<Item = LayerBytes> + Clone, amount: Amount) -> Self {
        let sum = |of: fn(LayerBytes) -> u64| layers.clone().map(of).fold(0, u64::saturating_add);
        let (compressed, blobs) = (sum(LayerBytes::unread), sum(LayerBytes::blob));
        Self { layers: layers.count(), compressed, amount, is_measured: false, blobs }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) free_bytes: u64,
    /// `None` if the file system does not limit its inodes.
    pub(crate) free_inodes: Option<u64>,
    pub(crate) bytes_floor: u64,
    pub(crate) inodes_floor: u64,
    pub(crate) reserved: Amount,
    /// The part of `reserved` that pulls of other tenants hold.
    pub(crate) others: Amount,
    pub(crate) pulls: usize,
}

impl Space {
    pub(crate) fn new((free_bytes, bytes_floor): (u64, u64), (free_inodes, inodes_floor): (Option<u64>, u64)) -> Self {
        let (reserved, others) = (Amount::default(), Amount::default());
        Self { free_bytes, free_inodes, bytes_floor, inodes_floor, reserved, others, pulls: 0 }
    }

    /// Half of the free space. The reservations of one tenant count for other tenants only up to this limit.
    pub(crate) fn share_max(&self) -> Amount {
        let bytes = self.free_bytes.saturating_sub(self.bytes_floor) / 2;
        let inodes = self.free_inodes.map_or(u64::MAX, |free| free.saturating_sub(self.inodes_floor) / 2);
        Amount { bytes, bytes_min: bytes, inodes, inodes_min: inodes }
    }

    pub(crate) fn usable(&self) -> u64 {
        self.free_bytes.saturating_sub(self.bytes_floor).saturating_sub(self.reserved.bytes)
    }
}

/// Returns the missing space, or `None` if the pull fits. If no part of the minimum (`_min`) is missing, the pull can
/// be accepted although its estimate does not fit.
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
    // A demand of 0 layers needs no space: each layer is present, or another pull fetches it.
    let fits = admission == Admission::Off || demand.layers == 0 || (missing.bytes == 0 && missing.inodes == 0);
    (!fits).then_some(missing)
}

/// The part of a pull's demand that must fit into the free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Whole,
    /// The next step of the pull. A collection can free space for the later steps.
    Step,
    /// A part of the next step. The step is only an estimate; the bytes that the pull writes give a better one.
    Part,
}

/// Returns the bytes that a pull may write before its next request for space. `Err` has the space that is missing for
/// the whole pull, and the space that is missing for its next step.
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
        // The minimum fits, so the pull may write without a limit. A write fails if the disk is full.
        (_, Some(missing)) if fit == Fit::Part && !missing.is_refusal() => Ok(u64::MAX),
        (missing, missing_now) => {
            let now = missing_now.unwrap_or_default();
            Err((missing.unwrap_or(now), now))
        }
    }
}

/// Returns the bytes that a running pull may write: `granted`, but at least half of the free space up to 64 MiB,
/// because the end of a layer may expand more than its beginning. `Err` has the missing space if almost nothing is
/// free. This does not reject the pull, because it may be almost complete.
pub(crate) fn more(granted: u64, is_used_up: bool, now: &Space) -> Result<u64, Amount> {
    let usable = now.usable();
    if usable < PART_MIN && (is_used_up || usable < 2 * GRANT_MIN) {
        return Err(Amount { bytes: PART_MIN - usable, ..Amount::default() });
    }
    Ok(granted.max((usable / 2).min(STEP_MIN)))
}

/// Whether this pull fits after other pulls have ended, so that it waits for them. A pull waits for the pulls of its
/// tenant, and for those of other tenants only with [`Admission::Strict`].
pub(crate) fn helps_to_wait(admission: Admission, demand: &Demand, space: &Space) -> bool {
    let beside = |reserved| decide(admission, demand, &Space { reserved, ..*space });
    let stays = if admission == Admission::Strict { Amount::default() } else { space.others };
    let certain = Amount { bytes: space.reserved.bytes_min, inodes: space.reserved.inodes_min, ..space.reserved };
    space.pulls > 0 && beside(stays).is_none() && beside(certain).is_none_or(|missing| !missing.is_refusal())
}
