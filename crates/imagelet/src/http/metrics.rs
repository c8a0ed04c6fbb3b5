//! `/metrics`: counters of the daemon, and gauges of its images at the last pass, in Prometheus' text format.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use http::header;
use imagelet_core::metrics::{Family, MetricKind};

use crate::node::LocalNode;

macro_rules! gauges {
    ($($name:ident = $metric:literal, $help:literal;)*) => {
        $(static $name: Family = Family { name: $metric, help: $help, kind: MetricKind::Gauge, labels: &[] };)*
    };
}

gauges! {
    IMAGES = "imagelet_images", "Images on the node at the last pass.";
    IMAGES_IN_USE = "imagelet_images_in_use", "Images that a container or a mount uses.";
    IMAGES_PINNED = "imagelet_images_pinned", "Images that no collection takes.";
    IMAGES_BYTES = "imagelet_images_bytes", "Sizes of all images as listed; shared layers count in each.";
    HELD_BACK = "imagelet_images_held_back", "Images that are held back because their pulls failed.";
    SNAPSHOT_TIME = "imagelet_inventory_timestamp_seconds", "When the last pass over the images succeeded.";
}

pub(super) async fn metrics(State(node): State<Arc<LocalNode>>) -> impl IntoResponse {
    let parts = &node.parts;
    let metrics = &parts.metrics;
    if let Some(snapshot) = parts.inventory.snapshot() {
        let entries = &snapshot.entries;
        let count = |number: usize| number as f64;
        metrics.set(&IMAGES, &[], count(entries.len()));
        metrics.set(&IMAGES_IN_USE, &[], count(entries.iter().filter(|entry| !entry.in_use_by.is_empty()).count()));
        metrics.set(&IMAGES_PINNED, &[], count(entries.iter().filter(|entry| !entry.pinned_by.is_empty()).count()));
        metrics.set(&IMAGES_BYTES, &[], entries.iter().map(|entry| entry.image.size.0 as f64).sum());
        let since = snapshot.taken_at.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
        metrics.set(&SNAPSHOT_TIME, &[], since.as_secs_f64());
    }
    node.show_decisions();
    node.parts.pod_starts.close_finished();
    let status = parts.manager.status();
    metrics.set(&HELD_BACK, &[], status.held_back.len() as f64);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
}
