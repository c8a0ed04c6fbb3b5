//! The HTTP endpoint of the prefetch controller: metrics and health, under the access policy of the daemon.

use std::{sync::Arc, time::SystemTime};

use axum::{Router, extract::State, middleware::from_fn_with_state, response::IntoResponse, routing::get};
use imagelet_core::metrics::Metrics;
use imagelet_kube::{ControllerReport, PrefetchController};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{HttpAccess, guard, health, not_found, rendered, with_probes};
use crate::{
    connections::{self, Limits, open_files_max},
    node::measure_process,
};

#[derive(Clone, Debug)]
pub struct MeasuredController {
    pub controller: Arc<PrefetchController>,
    pub metrics: Arc<Metrics>,
    pub started_at: SystemTime,
}

/// Serves the metrics and the probes of the controller until the future is dropped.
pub async fn serve_controller(listener: TcpListener, measured: MeasuredController, access: HttpAccess) {
    let checks = |measured: MeasuredController| std::future::ready(ready(measured.controller.report()));
    let router = with_probes(Router::new().route("/metrics", get(metrics)), Some(access.clone()), checks)
        .fallback(not_found)
        .with_state(measured)
        .layer(from_fn_with_state(access, guard));
    connections::serve(listener, router, Limits::of_http(open_files_max()), CancellationToken::new()).await;
}

/// Serves health without details to every client, until the future is dropped. A kubelet probes without a token.
pub async fn serve_health(listener: TcpListener, controller: Arc<PrefetchController>) {
    let checks = |controller: Arc<PrefetchController>| std::future::ready(ready(controller.report()));
    let router = with_probes(Router::new(), None, checks).fallback(not_found).with_state(controller);
    connections::serve(listener, router, Limits::of_http(open_files_max()), CancellationToken::new()).await;
}

async fn metrics(State(measured): State<MeasuredController>) -> impl IntoResponse {
    measure_process(&measured.metrics, measured.started_at);
    rendered(&measured.metrics)
}

/// A controller that waits for the lease is ready. A later outage of the API server does not change the result.
fn ready(report: ControllerReport) -> Vec<health::Checked> {
    let ControllerReport { has_answer, leads, is_listed } = report;
    let lease = match (has_answer, leads) {
        (false, _) => Err("the API server has not answered about the lease yet".to_owned()),
        (true, true) => Ok("leading".to_owned()),
        (true, false) => Ok("another controller leads".to_owned()),
    };
    let objects = if leads && !is_listed {
        Err("the sets, the reports and the nodes are not listed yet".to_owned())
    } else {
        Ok(String::new())
    };
    vec![("lease", lease), ("objects", objects)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_ready_when_another_one_leads_or_it_knows_all_objects() {
        for ((has_answer, leads, is_listed), failed) in [
            ((false, false, false), &["lease"][..]),
            ((true, false, false), &[]),
            ((true, true, false), &["objects"]),
            ((true, true, true), &[]),
        ] {
            let checks = ready(ControllerReport { has_answer, leads, is_listed });
            let found: Vec<&str> = checks.iter().filter(|(_, check)| check.is_err()).map(|(name, _)| *name).collect();
            assert_eq!(found, failed);
        }
    }
}
