//! Gauges of intents and records, under the kubelet's names (`docs/spec/pull.md §9.1`).

use crate::metrics::{Family, MetricKind};

pub(super) static INTENTS: Family =
    gauge("kubelet_imagemanager_ondisk_pullintents", "Number of ImagePullIntents stored on disk.");

pub(super) static RECORDS: Family =
    gauge("kubelet_imagemanager_ondisk_pulledrecords", "Number of ImagePulledRecords stored on disk.");

pub(super) static FAMILIES: [&Family; 2] = [&INTENTS, &RECORDS];

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: MetricKind::Gauge, labels: &[] }
}
