//! The message of a refusal, with its arithmetic.

use imagelet_core::{
    image::{ByteSize, counted},
    runtime::{RuntimeError, RuntimeErrorKind},
};

use super::{Admission, Demand, MissingSpace, Space};

/// `could_free`: what a collection could still remove; `None`: no collection was requested.
pub(crate) fn refusal(
    admission: Admission,
    demand: &Demand,
    space: &Space,
    missing: &MissingSpace,
    could_free: Option<ByteSize>,
) -> RuntimeError {
    let (kind, arithmetic) = if missing.bytes_least > 0 {
        ("free space", format!("{}, {}", bytes_needed(admission, demand), bytes_available(space)))
    } else {
        ("free inodes", format!("{}, {}", inodes_needed(admission, demand), inodes_available(space)))
    };
    let freed = could_free.map_or_else(String::new, |size| {
        let more = if size == ByteSize::ZERO { "nothing".to_owned() } else { format!("at most {size}") };
        format!("; a collection could free {more} more")
    });
    let softer = match admission {
        Admission::Strict => "; `store.admission: compressed` does not refuse by what is only expected",
        Admission::Compressed | Admission::Off => "",
    };
    RuntimeError::new(RuntimeErrorKind::DiskFull, format!("not enough {kind} on the store's disk: {arithmetic}{freed}"))
        .with_hint(format!(
            "make room with `imagelet gc` or `imagelet rm`, or name a larger place with --store DIR{softer}"
        ))
}

fn bytes_needed(admission: Admission, demand: &Demand) -> String {
    let blobs = if demand.keeps_blobs { ", blobs kept" } else { "" };
    let packed = format!("{} not here, {} compressed", counted(demand.layers, "layer"), ByteSize(demand.compressed));
    let (ratio, bytes) = (ratio(demand), ByteSize(demand.amount.bytes));
    match admission {
        Admission::Strict => format!("needs {bytes} ({packed} x {ratio}{blobs})"),
        Admission::Compressed | Admission::Off => {
            format!(
                "needs at least {} ({packed}{blobs}), about {bytes} at x {ratio}",
                ByteSize(demand.amount.bytes_min)
            )
        }
    }
}

fn ratio(demand: &Demand) -> String {
    let blobs = if demand.keeps_blobs { demand.compressed } else { 0 };
    let unpacked = demand.amount.bytes.saturating_sub(blobs);
    let ratio = unpacked as f64 / demand.compressed.max(1) as f64;
    let word = if demand.is_measured { "measured" } else { "assumed" };
    // The fixed overhead of a tiny layer makes the factor meaningless.
    format!("{:.1} {word}", ratio.min(99.9))
}

fn inodes_needed(admission: Admission, demand: &Demand) -> String {
    let (layers, expected) = (counted(demand.layers, "layer"), demand.amount.inodes);
    match admission {
        Admission::Strict => format!("needs about {expected} inodes ({layers} not here)"),
        Admission::Compressed | Admission::Off => {
            let least = demand.amount.inodes_min;
            format!("needs at least {least} inodes ({layers} not here, about {expected} expected)")
        }
    }
}

fn bytes_available(space: &Space) -> String {
    let size = |bytes: u64| (bytes > 0).then(|| ByteSize(bytes).to_string());
    let (reserved, floor) = (size(space.reserved.bytes), size(space.bytes_floor));
    format!("{} free{}", ByteSize(space.free_bytes), of_which(reserved, space.pulls, floor, "freeBytesFloor"))
}

fn inodes_available(space: &Space) -> String {
    let number = |inodes: u64| (inodes > 0).then(|| inodes.to_string());
    let (reserved, floor) = (number(space.reserved.inodes), number(space.inodes_floor));
    let free = space.free_inodes.unwrap_or_default();
    format!("{free} inodes free{}", of_which(reserved, space.pulls, floor, "freeInodesFloor"))
}

fn of_which(reserved: Option<String>, pulls: usize, floor: Option<String>, key: &str) -> String {
    let reserved = reserved.map(|amount| format!("{amount} reserved by {}", counted(pulls, "pull")));
    let parts: Vec<String> =
        reserved.into_iter().chain(floor.map(|amount| format!("{amount} kept by {key}"))).collect();
    if parts.is_empty() { String::new() } else { format!(" of which {}", parts.join(" and ")) }
}
