//! Gauges of intents and records, under the kubelet's names (`docs/spec/pull.md §9.1`).

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

pub(super) static FAMILIES: [&Family; 4] = [&INTENTS, &RECORDS, &INTENTS_MEMORY, &RECORDS_MEMORY];

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: MetricKind::Gauge, labels: &[] }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filling {
    pub(super) on_disk: usize,
    pub(super) memory_percent: usize,
}

pub(super) fn show(metrics: &Metrics, intents: Filling, records: Filling) {
    for (family, value) in [
        (&INTENTS, intents.on_disk),
        (&RECORDS, records.on_disk),
        (&INTENTS_MEMORY, intents.memory_percent),
        (&RECORDS_MEMORY, records.memory_percent),
    ] {
        metrics.set(family, &[], value as f64);
    }
}
