//! Gauges of intents and records, under the kubelet's names (`docs/spec/pull.md §9.1`).

use std::sync::{Arc, OnceLock};

use crate::metrics::{Family, MetricKind, Metrics};

pub(super) static INTENTS: Family =
    gauge("kubelet_imagemanager_ondisk_pullintents", "Number of ImagePullIntents stored on disk.");

pub(super) static RECORDS: Family =
    gauge("kubelet_imagemanager_ondisk_pulledrecords", "Number of ImagePulledRecords stored on disk.");

pub(super) static INTENTS_MEMORY: Family = gauge(
    "kubelet_imagemanager_inmemory_pullintents_usage_percent",
    "The ImagePullIntents in-memory cache usage in percent.",
);

pub(super) static RECORDS_MEMORY: Family = gauge(
    "kubelet_imagemanager_inmemory_pulledrecords_usage_percent",
    "The ImagePulledRecords in-memory cache usage in percent.",
);

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: MetricKind::Gauge, labels: &[] }
}

/// The metrics to report to, once attached.
#[derive(Debug, Default)]
pub(super) struct Gauges(OnceLock<Arc<Metrics>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filling {
    pub(super) on_disk: usize,
    pub(super) memory_percent: usize,
}

impl Gauges {
    /// Reports to these metrics from now on; a second call changes nothing.
    pub(super) fn attach(&self, metrics: Arc<Metrics>) {
        for family in [&INTENTS, &RECORDS, &INTENTS_MEMORY, &RECORDS_MEMORY] {
            metrics.declare(family);
        }
        let _ = self.0.set(metrics);
    }

    pub(super) fn show(&self, intents: Filling, records: Filling) {
        let Some(metrics) = self.0.get() else { return };
        for (family, value) in [
            (&INTENTS, intents.on_disk),
            (&RECORDS, records.on_disk),
            (&INTENTS_MEMORY, intents.memory_percent),
            (&RECORDS_MEMORY, records.memory_percent),
        ] {
            metrics.set(family, &[], value as f64);
        }
    }
}
