//! What a layer is expected to use unpacked: no manifest, configuration or annotation has that size.

use super::Amount;
use crate::manifest::Compression;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_compression_has_its_ratio_and_the_least_is_the_compressed_size_with_a_margin() {
        for (compression, tenths) in
            [(Compression::None, 15), (Compression::Gzip, 30), (Compression::Zstd, 35), (Compression::Stored, 10)]
        {
            let amount = expected(compression, 100 * MEBIBYTE, false);
            assert_eq!(amount.bytes, tenths * 10 * MEBIBYTE + LAYER_BYTES, "{compression:?}");
            assert_eq!(amount.bytes_min, 105 * MEBIBYTE + LAYER_BYTES_MIN);
            let with_blob = expected(compression, 100 * MEBIBYTE, true);
            assert_eq!(with_blob.bytes_min - amount.bytes_min, 100 * MEBIBYTE);
            assert_eq!(with_blob.bytes - amount.bytes, 100 * MEBIBYTE);
        }
        assert_eq!(expected(Compression::Gzip, 2 * MEBIBYTE, false).inodes, 2 * 128 + LAYER_INODES);
        let huge = expected(Compression::Gzip, u64::MAX / 4, true);
        assert!(huge.bytes >= huge.bytes_min, "{huge:?}");
    }
}
