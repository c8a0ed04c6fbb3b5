//! Goals out of reach: what is told of them, and how often.

use std::sync::{Mutex, PoisonError};

use super::{DiskUse, Shortage, text::size_text};
use crate::{
    image::ByteSize,
    runtime::{Certainty, Freed},
};

/// The shortage that was reported last. It is reported once, and again when it was over in between, when a part of it has
/// changed by more than a twentieth of the disk, or after a restart.
#[derive(Debug, Default)]
pub(super) struct Shortages(Mutex<Option<Shortage>>);

impl Shortages {
    /// Whether this is another shortage than the one told last; from now on it is that one.
    pub(super) fn is_news(&self, disk: &DiskUse, shortage: &Shortage) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.as_ref().is_some_and(|told| is_alike(told, shortage, disk)) {
            return false;
        }
        *told = Some(*shortage);
        true
    }

    /// The goal was reached, or there was none: the next shortage is news.
    pub(super) fn over(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Pods that come and go change less than this.
const CHANGE_MIN_PERCENT: u64 = 5;

fn is_alike(one: &Shortage, other: &Shortage, disk: &DiskUse) -> bool {
    let parts = |it: &Shortage| {
        [it.in_use, it.pinned, it.kept, it.shared, it.free, it.others, it.missing.bytes].map(|part| part.0)
    };
    let is_small = |change: u64, whole: u64| change <= whole / 100 * CHANGE_MIN_PERCENT;
    let bytes = parts(one).into_iter().zip(parts(other)).all(|(a, b)| is_small(a.abs_diff(b), disk.capacity.0));
    let inodes = one.missing.inodes.abs_diff(other.missing.inodes);
    bytes && is_small(inodes, disk.inodes.unwrap_or_default())
}

/// What came of a collection whose goal is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortOutcome {
    /// What went freed this.
    Freed(Freed),
    /// It was only asked for: what would go would free this.
    WouldFree(Freed),
}

/// The text of the event. It begins as the kubelet's does, for who looks for that.
pub(super) fn message(
    used_percent: u8,
    capacity: ByteSize,
    outcome: ShortOutcome,
    shortage: &Shortage,
    certainty: Certainty,
) -> String {
    let size = |bytes: ByteSize| size_text(bytes.0);
    let Shortage { in_use, pinned, kept, shared, free, others, missing } = *shortage;
    let (freed, verb, now) = match outcome {
        ShortOutcome::Freed(freed) => (freed, "was", " now"),
        ShortOutcome::WouldFree(freed) => (freed, "would be", " then"),
    };
    let mut more = Vec::new();
    if missing.bytes > ByteSize::ZERO {
        more.push(size(missing.bytes));
    }
    if missing.inodes > 0 {
        more.push(format!("{} inodes", missing.inodes));
    }
    let done = match (freed.is_none(), more.is_empty()) {
        (true, true) => format!("The low threshold is out of reach, and unused images can free {}", size(free)),
        (true, false) => {
            let more = more.join(" and ");
            format!("{more} must go, unused images can free only {}, and none {verb} deleted", size(free))
        }
        (false, true) => {
            format!(
                "The low threshold is out of reach, and {} {verb} freed by removing unused images",
                size(freed.bytes)
            )
        }
        (false, false) => {
            let more = more.join(" and ");
            format!("{} {verb} freed by removing unused images, and {more} more must go", size(freed.bytes))
        }
    };
    let now = if freed.is_none() { "" } else { now };
    let sure = match certainty {
        Certainty::Exact => String::new(),
        certainty => format!(" Sizes are {certainty}."),
    };
    format!(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {} used). {done}. \
         Used{now}: {} by images in use, {} by pinned images, {} by images kept by rules or too young, {} by layers that these share with unused images, {} by unused images, {} by anything but images.{sure}",
        size(capacity),
        size(in_use),
        size(pinned),
        size(kept),
        size(shared),
        size(free),
        size(others),
    )
}
