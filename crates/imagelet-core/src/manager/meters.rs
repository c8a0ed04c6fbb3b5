//! Metrics of the manager, under the kubelet's names (`docs/spec/pull.md §9.1`).

use std::time::Duration;

use super::request::PullPolicy;
use crate::{
    error::Fault,
    image::ByteSize,
    metrics::{MetricKind, Metrics, families},
    records::CheckResult,
};

families! {
    REQUESTS = "kubelet_image_manager_ensure_image_requests_total",
        "Number of ensure-image requests processed by the kubelet.",
        MetricKind::Counter, &["present_locally", "pull_policy", "pull_required"];
    PULL_SECONDS = "kubelet_image_pull_duration_seconds", "Duration in seconds to pull an image.",
        MetricKind::Histogram(&[
            1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
            2700.0, 3600.0,
        ]), &["image_size_in_bytes"];
    CHECKS = "kubelet_imagemanager_image_mustpull_checks_total",
        "Counter for how many times kubelet checked whether credentials need to be re-verified to access an image",
        MetricKind::Counter, &["result"];
    /// The labels are class and stage, so registries cannot add series.
    FAILURES = "imagelet_pull_failures_total", "Failed requests for an image, by what went wrong and where.",
        MetricKind::Counter, &["class", "hop"];
    WAITING = "imagelet_pulls_waiting", "Pulls that wait for their turn.", MetricKind::Gauge, &[];
    RUNNING = "imagelet_pulls_running", "Pulls that run.", MetricKind::Gauge, &[];
    WAIT_SECONDS = "imagelet_pull_wait_seconds",
        "How long pulls waited for their turn, for a slot and for the rate.",
        MetricKind::Histogram(&[0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0]), &[];
    PULLS = "imagelet_pulls_total",
        "Pulls of the store or runtime that ended, by outcome: pulled, failed, cancelled. Callers that share a pull count once.",
        MetricKind::Counter, &["outcome"];
    WAITS = "imagelet_pull_waits_total",
        "Waits of layers for what other pulls hold, by thing: memory, place, layer, space. Of memory, places and space, waits of less than a quarter of a second do not count.",
        MetricKind::Counter, &["thing"];
    RECEIVED = "imagelet_pull_received_bytes_total",
        "Bytes of layers that pulls received, compressed as in the registry; none of pulls by a runtime.",
        MetricKind::Counter, &[];
    STALE_USED = "imagelet_stale_used_total",
        "Number of images used under the policy Always while their registry was unavailable.",
        MetricKind::Counter, &[];
}

pub(super) fn declare(metrics: &Metrics, with_stale: bool) {
    for family in FAMILIES.iter().filter(|family| with_stale || family.name != STALE_USED.name) {
        metrics.declare(family);
    }
}

pub(super) fn checked(metrics: &Metrics, result: CheckResult) {
    metrics.increment(&CHECKS, &[result.name()]);
}

pub(super) fn failed(metrics: &Metrics, fault: &Fault) {
    metrics.increment(&FAILURES, &[fault.class.name(), fault.stage.name()]);
}

pub(super) fn pulled(metrics: &Metrics, size: ByteSize, took: Duration) {
    let seconds = Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)).as_secs_f64();
    metrics.observe(&PULL_SECONDS, &[size_label(size)], seconds);
}

/// Counts one request on drop, whatever its result.
pub(crate) struct Tally<'a> {
    /// `None`: the request is an estimate, which is not counted.
    pub(crate) metrics: Option<&'a Metrics>,
    pub(crate) policy: &'a PullPolicy,
    /// Whether the image was present. `None`: the image was not looked up.
    pub(crate) present: Option<bool>,
    /// Whether a pull was required. `None`: the request ended before the decision.
    pub(crate) required: Option<bool>,
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        let word = |answer: Option<bool>| answer.map_or("unknown", |answer| if answer { "true" } else { "false" });
        let policy = self.policy.name().to_lowercase();
        if let Some(metrics) = self.metrics {
            metrics.increment(&REQUESTS, &[word(self.present), &policy, word(self.required)]);
        }
    }
}

/// The size bucket of a pull; lower bounds are exclusive.
fn size_label(size: ByteSize) -> &'static str {
    const MEBIBYTE: u64 = 1 << 20;
    const GIBIBYTE: u64 = 1 << 30;
    const CLASSES: [(u64, &str); 11] = [
        (100 * GIBIBYTE, "GT100GB"),
        (60 * GIBIBYTE, "60GB-100GB"),
        (40 * GIBIBYTE, "40GB-60GB"),
        (30 * GIBIBYTE, "30GB-40GB"),
        (20 * GIBIBYTE, "20GB-30GB"),
        (10 * GIBIBYTE, "10GB-20GB"),
        (5 * GIBIBYTE, "5GB-10GB"),
        (GIBIBYTE, "1GB-5GB"),
        (500 * MEBIBYTE, "500MB-1GB"),
        (100 * MEBIBYTE, "100MB-500MB"),
        (10 * MEBIBYTE, "10MB-100MB"),
    ];
    match size.0 {
        0 => "N/A",
        bytes => CLASSES.iter().find(|(above, _)| bytes > *above).map_or("0-10MB", |(_, label)| label),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vector_of_collections_on_size_labels_holds() {
        let cases = imagelet_vectors::vectors("gc-metric-size-label.json");
        for case in &cases {
            let size = ByteSize(case["input"]["bytes"].as_u64().unwrap());
            assert_eq!(Some(size_label(size)), case["expected"]["label"].as_str(), "{size:?}");
        }
        assert_eq!(cases.len(), 35);
    }

    #[test]
    fn every_size_label_vector_holds() {
        let cases = imagelet_vectors::vectors("pull-size-label.json");
        for case in &cases {
            let size = ByteSize(case["input"]["size_bytes"].as_u64().unwrap());
            assert_eq!(Some(size_label(size)), case["expected"]["image_size_in_bytes"].as_str(), "{size:?}");
        }
        assert_eq!(cases.len(), 25);
    }
}
