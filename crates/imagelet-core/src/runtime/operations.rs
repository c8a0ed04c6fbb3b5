//! Counts what runtimes are asked, and how long they take to answer (`docs/spec/pull.md §9.1`).

use std::sync::Arc;

use tokio::time::Instant;

use super::RuntimeError;
use crate::metrics::{Family, Histogram, Late, MetricKind, Metrics, Number};

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

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Pull,
    Status,
    List,
    Remove,
    Filesystem,
    Sandboxes,
    Containers,
    Container,
    Sandbox,
    Runtime,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull_image",
            Self::Status => "image_status",
            Self::List => "list_images",
            Self::Remove => "remove_image",
            Self::Filesystem => "image_fs_info",
            Self::Sandboxes => "list_podsandbox",
            Self::Containers => "list_containers",
            Self::Container => "container_status",
            Self::Sandbox => "podsandbox_status",
            Self::Runtime => "status",
        }
    }
}

/// Counts operations.
#[derive(Debug)]
pub(super) struct Operations {
    metrics: Arc<Metrics>,
    series: [Series; 10],
}

#[derive(Debug, Default)]
struct Series {
    total: Late<Number>,
    errors: Late<Number>,
    seconds: Late<Histogram>,
}

impl Operations {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        for family in [&TOTAL, &ERRORS, &SECONDS] {
            metrics.declare(family);
        }
        Self { metrics, series: Default::default() }
    }

    /// Waits for an operation, and counts it when it is over; one that was given up is not.
    pub(super) async fn measure<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        let began = Instant::now();
        let result = work.await;
        let (series, labels) = (&self.series[operation as usize], &[operation.name()]);
        series.total.get(|| self.metrics.number(&TOTAL, labels)).add(1.0);
        series.seconds.get(|| self.metrics.histogram(&SECONDS, labels)).observe(began.elapsed().as_secs_f64());
        if result.is_err() {
            series.errors.get(|| self.metrics.number(&ERRORS, labels)).add(1.0);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_are_counted_by_what_they_are_and_how_they_end() {
        let metrics = Arc::new(Metrics::new());
        let operations = Operations::new(Arc::clone(&metrics));
        let work = async {
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            Ok(())
        };
        operations.measure(Operation::Pull, work).await.expect("it is well");
        let failed = async { Err::<(), _>(RuntimeError::other("no")) };
        operations.measure(Operation::Status, failed).await.expect_err("it is not");
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
