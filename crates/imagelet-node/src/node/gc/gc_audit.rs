//! Records a node's acts in the audit log, and its collections in metrics and events.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime},
};

use imagelet_core::{
    audit_log::{Act, ActCode},
    events::EventKind,
    gc::{GcError, GcOutcome, GcReport, RunTrigger},
    image::{ByteSize, Image, ImageKey, counted},
    metrics::{MetricKind, families},
};

use crate::{
    api::{LastCollection, milliseconds_of, moment, since_epoch},
    node::LocalNode,
};

use MetricKind::{Counter, Gauge, Histogram};

/// From a collection without removals to one with hundreds.
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

impl LocalNode {
    /// Records a collection in metrics and events; the collector has recorded its removals in the audit log.
    pub(crate) fn record_collection(&self, report: &GcReport, asked: &RunTrigger, began: SystemTime, took: Duration) {
        if asked.shadow {
            self.record_shadow_events(report);
        }
        self.count(report, asked);
        let last = LastCollection {
            outcome: outcome(report, asked.shadow).to_owned(),
            images: report.chosen().count() as u64,
            claimed: report.sizes.claimed.0,
            measured: report.sizes.measured.map(|bytes| bytes.0),
            failure: report.failure(),
            ..LastCollection::default()
        };
        self.remember(last, asked, began, took);
    }

    /// Records a collection that failed before any decision.
    pub(crate) fn collection_failed(&self, error: &GcError, asked: &RunTrigger, began: SystemTime, took: Duration) {
        let (outcome, failure) = ("failed".to_owned(), Some(error.to_string()));
        self.remember(LastCollection { outcome, failure, ..LastCollection::default() }, asked, began, took);
    }

    pub fn last_collection(&self) -> Option<LastCollection> {
        self.last_collection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a run and keeps it as the last one.
    fn remember(&self, last: LastCollection, asked: &RunTrigger, began: SystemTime, took: Duration) {
        let (metrics, now) = (&self.parts.metrics, since_epoch(SystemTime::now()).as_secs_f64());
        metrics.increment(&RUNS, &[&asked.by, &last.outcome]);
        metrics.set(&LAST_RUN, &[], now);
        if matches!(last.outcome.as_str(), "nothing" | "removed" | "shadow") {
            metrics.set(&LAST_SUCCESS, &[], now);
        }
        metrics.observe(&DURATION, &[], took.as_secs_f64());
        let (at, by) = (moment(began), asked.by.clone());
        let last = LastCollection { at, by, took_ms: milliseconds_of(took), ..last };
        *self.last_collection.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }

    fn count(&self, report: &GcReport, asked: &RunTrigger) {
        let metrics = &self.parts.metrics;
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
        if asked.shadow {
            return;
        }
        metrics.add(&FREED, &["claimed"], report.sizes.claimed.0 as f64);
        metrics.add(&FREED, &["measured"], report.sizes.measured.unwrap_or_default().0 as f64);
        for removal in report.removed() {
            let code = removal.reason.code();
            metrics.increment(&REMOVED, &[code]);
            metrics.add(&REMOVED_BYTES, &[code], removal.entry.image.size.0 as f64);
        }
    }

    /// Updates the gauges that change without a collection.
    pub(crate) fn show_decisions(&self) {
        self.parts.metrics.set(&LOST, &[], self.parts.decisions.lost() as f64);
    }

    /// Records the events of shadow mode, marked as such.
    fn record_shadow_events(&self, report: &GcReport) {
        for event in &report.events {
            self.record_event(EventKind::Warning, event.reason, format!("in shadow mode: {}", event.message));
        }
        let chosen = report.chosen().count();
        if chosen > 0 {
            let images = counted(chosen, "image");
            let message = format!("in shadow mode: would remove {images} ({})", report.sizes.claimed);
            self.record_event(EventKind::Normal, "ImagesChosen", message);
        }
    }

    /// Records the removal of an image or a name on request.
    pub fn removed_on_request(&self, code: ActCode, image: &Image, names: &[String], by: &str, freed: Option<u64>) {
        let mut act = act_now(code, &[image.key()], names, by);
        act.details.bytes = freed;
        self.parts.decisions.act(act);
    }

    /// The images that an operator's pattern matches. `None`: the listing failed; pins can still change.
    pub async fn held_by(&self, patterns: &[String]) -> Option<Vec<Vec<ImageKey>>> {
        let snapshot = self.refresh().await.inspect_err(|failure| {
            tracing::debug!(error = failure.to_string(), "could not find what a pattern holds");
        });
        let snapshot = snapshot.ok()?;
        let held = |pattern: &String| {
            let held = snapshot.entries.iter().filter(|entry| entry.pinned_by.iter().any(|by| by == pattern.trim()));
            held.map(|entry| entry.key()).collect()
        };
        Some(patterns.iter().map(held).collect())
    }

    /// Waits until all records are on disk or lost.
    pub(crate) async fn flush_decisions(&self) {
        let decisions = Arc::clone(&self.parts.decisions);
        if let Err(error) = tokio::task::spawn_blocking(move || decisions.flush()).await {
            tracing::error!(%error, "the last decisions are not on disk");
        }
    }
}

/// An act of this moment on these images; its size, time and reason are not known.
pub(crate) fn act_now(code: ActCode, keys: &[ImageKey], names: &[String], by: &str) -> Act {
    Act { keys: keys.iter().map(ToString::to_string).collect(), ..Act::new(code, names.to_vec(), by) }
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
