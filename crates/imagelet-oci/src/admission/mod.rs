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

/// A pull reserves space in steps: the bytes that it writes in one minute, and at least 64 MiB.
const STEP_SECONDS: u64 = 60;
const STEP_MIN: u64 = 64 << 20;
/// From this many compressed bytes on, the measured ratio of the layer replaces the assumed ratio.
const MEASURED_MIN: u64 = 4 << 20;
/// A pull gets a part of the free space only if at least this much is free. The queues of a layer hold fewer bytes.
const PART_MIN: u64 = 4 << 20;

/// When a pull is rejected for lack of space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// If the estimated unpacked size does not fit.
    Strict,
    /// If the compressed size does not fit. If only the estimate does not fit, the pull requests space, waits for other
    /// pulls, and then proceeds.
    #[default]
    Compressed,
    /// Never. Writes fail when the disk is full.
    Off,
}

/// Bytes and inodes, each as an estimate and as a certain minimum (`_min`): a manifest has only compressed sizes.
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

    /// The next step of a pull that writes `rate` bytes per second.
    #[must_use]
    pub(crate) fn step(self, rate: u64) -> Self {
        let bytes = rate.saturating_mul(STEP_SECONDS).max(STEP_MIN);
        self.with_bytes(self.bytes.min(bytes), self.bytes_min.min(bytes))
    }

    /// For missing space: whether the minimum is missing. The pull is not rejected if only the estimate is missing.
    pub(crate) fn is_refusal(&self) -> bool {
        self.bytes_min > 0 || self.inodes_min > 0
    }

    /// Replaces the bytes. The inodes shrink in proportion and never grow.
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
/// The inodes of an artifact's file and of the folders in its path.
const FILE_INODES: u64 = 16;
const MARGIN_DIVISOR: u64 = 20;
const MEBIBYTE: u64 = 1 << 20;

/// Assumed ratios, rather too high: unpacked bytes per 1000 compressed bytes, and inodes per compressed MiB.
fn assumed(compression: Compression) -> (u64, u64) {
    match compression {
        Compression::None => (1_500, 48),
        Compression::Gzip => (3_000, 128),
        Compression::Zstd => (3_500, 160),
        Compression::Stored => (1_000, 0),
    }
}

/// The estimate for a layer of `packed` compressed bytes, plus the blob if it is kept. A stored file is its own blob.
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

/// The progress of a layer, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerBytes {
    pub(crate) packed: u64,
    /// Compressed bytes that the unpacker has read.
    pub(crate) read: u64,
    pub(crate) written: u64,
    pub(crate) keeps_blob: bool,
}

impl LayerBytes {
    pub(crate) fn unread(self) -> u64 {
        self.packed.saturating_sub(self.read)
    }

    /// The part of a kept blob that is not written yet.
    pub(crate) fn blob(self) -> u64 {
        if self.keeps_blob { self.unread() } else { 0 }
    }

    pub(crate) fn is_measured(self) -> bool {
        self.read >= MEASURED_MIN
    }
}

/// The space that the layer still needs.
pub(crate) fn rest(amount: Amount, layer: LayerBytes) -> Amount {
    let LayerBytes { read, written, .. } = layer;
    if !layer.is_measured() {
        return amount.with_bytes(amount.bytes.saturating_sub(written), amount.bytes_min.saturating_sub(written));
    }
    let packed = layer.unread();
    let unpacked = u128::from(packed) * u128::from(written.max(read)) / u128::from(read);
    amount.with_bytes(u64::try_from(unpacked).unwrap_or(u64::MAX), packed)
}

/// The needs of a pull: its absent layers, without the layers that another pull fetches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demand {
    pub(crate) layers: usize,
    pub(crate) compressed: u64,
    pub(crate) amount: Amount,
    /// The estimate uses the measured ratio of the pull.
    pub(crate) is_measured: bool,
    /// The part of `amount` for blobs that are kept, in bytes.
    pub(crate) blobs: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) free_bytes: u64,
    /// `None`: the file system has no inode table.
    pub(crate) free_inodes: Option<u64>,
    pub(crate) bytes_floor: u64,
    pub(crate) inodes_floor: u64,
    pub(crate) reserved: Amount,
    /// The part of `reserved` for other tenants.
    pub(crate) others: Amount,
    pub(crate) pulls: usize,
}

impl Space {
    /// Without reservations. Each pair is the free amount, and the amount that must stay free.
    pub(crate) fn new((free_bytes, bytes_floor): (u64, u64), (free_inodes, inodes_floor): (Option<u64>, u64)) -> Self {
        let (reserved, others) = (Amount::default(), Amount::default());
        Self { free_bytes, free_inodes, bytes_floor, inodes_floor, reserved, others, pulls: 0 }
    }

    /// The reservations of one tenant count for other tenants only up to this limit: half of the free space.
    pub(crate) fn share_max(&self) -> Amount {
        let bytes = self.free_bytes.saturating_sub(self.bytes_floor) / 2;
        let inodes = self.free_inodes.map_or(u64::MAX, |free| free.saturating_sub(self.inodes_floor) / 2);
        Amount { bytes, bytes_min: bytes, inodes, inodes_min: inodes }
    }

    /// Bytes above the floor that no pull has reserved.
    pub(crate) fn usable(&self) -> u64 {
        self.free_bytes.saturating_sub(self.bytes_floor).saturating_sub(self.reserved.bytes)
    }
}

/// The missing space; `None`: the pull fits. The estimate is what the pull lacks to fit, and the minimum is what it
/// lacks to be accepted.
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
    // Layers that are present, or that another pull fetches, need no space.
    let fits = admission == Admission::Off || demand.layers == 0 || (missing.bytes == 0 && missing.inodes == 0);
    (!fits).then_some(missing)
}

/// The amount that must fit into the free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Whole,
    /// The next step. A collection can free space for the later steps.
    Step,
    /// A part of the next step. The step is only an estimate, and the ratio of written bytes gives a better estimate.
    Part,
}

/// The bytes that a pull may write before its next request. `Err`: the space that is missing for the whole pull, and
/// the space that is missing for its next step.
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
        // The estimate does not fit, but the minimum does: the write fails if the disk is full.
        (_, Some(missing)) if fit == Fit::Part && !missing.is_refusal() => Ok(u64::MAX),
        (missing, missing_now) => {
            let now = missing_now.unwrap_or_default();
            Err((missing.unwrap_or(now), now))
        }
    }
}

/// The bytes that a running pull may write beyond its estimate: half of the free space, up to 64 MiB. The end of a
/// layer may expand more than its beginning. `Err`: the missing space, if almost nothing is free. The pull is then not
/// rejected, because it may be almost complete.
pub(crate) fn more(granted: u64, is_used_up: bool, now: &Space) -> Result<u64, Amount> {
    let usable = now.usable();
    if usable < PART_MIN && (is_used_up || usable < 2 * GRANT_MIN) {
        return Err(Amount { bytes: PART_MIN - usable, ..Amount::default() });
    }
    Ok(granted.max((usable / 2).min(STEP_MIN)))
}

/// Whether to wait until other pulls end: without their estimates, this pull fits. The pulls of other tenants count
/// only with [`Admission::Strict`].
pub(crate) fn helps_to_wait(admission: Admission, demand: &Demand, space: &Space) -> bool {
    let beside = |reserved| decide(admission, demand, &Space { reserved, ..*space });
    let stays = if admission == Admission::Strict { Amount::default() } else { space.others };
    let certain = Amount { bytes: space.reserved.bytes_min, inodes: space.reserved.inodes_min, ..space.reserved };
    space.pulls > 0 && beside(stays).is_none() && beside(certain).is_none_or(|missing| !missing.is_refusal())
}
