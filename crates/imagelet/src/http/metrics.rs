//! `/metrics`: counters of the daemon, and gauges of the moment, in Prometheus' text format.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use http::header;

use crate::node::LocalNode;

pub(super) async fn metrics(State(node): State<Arc<LocalNode>>) -> impl IntoResponse {
    node.measure().await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], node.parts.metrics.render())
}
