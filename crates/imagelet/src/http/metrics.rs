//! `/metrics`: counters of the process, and gauges of the moment, in Prometheus' text format.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use http::header;
use imagelet_core::metrics::Metrics;

use crate::node::LocalNode;

pub(super) async fn metrics(State(node): State<Arc<LocalNode>>) -> impl IntoResponse {
    node.measure().await;
    rendered(&node.parts.metrics)
}

pub(super) fn rendered(metrics: &Metrics) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
}
