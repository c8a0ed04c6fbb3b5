//! The expansion ratio of layers, unpacked to packed: assumed at first, then measured on the present layers.
//!
//! No manifest, configuration or annotation has this ratio. For each compression, the layers of the store are summed up
//! with an assumption that weighs as much as 32 MiB of them; the quotient is bounded, so that no unusual image distorts
//! it. The sums are in memory only: a removed layer no longer counts.

use super::{Amount, Compression};

const ASSUMED_WEIGHT: u64 = 32 << 20;
/// Fewer layers are no measurement, however large.
const LAYERS_MEASURED_MIN: u64 = 4;
/// Bounds of the ratio, in thousandths: no layer shrinks, and no ordinary layer exceeds the upper one.
const THOUSANDTHS_MIN: u64 = 1_000;
const THOUSANDTHS_MAX: u64 = 10_000;
const INODES_PER_MEBIBYTE_MAX: u64 = 4_096;
/// What each layer uses beside its files: records, file list, folders.
const LAYER_BYTES: u64 = 64 << 10;
const LAYER_BYTES_MIN: u64 = 16 << 10;
const LAYER_INODES: u64 = 6;
const MARGIN_DIVISOR: u64 = 20;
const MEBIBYTE: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    layers: u64,
    packed: u64,
    on_disk: u64,
    entries: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expansions([Sums; 4]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) amount: Amount,
    pub(crate) is_measured: bool,
}

/// The initial assumption, rather high: thousandths, and inodes per packed MiB.
fn assumed(compression: Compression) -> (u64, u64) {
    match compression {
        Compression::None => (1_500, 48),
        Compression::Gzip => (3_000, 128),
        Compression::Zstd => (3_500, 160),
        Compression::Stored => (1_000, 1),
    }
}

impl Expansions {
    pub(crate) fn learn(&mut self, compression: Compression, packed: u64, on_disk: u64, entries: u64) {
        let sums = &mut self.0[compression as usize];
        sums.layers += 1;
        sums.packed = sums.packed.saturating_add(packed);
        // One layer of holes or zeros must not dominate the sums.
        sums.on_disk = sums.on_disk.saturating_add(on_disk.min(packed.saturating_mul(THOUSANDTHS_MAX / 1_000)));
        sums.entries = sums.entries.saturating_add(entries.min(most_entries(packed)));
    }

    /// Estimates a layer of `packed` bytes, unpacked, with its blob where blobs are kept.
    pub(crate) fn expect(&self, compression: Compression, packed: u64, keeps_blob: bool) -> Expected {
        let sums = &self.0[compression as usize];
        let (thousandths, per_mebibyte) = sums.quotients(compression);
        let blob = if keeps_blob { packed } else { 0 };
        let unpacked = scaled(packed, thousandths, 1_000);
        let amount = Amount {
            bytes: unpacked.saturating_add(LAYER_BYTES).saturating_add(blob),
            bytes_min: packed.saturating_add(packed / MARGIN_DIVISOR).saturating_add(LAYER_BYTES_MIN + blob),
            inodes: scaled(packed, per_mebibyte, MEBIBYTE).saturating_add(LAYER_INODES),
            inodes_min: LAYER_INODES,
        };
        Expected { amount, is_measured: sums.is_measurement() }
    }
}

impl Sums {
    fn is_measurement(&self) -> bool {
        self.layers >= LAYERS_MEASURED_MIN && self.packed >= ASSUMED_WEIGHT
    }

    fn quotients(&self, compression: Compression) -> (u64, u64) {
        let (thousandths, per_mebibyte) = assumed(compression);
        let packed = self.packed.saturating_add(ASSUMED_WEIGHT);
        let on_disk = self.on_disk.saturating_add(scaled(ASSUMED_WEIGHT, thousandths, 1_000));
        let entries = self.entries.saturating_add(scaled(ASSUMED_WEIGHT, per_mebibyte, MEBIBYTE));
        (
            scaled(on_disk, 1_000, packed).clamp(THOUSANDTHS_MIN, THOUSANDTHS_MAX),
            scaled(entries, MEBIBYTE, packed).clamp(1, INODES_PER_MEBIBYTE_MAX),
        )
    }
}

fn most_entries(packed: u64) -> u64 {
    scaled(packed, INODES_PER_MEBIBYTE_MAX, MEBIBYTE).max(LAYER_INODES)
}

fn scaled(value: u64, factor: u64, divisor: u64) -> u64 {
    let product = u128::from(value) * u128::from(factor);
    u64::try_from(product.div_ceil(u128::from(divisor.max(1)))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 3] = [Compression::None, Compression::Gzip, Compression::Zstd];

    fn ratio(expansions: &Expansions, compression: Compression) -> f64 {
        let packed = 1_000 * MEBIBYTE;
        let bytes = expansions.expect(compression, packed, false).amount.bytes - LAYER_BYTES;
        (bytes as f64 / packed as f64 * 1_000.0).round() / 1_000.0
    }

    #[test]
    fn an_empty_store_assumes_and_says_so() {
        let none = Expansions::default();
        for (compression, expected) in ALL.into_iter().zip([1.5, 3.0, 3.5]) {
            assert!((ratio(&none, compression) - expected).abs() < 0.001, "{compression:?}");
            assert!(!none.expect(compression, MEBIBYTE, false).is_measured);
        }
        assert_eq!(none.expect(Compression::Gzip, 2 * MEBIBYTE, false).amount.inodes, 2 * 128 + LAYER_INODES);
    }

    #[test]
    fn layers_that_are_here_outweigh_the_assumption_for_their_own_packing_alone() {
        let mut learned = Expansions::default();
        for _ in 0..32 {
            learned.learn(Compression::Gzip, 100 * MEBIBYTE, 220 * MEBIBYTE, 2_000);
        }
        assert!((ratio(&learned, Compression::Gzip) - 2.208).abs() < 0.002);
        assert!((ratio(&learned, Compression::Zstd) - 3.5).abs() < 0.001);
        assert!(learned.expect(Compression::Gzip, 1, false).is_measured);
        assert!(!learned.expect(Compression::Zstd, 1, false).is_measured);
        let inodes = learned.expect(Compression::Gzip, 1_000 * MEBIBYTE, false).amount.inodes;
        assert!((20_000..23_000).contains(&inodes), "{inodes}");
    }

    #[test]
    fn a_few_layers_or_small_ones_are_no_measurement() {
        let (mut few, mut small) = (Expansions::default(), Expansions::default());
        for _ in 0..3 {
            few.learn(Compression::Gzip, 1 << 30, 2 << 30, 1);
        }
        for _ in 0..100 {
            small.learn(Compression::Gzip, 1 << 10, 2 << 10, 1);
        }
        assert!(!few.expect(Compression::Gzip, 1, false).is_measured);
        assert!(!small.expect(Compression::Gzip, 1, false).is_measured);
        let mut just_enough = Expansions::default();
        for _ in 0..LAYERS_MEASURED_MIN {
            just_enough.learn(Compression::Gzip, ASSUMED_WEIGHT / LAYERS_MEASURED_MIN, 1, 1);
        }
        assert!(just_enough.expect(Compression::Gzip, 1, false).is_measured);
    }

    #[test]
    fn what_one_layer_teaches_is_bounded_both_ways() {
        let (mut bomb, mut holes) = (Expansions::default(), Expansions::default());
        bomb.learn(Compression::Gzip, MEBIBYTE, 1_000 * MEBIBYTE, 10_000_000);
        assert!(ratio(&bomb, Compression::Gzip) < 3.3);
        let inodes = bomb.expect(Compression::Gzip, MEBIBYTE, false).amount.inodes;
        assert!(inodes < 300, "{inodes}");
        for _ in 0..1_000 {
            holes.learn(Compression::Gzip, 1 << 30, 0, 0);
            bomb.learn(Compression::Gzip, 1 << 30, u64::MAX, u64::MAX);
        }
        assert!((ratio(&holes, Compression::Gzip) - 1.0).abs() < 0.001);
        assert!((ratio(&bomb, Compression::Gzip) - 10.0).abs() < 0.01);
    }

    #[test]
    fn the_least_is_the_compressed_size_with_a_margin_whatever_was_learned() {
        for compression in ALL {
            let amount = Expansions::default().expect(compression, 100 << 20, false).amount;
            assert_eq!(amount.bytes_min, (105 << 20) + LAYER_BYTES_MIN);
            let with_blob = Expansions::default().expect(compression, 100 << 20, true).amount;
            assert_eq!(with_blob.bytes_min - amount.bytes_min, 100 << 20);
            assert_eq!(with_blob.bytes - amount.bytes, 100 << 20);
        }
        let huge = Expansions::default().expect(Compression::Gzip, u64::MAX / 4, true).amount;
        assert!(huge.bytes >= huge.bytes_min, "{huge:?}");
    }
}
