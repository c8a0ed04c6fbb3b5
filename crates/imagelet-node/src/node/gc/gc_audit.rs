//! Records the collections of a node in metrics, events and `status`.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    events::EventKind,
    gc::{GcError, GcOutcome, GcReport},
    image::{ByteSize, counted},
    lock::locked,
    metrics::{MetricKind, families},
};

use super::Collection;
use crate::api::{LastCollection, milliseconds_of, moment, since_epoch};

use MetricKind::{Counter, Gauge, Histogram};

const DURATION_BOUNDS: &[f64] = &[0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0];

families! {
    RUNS = "imagelet_gc_runs_total",
        "Collections by trigger (timer, command, pull) and how they ended (nothing, removed, short, failed, shadow).",
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
    COLLECTED = "kubelet_image_garbage_collected_total",
        "Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
        Counter, &["reason"];
}

impl Collection {
    /// Records the end of a collection. The collector has already written its removals to the audit log.
    pub(super) fn record(
        &self,
        run: Result<&GcReport, &GcError>,
        by: &str,
        shadow: bool,
        began: SystemTime,
        took: Duration,
    ) {
        if let Ok(report) = run {
            self.count(report, shadow);
        }
        let ended = match run {
            Ok(report) => LastCollection {
                outcome: outcome(report, shadow).to_owned(),
                images: report.chosen().count() as u64,
                claimed: report.sizes.claimed.0,
                measured: report.sizes.measured.map(|bytes| bytes.0),
                failure: report.failure(),
                ..LastCollection::default()
            },
            Err(error) => {
                let (outcome, failure) = ("failed".to_owned(), Some(error.to_string()));
                LastCollection { outcome, failure, ..LastCollection::default() }
            }
        };
        let (metrics, now) = (&self.metrics, since_epoch(SystemTime::now()).as_secs_f64());
        metrics.increment(&RUNS, &[by, &ended.outcome]);
        metrics.set(&LAST_RUN, &[], now);
        if matches!(ended.outcome.as_str(), "nothing" | "removed" | "shadow") {
            metrics.set(&LAST_SUCCESS, &[], now);
        }
        metrics.observe(&DURATION, &[], took.as_secs_f64());
        let ended = LastCollection { at: moment(began), by: by.to_owned(), took_ms: milliseconds_of(took), ..ended };
        *locked(&self.last) = Some(ended);
    }

    fn count(&self, report: &GcReport, shadow: bool) {
        let metrics = &self.metrics;
        metrics.set(&CANDIDATE_BYTES, &[], report.sizes.could_free.0 as f64);
        let mut decided: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        let mut candidates = 0_u64;
        for decision in &report.decisions {
            let goes = decision.outcome != GcOutcome::Kept;
            let code = decision.reason.code();
            candidates += u64::from(goes || matches!(code, "not_needed" | "not_enough" | "recent"));
            *decided.entry((if goes { "remove" } else { "keep" }, code)).or_default() += 1;
        }
        metrics.set(&CANDIDATES, &[], candidates as f64);
        metrics.clear(&DECISIONS);
        for ((verdict, code), count) in decided {
            metrics.set(&DECISIONS, &[verdict, code], count as f64);
        }
        if shadow {
            return self.record_shadow_events(report);
        }
        metrics.add(&FREED, &["claimed"], report.sizes.claimed.0 as f64);
        metrics.add(&FREED, &["measured"], report.sizes.measured.unwrap_or_default().0 as f64);
        for removal in report.removed() {
            let code = removal.reason.code();
            metrics.increment(&REMOVED, &[code]);
            metrics.add(&REMOVED_BYTES, &[code], removal.entry.image.size.0 as f64);
        }
    }

    fn record_shadow_events(&self, report: &GcReport) {
        for event in &report.events {
            let message = format!("in shadow mode: {}", event.message);
            self.images.record_event(EventKind::Warning, event.reason, message);
        }
        let chosen = report.chosen().count();
        if chosen > 0 {
            let message =
                format!("in shadow mode: would remove {} ({})", counted(chosen, "image"), report.sizes.claimed);
            self.images.record_event(EventKind::Normal, "ImagesChosen", message);
        }
    }
}

fn outcome(report: &GcReport, shadow: bool) -> &'static str {
    if shadow {
        return "shadow";
    }
    match (
        report.failures.iter().all(GcError::is_shortfall),
        report.failures.is_empty(),
        report.sizes.claimed > ByteSize::ZERO,
    ) {
        (false, _, _) => "failed",
        (true, false, _) => "short",
        (true, true, true) => "removed",
        (true, true, false) => "nothing",
    }
}
