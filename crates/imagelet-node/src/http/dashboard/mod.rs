//! The dashboard: pages that the daemon renders, with a script that follows pulls and refreshes sections.

mod charts;
mod detail;
mod page;
mod text;
mod treemap;

use std::time::Duration;

use axum::{
    Router,
    extract::{Query, State},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, header};
use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    api::{CollectRequest, DiskRequest, no_steps},
    failure::Failure,
    node::{Command, Daemon, DecisionsRequest, LocalNode, WhyRequest, predict_all},
    size::parse_size,
};
use detail::PlanForm;
use page::Overview;

const CSS: &str = include_str!("dashboard.css");
const SCRIPT: &str = include_str!("dashboard.js");
const ICON: &str = include_str!("icon.svg");
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Limit of the points in the chart of the usage: one for each two pixels of a wide screen.
const SAMPLES_MAX: u64 = 480;
const DECISIONS: u64 = 30;

pub(super) fn add(router: Router<Daemon>) -> Router<Daemon> {
    let asset = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text) })
    };
    router
        .route("/", get(overview))
        .route("/plan", get(plan))
        .route("/image", get(image))
        .route("/assets/dashboard.css", asset("text/css; charset=utf-8", CSS))
        .route("/assets/dashboard.js", asset("text/javascript; charset=utf-8", SCRIPT))
        .route("/assets/icon.svg", asset("image/svg+xml", ICON))
}

pub(super) fn is_part(path: &str) -> bool {
    matches!(path, "/" | "/plan" | "/image") || path.starts_with("/assets/")
}

fn backend(node: &LocalNode) -> &str {
    &node.pulls.images.place.backend
}

async fn overview(State(Daemon { node, .. }): State<Daemon>) -> Html<String> {
    let mut problems = Vec::new();
    let images = async {
        let mut rows = node.pulls.images.rows().await?;
        predict_all(&node.collection, &mut rows).await;
        Ok(rows)
    };
    let (disk, images, decisions) = tokio::join!(
        in_time("the disk", DiskRequest { samples: Some(SAMPLES_MAX) }.run(&node, no_steps())),
        in_time("the images", images),
        in_time("the decisions", DecisionsRequest { limit: Some(DECISIONS) }.run(&node, no_steps())),
    );
    let model = Overview {
        backend: backend(&node).to_owned(),
        disk: or_problem(disk, &mut problems),
        images: or_problem(images, &mut problems),
        queue: node.pulls.queue(),
        decisions: or_problem(decisions, &mut problems).map(|it| it.decisions),
        problems,
    };
    Html(page::overview(&model, Timestamp::now()))
}

async fn in_time<T>(what: &str, answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = || Failure::new("TimedOut", format!("{what}: no answer within {} s", ANSWER_MAX.as_secs()));
    tokio::time::timeout(ANSWER_MAX, answer).await.unwrap_or_else(|_| Err(late()))
}

fn or_problem<T>(answer: Result<T, Failure>, problems: &mut Vec<String>) -> Option<T> {
    answer.map_err(|failure| problems.push(failure.to_string())).ok()
}

async fn plan(State(Daemon { node, .. }): State<Daemon>, Query(form): Query<PlanForm>) -> Response {
    let planned = async {
        let free = match form.free.trim() {
            "" => None,
            size => Some(parse_size(size).map_err(Failure::invalid)?.0),
        };
        let all_unused = form.all_unused.is_some();
        let request = CollectRequest { dry_run: true, free, all_unused, ..CollectRequest::default() };
        in_time("the plan", request.run(&node, no_steps())).await
    };
    let planned = planned.await;
    let status = planned.as_ref().map_or_else(Failure::status, |_| StatusCode::OK);
    (status, Html(detail::plan(backend(&node), &form, &planned))).into_response()
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ImageQuery {
    r#ref: String,
}

async fn image(State(Daemon { node, .. }): State<Daemon>, Query(query): Query<ImageQuery>) -> Response {
    match in_time("the image", WhyRequest { image: query.r#ref }.run(&node, no_steps())).await {
        Ok(why) => Html(detail::image(backend(&node), &why, Timestamp::now())).into_response(),
        Err(failure) => (failure.status(), Html(detail::failed_page(backend(&node), &failure))).into_response(),
    }
}
