//! Metrics of runtime calls, as the kubelet counts them (`docs/spec/pull.md §9.1`).

use tokio::time::Instant;

use super::RuntimeError;
use crate::metrics::{Family, MetricKind, Metrics};

static TOTAL: Family = Family {
    name: "kubelet_runtime_operations_total",
    help: "Cumulative number of runtime operations by operation type.",
    kind: MetricKind::Counter,
    labels: &["operation_type"],
};

static ERRORS: Family = Family {
    name: "kubelet_runtime_operations_errors_total",
    help: "Cumulative number of runtime operation errors by operation type.",
    kind: MetricKind::Counter,
    labels: &["operation_type"],
};

static SECONDS: Family = Family {
    name: "kubelet_runtime_operations_duration_seconds",
    help: "Duration in seconds of runtime operations. Broken down by operation type.",
    // 0.005 and thirteen times 2.5 as much.
    kind: MetricKind::Histogram(&[
        0.005,
        0.0125,
        0.031_25,
        0.078_125,
        0.195_312_5,
        0.488_281_25,
        1.220_703_125,
        3.051_757_812_5,
        7.629_394_531_25,
        19.073_486_328_125,
        47.683_715_820_312_5,
        119.209_289_550_781_25,
        298.023_223_876_953_1,
        745.058_059_692_382_8,
    ]),
    labels: &["operation_type"],
};

pub(super) static FAMILIES: [&Family; 3] = [&TOTAL, &ERRORS, &SECONDS];

pub(super) fn declare(metrics: &Metrics) {
    for family in FAMILIES {
        metrics.declare(family);
    }
}

/// Measures a finished operation; a cancelled one is not counted.
pub(super) async fn measure<T>(
    metrics: &Metrics,
    operation: &'static str,
    work: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let (began, labels) = (Instant::now(), &[operation]);
    let result = work.await;
    metrics.increment(&TOTAL, labels);
    metrics.observe(&SECONDS, labels, began.elapsed().as_secs_f64());
    if result.is_err() {
        metrics.increment(&ERRORS, labels);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_are_counted_by_what_they_are_and_how_they_end() {
        let metrics = Metrics::new();
        let work = async {
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            Ok(())
        };
        measure(&metrics, "pull_image", work).await.expect("it is well");
        let failed = async { Err::<(), _>(RuntimeError::other("no")) };
        measure(&metrics, "image_status", failed).await.expect_err("it is not");
        let text = metrics.render();
        for line in [
            "kubelet_runtime_operations_total{operation_type=\"pull_image\"} 1",
            "kubelet_runtime_operations_total{operation_type=\"image_status\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"image_status\"} 1",
            "kubelet_runtime_operations_duration_seconds_sum{operation_type=\"pull_image\"} 2",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"pull_image\",le=\"745.0580596923828\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"pull_image\",le=\"1.220703125\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("errors_total{operation_type=\"pull_image\"}"));
    }
}
