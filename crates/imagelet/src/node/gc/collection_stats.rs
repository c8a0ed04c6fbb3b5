//! The metrics of collections, and their statistics since the start of the process.

use std::sync::{Mutex, PoisonError};

use imagelet_core::{
    gc::{Shadow, ShadowCounts},
    metrics::{Family, MetricKind},
};

use crate::api::LastCollection;

use MetricKind::{Counter, Gauge, Histogram};

/// From a collection without removals to one with hundreds.
const DURATION_BOUNDS: &[f64] = &[0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0];

families! {
    RUNS = "imagelet_gc_runs_total",
        "Collections by trigger (timer, command, pull, pressure) and how they ended (nothing, removed, short, failed, shadow).",
        Counter, &["by", "outcome"];
    LAST_RUN = "imagelet_gc_last_run_timestamp_seconds", "When the last collection ended.", Gauge, &[];
    LAST_SUCCESS = "imagelet_gc_last_success_timestamp_seconds",
        "When the last collection ended that did not fail and was not short of its goal.", Gauge, &[];
    DURATION = "imagelet_gc_duration_seconds", "How long collections take, listing and removing included.",
        Histogram(DURATION_BOUNDS), &[];
    FREED = "imagelet_gc_freed_bytes_total",
        "Bytes that collections freed: claimed, as the removed images were listed; measured, as the disk gained them.",
        Counter, &["measure"];
    REMOVED = "imagelet_gc_removed_images_total", "Images that collections removed, by reason code.",
        Counter, &["code"];
    REMOVED_BYTES = "imagelet_gc_removed_bytes_total", "Their bytes as listed, by reason code.", Counter, &["code"];
    CANDIDATES = "imagelet_gc_candidates", "Images that the last collection could have removed.", Gauge, &[];
    CANDIDATE_BYTES = "imagelet_gc_candidate_bytes", "What it could have freed with all of them.", Gauge, &[];
    DECISIONS = "imagelet_gc_images", "Images at the last collection by what was decided (keep, remove) and reason code.",
        Gauge, &["verdict", "code"];
    LOST = "imagelet_decisions_lost", "Decisions that did not reach the log on disk since the start.", Gauge, &[];
    SHADOW_COMPARED = "imagelet_gc_shadow_compared", "Collections in shadow mode compared with what then happened.",
        Gauge, &[];
    SHADOW_AGREED = "imagelet_gc_shadow_agreed_images", "Images that were removed, as shadow mode had predicted.",
        Gauge, &[];
    SHADOW_KEPT = "imagelet_gc_shadow_kept_images", "Images that were removed although shadow mode would have kept them.",
        Gauge, &[];
    SHADOW_KEPT_BYTES = "imagelet_gc_shadow_kept_bytes", "Bytes of those.", Gauge, &[];
    SHADOW_SAVED_BYTES = "imagelet_gc_shadow_saved_bytes",
        "Bytes of those that came back since: what would not have been pulled again.", Gauge, &[];
    SHADOW_STILL = "imagelet_gc_shadow_still_there_images", "Images that shadow mode would remove now.", Gauge, &[];
    SHADOW_STILL_BYTES = "imagelet_gc_shadow_still_there_bytes", "Bytes of those.", Gauge, &[];
    COLLECTED = "kubelet_image_garbage_collected_total",
        "Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
        Counter, &["reason"];
}

#[derive(Debug, Default)]
pub(crate) struct CollectionStats {
    pub(crate) shadow: Mutex<Shadow>,
    pub(crate) last: Mutex<Option<LastCollection>>,
}

impl CollectionStats {
    pub(crate) fn last(&self) -> Option<LastCollection> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn shadow(&self) -> ShadowCounts {
        self.shadow.lock().unwrap_or_else(PoisonError::into_inner).counts()
    }
}
