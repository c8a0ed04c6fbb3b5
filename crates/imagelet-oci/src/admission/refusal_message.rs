//! The message of a rejected pull, with its arithmetic.

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, counted},
};

use super::{Admission, Amount, Demand, Space};

/// The error of a rejected pull. `could_free` is what a collection could still free, or `None` if none was requested.
pub(crate) fn refusal(
    admission: Admission,
    demand: &Demand,
    space: &Space,
    missing: &Amount,
    could_free: Option<ByteSize>,
) -> RuntimeError {
    let is_strict = admission == Admission::Strict;
    let (kind, arithmetic) = if missing.bytes_min > 0 {
        let needed = bytes_needed(is_strict, demand);
        let amounts = [space.free_bytes, space.reserved.bytes, space.bytes_floor].map(ByteSize);
        ("space", format!("{needed}, {}", available(amounts, " free", space.pulls, "freeBytesFloor")))
    } else {
        let (layers, Amount { inodes, inodes_min, .. }) = (counted(demand.layers, "layer"), demand.amount);
        let needed = if is_strict {
            format!("needs about {inodes} inodes ({layers} not here)")
        } else {
            format!("needs at least {inodes_min} inodes ({layers} not here, about {inodes} expected)")
        };
        let amounts = [space.free_inodes.unwrap_or_default(), space.reserved.inodes, space.inodes_floor];
        ("inodes", format!("{needed}, {}", available(amounts, " inodes free", space.pulls, "freeInodesFloor")))
    };
    let freed = could_free.map_or_else(String::new, |size| {
        let more = if size == ByteSize::ZERO { "nothing".to_owned() } else { format!("at most {size}") };
        format!("; a collection could free {more} more")
    });
    let softer =
        if is_strict { "; `store.admission: compressed` does not refuse by what is only expected" } else { "" };
    let message = format!("not enough free {kind} on the store's disk: {arithmetic}{freed}");
    RuntimeError::new(RuntimeErrorKind::DiskFull, message).with_hint(format!(
        "make room with `imagelet gc` or `imagelet rm`, or name a larger place with --store DIR{softer}"
    ))
}

fn bytes_needed(is_strict: bool, demand: &Demand) -> String {
    let Demand { layers, compressed, amount, is_measured, blobs } = demand;
    let packed = format!("{} not here, {} compressed", counted(*layers, "layer"), ByteSize(*compressed));
    let ratio = amount.bytes.saturating_sub(*blobs) as f64 / (*compressed).max(1) as f64;
    // The shown ratio is limited: for a tiny layer it is meaningless, because the fixed overhead exceeds the layer.
    let ratio = format!("{:.1} {}", ratio.min(99.9), if *is_measured { "measured" } else { "assumed" });
    let blobs = if *blobs > 0 { ", blobs kept" } else { "" };
    let (bytes, least) = (ByteSize(amount.bytes), ByteSize(amount.bytes_min));
    if is_strict {
        format!("needs {bytes} ({packed} x {ratio}{blobs})")
    } else {
        format!("needs at least {least} ({packed}{blobs}), about {bytes} at x {ratio}")
    }
}

fn available<T: std::fmt::Display + PartialEq + Default>(
    [free, reserved, floor]: [T; 3],
    unit: &str,
    pulls: usize,
    floor_key: &str,
) -> String {
    let reserved = (reserved != T::default()).then(|| format!("{reserved} reserved by {}", counted(pulls, "pull")));
    let floor = (floor != T::default()).then(|| format!("{floor} kept by {floor_key}"));
    let parts = reserved.into_iter().chain(floor).collect::<Vec<_>>().join(" and ");
    if parts.is_empty() { format!("{free}{unit}") } else { format!("{free}{unit} of which {parts}") }
}
