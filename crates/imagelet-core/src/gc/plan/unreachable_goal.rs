//! The report of an unreachable goal: what uses the disk, the text, and when the report is repeated.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::{PlanInput, select::without};
use crate::{
    disks::DiskUse,
    image::{ByteSize, ImageId, counted},
    inventory::ImageEntry,
    lock::locked,
    ports::{Certainty, Freed, LayerGraph},
};

/// What uses the disk after all planned removals. The sizes from `in_use` to `others` add up to the used bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortfall {
    pub in_use: ByteSize,
    pub pinned: ByteSize,
    /// Images that stay for a reason other than use or pins.
    pub kept: ByteSize,
    /// Layers that candidates share with images that stay or with running pulls.
    pub shared: ByteSize,
    pub free: ByteSize,
    pub others: ByteSize,
    pub missing: Freed,
}

pub(crate) fn shortfall(
    input: &PlanInput<'_>,
    candidates: &[usize],
    removed: &[usize],
    freed: Freed,
    missing: Freed,
) -> Shortfall {
    let hold = |entry: &Arc<ImageEntry>| match (entry.usage.used_by.is_empty(), entry.pinned_by.is_empty()) {
        (false, _) => Hold::InUse,
        (_, false) => Hold::Pinned,
        _ => Hold::Kept,
    };
    let mut holds: Vec<Hold> = input.snapshot.entries.iter().map(hold).collect();
    for place in candidates {
        holds[*place] = Hold::Free;
    }
    for place in removed {
        holds[*place] = Hold::Removed;
    }
    let [in_use, pinned, kept, shared, free] = match input.layers {
        Some(graph) => by_layers(&without(graph, input, removed), input, &holds),
        None => [Some(Hold::InUse), Some(Hold::Pinned), Some(Hold::Kept), None, Some(Hold::Free)].map(|of| {
            let places = (0..holds.len()).filter(|place| Some(holds[*place]) == of);
            places.map(|place| input.size(place)).sum()
        }),
    };
    let freed = input.done.age.plus(input.done.space).plus(freed);
    let used = input.disk.as_ref().map_or(ByteSize::ZERO, DiskUse::used).saturating_sub(freed.bytes);
    let others = used.saturating_sub(in_use + pinned + kept + shared + free);
    Shortfall { in_use, pinned, kept, shared, free, others, missing }
}

/// Why the images of the snapshot stay. The order is that of strength: of several entries of an image, the largest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    Removed,
    Free,
    Kept,
    Pinned,
    InUse,
}

/// The bytes in use, pinned, kept, shared with candidates, and free. Each layer counts once.
fn by_layers(graph: &LayerGraph, input: &PlanInput<'_>, holds: &[Hold]) -> [ByteSize; 5] {
    let mut by_image: BTreeMap<&ImageId, Hold> = BTreeMap::new();
    for (place, hold) in holds.iter().enumerate() {
        let known = by_image.entry(input.id(place)).or_insert(*hold);
        *known = (*known).max(*hold);
    }
    // An image outside the snapshot counts as `Kept`.
    let is_held = &|image: &ImageId, by: Hold| by_image.get(image).copied().unwrap_or(Hold::Kept) == by;
    let images = |by: Hold| graph.images.keys().filter(move |image| is_held(image, by));
    let mut counted: Vec<&ImageId> = images(Hold::Free).collect();
    let free = graph.freed_by(counted.iter().copied()).bytes;
    let mut total = graph.total_of(counted.iter().copied());
    let shared = total.saturating_sub(free);
    let [in_use, pinned, kept] = [Hold::InUse, Hold::Pinned, Hold::Kept].map(|hold| {
        counted.extend(images(hold));
        let before = std::mem::replace(&mut total, graph.total_of(counted.iter().copied()));
        total.saturating_sub(before)
    });
    [in_use, pinned, kept, shared, free]
}

/// The last reported shortfall. A new report follows only if the shortfall had ended, if a part changed by more than 5%
/// of the disk, or after a restart.
#[derive(Debug, Default)]
pub(crate) struct ReportedShortfall(Mutex<Option<Shortfall>>);

impl ReportedShortfall {
    pub(crate) fn is_new(&self, disk: &DiskUse, shortfall: &Shortfall) -> bool {
        let mut reported = locked(&self.0);
        if reported.as_ref().is_some_and(|reported| is_alike(reported, shortfall, disk)) {
            return false;
        }
        *reported = Some(*shortfall);
        true
    }

    pub(crate) fn clear(&self) {
        *locked(&self.0) = None;
    }
}

/// A smaller change is not reported, because normal starts and stops of pods cause such changes.
const CHANGE_MIN_PERCENT: u64 = 5;

fn is_alike(one: &Shortfall, other: &Shortfall, disk: &DiskUse) -> bool {
    let parts = |it: &Shortfall| {
        [it.in_use, it.pinned, it.kept, it.shared, it.free, it.others, it.missing.bytes].map(|part| part.0)
    };
    let is_small = |change: u64, whole: u64| change <= whole / 100 * CHANGE_MIN_PERCENT;
    let bytes = parts(one).into_iter().zip(parts(other)).all(|(a, b)| is_small(a.abs_diff(b), disk.capacity.0));
    let inodes = one.missing.inodes.abs_diff(other.missing.inodes);
    bytes && is_small(inodes, disk.inodes.unwrap_or_default())
}

/// The event text. It begins like the kubelet's event text, because alerts match that beginning.
pub(crate) fn message(
    used_percent: u8,
    capacity: ByteSize,
    freed: Freed,
    dry_run: bool,
    shortfall: &Shortfall,
    certainty: Certainty,
) -> String {
    let Shortfall { in_use, pinned, kept, shared, free, others, missing } = *shortfall;
    let (verb, now) = if dry_run { ("would be", " then") } else { ("was", " now") };
    let bytes = (missing.bytes > ByteSize::ZERO).then(|| missing.bytes.to_string());
    let inodes = (missing.inodes > 0).then(|| counted(missing.inodes, "inode"));
    let more = bytes.into_iter().chain(inodes).collect::<Vec<_>>().join(" and ");
    let removed = freed.bytes;
    let only = if free == ByteSize::ZERO { "nothing".to_owned() } else { format!("only {free}") };
    let done = match (freed.is_none(), more.is_empty()) {
        (true, true) => format!("The low threshold is out of reach, and unused images can free {free}"),
        (true, false) => format!("{more} must go, unused images can free {only}, and none {verb} deleted"),
        (false, true) => {
            format!("The low threshold is out of reach, and {removed} {verb} freed by removing unused images")
        }
        (false, false) => format!("{removed} {verb} freed by removing unused images, and {more} more must go"),
    };
    let now = if freed.is_none() { "" } else { now };
    let holders = [
        (in_use, "images in use"),
        (pinned, "pinned images"),
        (kept, "images kept by rules or too young"),
        (shared, "layers that images share with unused ones"),
        (free, "unused images"),
        (others, "anything but images"),
    ];
    let held = holders.iter().filter(|(size, _)| *size > ByteSize::ZERO);
    let held: Vec<String> = held.map(|(size, by)| format!("{size} by {by}")).collect();
    let used = if held.is_empty() { String::new() } else { format!(" Used{now}: {}.", held.join(", ")) };
    let sure = match certainty {
        Certainty::Exact => String::new(),
        certainty => format!(" Sizes are {certainty}."),
    };
    format!(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {capacity} used). \
         {done}.{used}{sure}"
    )
}

/// A size as in the kubelet's events: one decimal in binary units up to TiB.
pub(crate) fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn sizes_print_as_the_kubelet_prints_them() {
        let cases = vectors("gc-format-size.json");
        assert_eq!(cases.len(), 18);
        for case in cases {
            let (bytes, text) = (&case["input"]["bytes"], case["expected"]["text"].as_str().unwrap());
            match bytes.as_u64() {
                Some(bytes) => assert_eq!(size_text(bytes), text, "{}", case["name"]),
                // The only negative size; `u64` cannot represent it.
                None => assert_eq!((bytes.as_i64(), text), (Some(-1), "-1 B")),
            }
        }
    }

    #[test]
    fn a_shortfall_is_reported_again_after_a_change_of_more_than_a_twentieth_of_the_disk_or_an_end() {
        let disk = DiskUse { inodes: Some(2000), ..DiskUse::of(ByteSize(1000), ByteSize(0)) };
        let of = |pinned: u64, inodes: u64| Shortfall {
            pinned: ByteSize(pinned),
            missing: Freed { bytes: ByteSize::ZERO, inodes },
            ..Shortfall::default()
        };
        let reported = ReportedShortfall::default();
        for (shortfall, is_new) in [
            (of(100, 0), true),
            (of(100, 0), false),
            (of(150, 0), false),
            (of(151, 0), true),
            (of(151, 100), false),
            (of(151, 101), true),
        ] {
            assert_eq!(reported.is_new(&disk, &shortfall), is_new, "{shortfall:?}");
        }
        reported.clear();
        assert!(reported.is_new(&disk, &of(151, 101)));
    }

    #[test]
    fn the_event_has_sizes_in_the_units_of_every_table_and_names_no_holder_of_nothing() {
        let shortfall = Shortfall {
            in_use: ByteSize(40_000_000),
            others: ByteSize(2_000_000_000),
            missing: Freed { bytes: ByteSize(46_600_000), inodes: 0 },
            ..Shortfall::default()
        };
        assert_eq!(
            message(95, ByteSize(4_000_000_000), Freed::default(), false, &shortfall, Certainty::Exact),
            "Insufficient free disk space on the node's image filesystem (95% of 4GB used). 46.6MB must go, unused \
             images can free nothing, and none was deleted. Used: 40MB by images in use, 2GB by anything but images."
        );
    }

    #[test]
    fn the_event_names_missing_inodes_beside_missing_bytes_and_only_those() {
        let text = |bytes: u64, inodes: u64| {
            let shortfall = Shortfall { missing: Freed { bytes: ByteSize(bytes), inodes }, ..Shortfall::default() };
            message(95, ByteSize(1000), Freed::default(), false, &shortfall, Certainty::Exact)
        };
        assert!(text(60, 5).contains(" used). 60B and 5 inodes must go,"), "{}", text(60, 5));
        assert!(text(0, 1).contains(" used). 1 inode must go,"), "{}", text(0, 1));
        assert!(text(0, 5).contains(" used). 5 inodes must go,"), "{}", text(0, 5));
        assert!(text(60, 0).contains(" used). 60B must go,"), "{}", text(60, 0));
    }
}
