//! The HTTP endpoint: metrics for Prometheus, health and readiness for probes.

mod listener;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use imagelet_core::metrics::{Family, MetricKind};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    connections::{http_limits, open_files_max},
    node::LocalNode,
};

/// A store that takes longer to answer is not ready.
const READY_MAX: Duration = Duration::from_secs(5);

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

pub(crate) async fn serve(listener: TcpListener, node: Arc<LocalNode>, stop: CancellationToken) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(node);
    listener::serve(listener, router, http_limits(open_files_max()), stop).await;
}

async fn metrics(State(node): State<Arc<LocalNode>>) -> impl IntoResponse {
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

async fn ready(State(node): State<Arc<LocalNode>>) -> impl IntoResponse {
    match tokio::time::timeout(READY_MAX, node.parts.runtime.filesystem()).await {
        Ok(Ok(_)) => (StatusCode::OK, "ok\n".to_owned()),
        Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", error.chain())),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, format!("the store did not answer within {READY_MAX:?}\n")),
    }
}
