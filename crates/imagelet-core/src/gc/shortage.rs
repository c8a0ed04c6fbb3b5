//! Goals out of reach: what is told of them, and how often.

use std::sync::{Mutex, PoisonError};

use super::{DiskUse, Shortage, text::size_text};
use crate::{
    image::ByteSize,
    runtime::{Certainty, Freed},
};

/// The shortage that the node was told of last. It is told once, and again when it was over in between, when a part of
/// it has changed by a hundredth of the disk, or after a restart.
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

fn is_alike(one: &Shortage, other: &Shortage, disk: &DiskUse) -> bool {
    let parts = |it: &Shortage| {
        [it.in_use, it.pinned, it.kept, it.shared, it.free, it.others, it.missing.bytes].map(|part| part.0)
    };
    let bytes = parts(one).into_iter().zip(parts(other)).all(|(a, b)| a.abs_diff(b) <= disk.capacity.0 / 100);
    let inodes = one.missing.inodes.abs_diff(other.missing.inodes);
    bytes && inodes <= disk.inodes.unwrap_or_default() / 100
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
    let (freed, verb) = match outcome {
        ShortOutcome::Freed(freed) => (freed, "was"),
        ShortOutcome::WouldFree(freed) => (freed, "would be"),
    };
    let mut wanted = Vec::new();
    if missing.bytes > ByteSize::ZERO {
        wanted.push(size(missing.bytes));
    }
    if missing.inodes > 0 {
        wanted.push(format!("{} inodes", missing.inodes));
    }
    // What must go at least goes: only the low threshold is out of reach.
    let is_eased = !freed.is_none() && missing.bytes <= free && missing.inodes <= freed.inodes;
    let goal = if is_eased || wanted.is_empty() {
        "The low threshold is out of reach".to_owned()
    } else {
        format!("{} must go", wanted.join(" and "))
    };
    let done = if freed.is_none() {
        format!("so none {verb} deleted")
    } else {
        format!("and {} {verb} freed by them", size(freed.bytes))
    };
    let sure = match certainty {
        Certainty::Exact => String::new(),
        certainty => format!(" Sizes are {certainty}."),
    };
    format!(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {} used). {goal}, unused images \
         can free {}, {done}. Used: {} by images in use, {} by pinned images, {} by images kept by rules or too young, {} \
         by layers that these share with unused images, {} by unused images, {} by anything but images.{sure}",
        size(capacity),
        size(free),
        size(in_use),
        size(pinned),
        size(kept),
        size(shared),
        size(free),
        size(others),
    )
}
