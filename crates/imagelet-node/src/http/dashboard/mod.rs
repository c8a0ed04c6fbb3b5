//! The dashboard: pages made by the daemon, with a script that follows pulls and refreshes sections.

mod charts;
mod detail;
mod page;
mod text;
mod treemap;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    response::{Html, IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, Uri, header};
use jiff::Timestamp;

use super::routes::value_of;
use crate::{
    api::{CollectRequest, Disk, DiskRequest, ImageRow, PullsRequest, QueueRequest, no_steps},
    failure::Failure,
    node::{Command, DecisionsRequest, LocalNode, WhyRequest, predict_all},
    size::parse_size,
};
use detail::PlanForm;
use page::{Frame, Overview};

pub(super) use page::login;

const CSS: &str = include_str!("dashboard.css");
const SCRIPT: &str = include_str!("dashboard.js");
const ICON: &str = include_str!("icon.svg");
/// A section whose answer takes longer, or fails, is left out, and the page says so.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Points of the chart: one for each two pixels of a wide screen.
const SAMPLES_MAX: u64 = 480;
/// Rows of the last decisions; `/api/v1/decisions` has more.
const DECISIONS: u64 = 30;

pub(super) fn add(
    router: Router<Arc<LocalNode>>,
    has_login: impl Fn() -> bool + Clone + Send + Sync + 'static,
) -> Router<Arc<LocalNode>> {
    let frame = move |node: &LocalNode| Frame { backend: node.parts.backend.clone(), has_login: has_login() };
    let (of_plan, of_image) = (frame.clone(), frame.clone());
    let asset = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text) })
    };
    router
        .route("/", get(move |State(node): State<Arc<LocalNode>>| async move {
            let model = gather(&node, frame(&node)).await;
            Html(page::overview(&model, Timestamp::now()))
        }))
        .route("/plan", get(move |State(node): State<Arc<LocalNode>>, uri: Uri| async move { plan(&node, &of_plan(&node), &uri).await }))
        .route("/image", get(move |State(node): State<Arc<LocalNode>>, uri: Uri| async move { image(&node, &of_image(&node), &uri).await }))
        .route("/assets/dashboard.css", asset("text/css; charset=utf-8", CSS))
        .route("/assets/dashboard.js", asset("text/javascript; charset=utf-8", SCRIPT))
        .route("/assets/icon.svg", asset("image/svg+xml", ICON))
}

async fn gather(node: &LocalNode, frame: Frame) -> Overview {
    let mut problems = Vec::new();
    let images = async {
        let mut rows = node.rows().await?;
        predict_all(node, &mut rows).await;
        Ok(rows)
    };
    let (disk, images, pulls, queue, decisions) = tokio::join!(
        in_time("the disk", DiskRequest { samples: Some(SAMPLES_MAX) }.run(node, no_steps())),
        in_time("the images", images),
        in_time("the pulls", PullsRequest::default().run(node, no_steps())),
        in_time("the queue", QueueRequest::default().run(node, no_steps())),
        in_time("the decisions", DecisionsRequest { limit: DECISIONS }.run(node, no_steps())),
    );
    let (disk, images) = (or_problem(disk, &mut problems), or_problem(images, &mut problems));
    Overview {
        frame,
        disk: disk.map(|disk| of_one_reading(disk, images.as_deref())),
        images,
        pulls: or_problem(pulls, &mut problems).map(|it| it.pulls),
        queue: or_problem(queue, &mut problems),
        decisions: or_problem(decisions, &mut problems).map(|it| it.decisions),
        problems,
    }
}

/// The disk as held by the images of the map, which were listed for it.
fn of_one_reading(disk: Disk, images: Option<&[ImageRow]>) -> Disk {
    let Some(images) = images else { return disk };
    disk.held_by(images.iter().map(|row| (!row.in_use_by.is_empty(), !row.pinned_by.is_empty(), row.size)))
}

async fn in_time<T>(what: &str, answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = || Failure::new("TimedOut", format!("{what}: no answer within {} s", ANSWER_MAX.as_secs()));
    tokio::time::timeout(ANSWER_MAX, answer).await.unwrap_or_else(|_| Err(late()))
}

fn or_problem<T>(answer: Result<T, Failure>, problems: &mut Vec<String>) -> Option<T> {
    answer.map_err(|failure| problems.push(failure.to_string())).ok()
}

async fn plan(node: &LocalNode, frame: &Frame, uri: &Uri) -> Response {
    let query = uri.query().unwrap_or_default();
    let form = PlanForm {
        free: value_of(query, "free").unwrap_or_default(),
        all_unused: value_of(query, "allUnused").is_some(),
    };
    let planned = async {
        let free = match form.free.trim() {
            "" => None,
            size => Some(parse_size(size).map_err(|error| Failure::new("InvalidArgument", error.to_string()))?.0),
        };
        let request = CollectRequest { dry_run: true, free, all_unused: form.all_unused, ..CollectRequest::default() };
        in_time("the plan", request.run(node, no_steps())).await
    };
    let planned = planned.await;
    let status = planned.as_ref().map_or_else(|failure| super::routes::status_of(&failure.reason), |_| StatusCode::OK);
    (status, Html(detail::plan(frame, &form, &planned))).into_response()
}

async fn image(node: &LocalNode, frame: &Frame, uri: &Uri) -> Response {
    let image = value_of(uri.query().unwrap_or_default(), "ref").unwrap_or_default();
    match in_time("the image", WhyRequest { image }.run(node, no_steps())).await {
        Ok(why) => Html(detail::image(frame, &why, Timestamp::now())).into_response(),
        Err(failure) => {
            (super::routes::status_of(&failure.reason), Html(detail::failed_page(frame, &failure))).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_of_the_disk_is_of_the_images_of_the_map() {
        let old = Disk { in_use_size: 1, pinned_size: 2, unused_size: 2_000_000, capacity: 9, ..Disk::default() };
        let row = |size, in_use_by: &[&str], pinned_by: &[&str]| {
            let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            ImageRow { size, in_use_by: texts(in_use_by), pinned_by: texts(pinned_by), ..ImageRow::default() }
        };
        let rows = [
            row(260_000_000, &[], &[]),
            row(30, &["default/web/app"], &["runtime"]),
            row(400, &[], &["runtime"]),
            row(5, &[], &[]),
        ];
        let held = |rows| {
            let disk = of_one_reading(old.clone(), rows);
            [disk.in_use_size, disk.pinned_size, disk.unused_size, disk.capacity]
        };
        assert_eq!(held(Some(&rows)), [30, 400, 260_000_005, 9]);
        assert_eq!(held(None), [1, 2, 2_000_000, 9], "without a map they are of the last pass");
    }
}
