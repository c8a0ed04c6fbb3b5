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
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    connections::{http_limits, open_files_max},
    node::LocalNode,
};

/// A store that takes longer to answer is not ready.
const READY_MAX: Duration = Duration::from_secs(5);

pub(crate) async fn serve(listener: TcpListener, node: Arc<LocalNode>, stop: CancellationToken) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(node);
    listener::serve(listener, router, http_limits(open_files_max()), stop).await;
}

async fn metrics(State(node): State<Arc<LocalNode>>) -> impl IntoResponse {
    node.measure().await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], node.parts.metrics.render())
}

async fn ready(State(node): State<Arc<LocalNode>>) -> impl IntoResponse {
    match tokio::time::timeout(READY_MAX, node.parts.runtime.filesystem()).await {
        Ok(Ok(_)) => (StatusCode::OK, "ok\n".to_owned()),
        Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", error.chain())),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, format!("the store did not answer within {READY_MAX:?}\n")),
    }
}
