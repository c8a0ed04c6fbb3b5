//! The message of a refusal, with its arithmetic.

use imagelet_core::{
    image::ByteSize,
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
    let mut text = if missing.bytes_least > 0 {
        format!("{}, {}", bytes_needed(admission, demand), bytes_there(space))
    } else {
        format!("{}, {}", inodes_needed(admission, demand), inodes_there(space))
    };
    if let Some(could_free) = could_free {
        let more = match could_free {
            ByteSize::ZERO => "nothing".to_owned(),
            size => format!("at most {size}"),
        };
        text += "; a collection could free ";
        text += &more;
        text += " more";
    }
    let what = if missing.bytes_least > 0 { "free space" } else { "free inodes" };
    let softer = match admission {
        Admission::Strict => "; `store.admission: compressed` does not refuse by what is only expected",
        Admission::Compressed | Admission::Off => "",
    };
    RuntimeError::new(RuntimeErrorKind::DiskFull, format!("not enough {what} on the store's disk: {text}")).with_hint(
        format!("make room with `imagelet gc` or `imagelet rm`, or name a larger place with --store DIR{softer}"),
    )
}

fn bytes_needed(admission: Admission, demand: &Demand) -> String {
    let amount = &demand.amount;
    let blobs = if demand.keeps_blobs { ", blobs kept" } else { "" };
    let packed = format!("{} not here, {} compressed", layers(demand.layers), ByteSize(demand.compressed));
    let ratio = ratio(demand);
    match admission {
        Admission::Strict => format!("needs {} ({packed} x {ratio}{blobs})", ByteSize(amount.bytes)),
        Admission::Compressed | Admission::Off => format!(
            "needs at least {} ({packed}{blobs}), about {} at x {ratio}",
            ByteSize(amount.bytes_min),
            ByteSize(amount.bytes)
        ),
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

fn bytes_there(space: &Space) -> String {
    let mut text = format!("{} free", ByteSize(space.free_bytes));
    let reserved = (space.reserved.bytes > 0).then(|| reserved(ByteSize(space.reserved.bytes), space.pulls));
    let floor = (space.bytes_floor > 0).then(|| format!("{} kept by freeBytesFloor", ByteSize(space.bytes_floor)));
    text += &of_which(reserved, floor);
    text
}

fn inodes_needed(admission: Admission, demand: &Demand) -> String {
    let least = format!("at least {}", demand.amount.inodes_min);
    let about = format!("about {}", demand.amount.inodes);
    let (first, then) = match admission {
        Admission::Strict => (about, String::new()),
        Admission::Compressed | Admission::Off => (least, format!(", {about} expected")),
    };
    format!("needs {first} inodes ({} not here{then})", layers(demand.layers))
}

fn inodes_there(space: &Space) -> String {
    let mut text = format!("{} inodes free", space.free_inodes.unwrap_or_default());
    let reserved = (space.reserved.inodes > 0).then(|| reserved(space.reserved.inodes, space.pulls));
    let floor = (space.inodes_floor > 0).then(|| format!("{} kept by freeInodesFloor", space.inodes_floor));
    text += &of_which(reserved, floor);
    text
}

fn reserved(amount: impl std::fmt::Display, pulls: usize) -> String {
    format!("{amount} reserved by {pulls} pull{}", if pulls == 1 { "" } else { "s" })
}

fn of_which(reserved: Option<String>, floor: Option<String>) -> String {
    match (reserved, floor) {
        (Some(reserved), Some(floor)) => format!(" of which {reserved} and {floor}"),
        (Some(one), None) | (None, Some(one)) => format!(" of which {one}"),
        (None, None) => String::new(),
    }
}

fn layers(number: usize) -> String {
    format!("{number} layer{}", if number == 1 { "" } else { "s" })
}
