//! Shadow mode: predictions compared with the actual removals.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::report::{GcOutcome, GcReport};
use crate::image::{ByteSize, ImageKey};

/// Counts and bytes of agreement between predictions and actual removals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShadowCounts {
    /// Collections compared with the previous one.
    pub compared: u64,
    /// Removed images that shadow mode selected, too.
    pub agreed: u64,
    /// Removed images that shadow mode kept.
    pub kept_in_vain: u64,
    /// Bytes of these images.
    pub kept_in_vain_bytes: ByteSize,
    /// Removed images that shadow mode kept and that came back.
    pub came_back: u64,
    /// Bytes that were pulled again and that shadow mode would have kept.
    pub saved_bytes: ByteSize,
    /// Present images that shadow mode selected.
    pub still_there: u64,
    /// Bytes of these images.
    pub still_there_bytes: ByteSize,
}

/// Limit of followed images that were removed against the prediction.
const REMOVED_MAX: usize = 10_000;

/// Compares each shadow collection with the images present at the next one.
#[derive(Clone, Debug, Default)]
pub struct Shadow {
    /// The images of the last shadow collection, and whether it selected them.
    last: BTreeMap<ImageKey, (ByteSize, bool)>,
    /// Images removed on request since.
    asked: BTreeSet<ImageKey>,
    /// Images removed against the prediction, which may come back.
    removed: BTreeMap<ImageKey, ByteSize>,
    counts: ShadowCounts,
}

impl Shadow {
    /// Records a shadow collection; its present images are the result of the previous prediction.
    pub fn record(&mut self, report: &GcReport) {
        let decided = report.decisions.iter();
        let now: BTreeMap<ImageKey, (ByteSize, bool)> =
            decided.map(|it| (it.key(), (it.entry.image.size, it.outcome == GcOutcome::Chosen))).collect();
        let counts = &mut self.counts;
        for (_, size) in self.removed.extract_if(.., |key, _| now.contains_key(key)) {
            counts.came_back += 1;
            counts.saved_bytes = counts.saved_bytes + size;
        }
        for (key, (size, would_go)) in &self.last {
            if now.contains_key(key) || self.asked.contains(key) {
                continue;
            }
            if *would_go {
                counts.agreed += 1;
                continue;
            }
            counts.kept_in_vain += 1;
            counts.kept_in_vain_bytes = counts.kept_in_vain_bytes + *size;
            if self.removed.len() < REMOVED_MAX {
                self.removed.insert(key.clone(), *size);
            }
        }
        counts.compared += u64::from(!self.last.is_empty());
        let going = now.values().filter(|(_, would_go)| *would_go);
        counts.still_there = going.clone().count() as u64;
        counts.still_there_bytes = going.map(|(size, _)| *size).sum();
        self.last = now;
        self.asked.clear();
    }

    /// Records a removal on request, which is not a decision of the other collector.
    pub fn removed_on_request(&mut self, key: &ImageKey) {
        self.asked.insert(key.clone());
    }

    /// The current counts.
    pub fn counts(&self) -> ShadowCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::gc::{
        GcDecision, GcPhase, Reason,
        tests::{image, unused},
    };

    fn report(images: &[(&str, u64, bool)]) -> GcReport {
        let decisions = images.iter().map(|(id, size, chosen)| GcDecision {
            entry: unused(image(id, "", *size), SystemTime::UNIX_EPOCH).into(),
            outcome: if *chosen { GcOutcome::Chosen } else { GcOutcome::Kept },
            reason: Reason::NotNeeded,
            phase: chosen.then_some(GcPhase::Space),
            frees: ByteSize::ZERO,
        });
        GcReport { decisions: decisions.collect(), ..GcReport::default() }
    }

    #[test]
    fn what_another_collector_did_otherwise_is_counted_with_its_bytes() {
        let mut shadow = Shadow::default();
        shadow.record(&report(&[("a", 10, true), ("b", 20, false), ("c", 40, false), ("d", 80, true)]));
        assert_eq!(shadow.counts().still_there_bytes, ByteSize(90));
        assert_eq!(shadow.counts().compared, 0);
        // The other collector removed `a`, as predicted, and `b`, against the prediction; `c` was removed on request.
        shadow.removed_on_request(&ImageKey::parse("c"));
        shadow.record(&report(&[("d", 80, true)]));
        let counts = shadow.counts();
        assert_eq!((counts.compared, counts.agreed, counts.kept_in_vain), (1, 1, 1));
        assert_eq!((counts.kept_in_vain_bytes, counts.saved_bytes), (ByteSize(20), ByteSize::ZERO));
        assert_eq!((counts.still_there, counts.still_there_bytes), (1, ByteSize(80)));
        // `b` was needed again.
        shadow.record(&report(&[("b", 20, false), ("d", 80, true)]));
        assert_eq!((shadow.counts().came_back, shadow.counts().saved_bytes), (1, ByteSize(20)));
        shadow.record(&report(&[("b", 20, false), ("d", 80, true)]));
        assert_eq!((shadow.counts().came_back, shadow.counts().compared), (1, 3));
    }
}
