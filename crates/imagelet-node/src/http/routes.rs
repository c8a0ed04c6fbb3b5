//! The JSON API: one table of routes, from which the server and its OpenAPI document are made.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::{RawPathParams, State},
    response::{IntoResponse, Response},
    routing::{MethodFilter, on},
};
use http::{Method, StatusCode, Uri, header};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::actions::Actions;
use crate::{
    api::{
        CollectRequest, DiskRequest, ImagePage, ImageRow, InspectRequest, OpenCircuits, PinRequest, PinsRequest,
        PullsRequest, QueueRequest, StatusRequest, UnpinRequest, no_steps,
    },
    failure::Failure,
    nearest::nearest,
    node::{Command, DECISIONS_MAX, DecisionsRequest, LocalNode, WhyRequest},
};

/// The document that describes these routes. A test compares it with the table and the types of the answers.
pub(super) const OPENAPI: &str = include_str!("openapi.json");
/// Before the path of each route.
pub(super) const ROOT: &str = "/api/v1";
/// Most images of a page, and rows of a plan.
const ROWS_MAX: u64 = 1000;
/// Samples of a day, one a minute.
const SAMPLES_MAX: u64 = 1440;

type Run = fn(Arc<LocalNode>, Arguments) -> Answer;
type Answer = Pin<Box<dyn Future<Output = Result<Vec<u8>, Failure>> + Send>>;

/// One method of one path.
#[cfg_attr(not(test), expect(dead_code, reason = "the API's document is made of all fields, by a test"))]
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) parameters: &'static [Parameter],
    /// The name of the document in the body, if the request has one.
    pub(super) body: Option<&'static str>,
    /// The name of the answer's document.
    pub(super) answer: &'static str,
    run: Run,
}

#[cfg_attr(not(test), expect(dead_code, reason = "the API's document is made of all fields, by a test"))]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) kind: ParameterKind,
    pub(super) about: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterKind {
    /// The end of the path.
    Path,
    Text,
    Required,
    Number {
        max: u64,
    },
    Flag,
}

/// The checked parameters of a request.
#[derive(Debug, Default)]
struct Arguments {
    given: BTreeMap<&'static str, String>,
    body: Bytes,
}

const fn parameter(name: &'static str, kind: ParameterKind, about: &'static str) -> Parameter {
    Parameter { name, kind, about }
}

const IMAGE: Parameter = parameter("image", ParameterKind::Path, "Name, id, or unique beginning of an id.");
const PERCENT: ParameterKind = ParameterKind::Number { max: 100 };
const ROWS: ParameterKind = ParameterKind::Number { max: ROWS_MAX };
const BYTES: ParameterKind = ParameterKind::Number { max: 1 << 60 };

pub(super) static ROUTES: [Route; 14] = [
    get(
        "/images",
        "The images of the node, in the order of their ids",
        &[
            parameter("limit", ROWS, "Images of the page; 100 unless given."),
            parameter("after", ParameterKind::Text, "`next` of the page before."),
        ],
        "ImagePage",
        |node, arguments| {
            Box::pin(async move {
                let rows = node.rows().await?;
                document(&page(rows, arguments.text("after"), arguments.number("limit").unwrap_or(100)))
            })
        },
    ),
    get("/images/{image}", "One image with its configuration and layers", &[IMAGE], "Inspected", |node, arguments| {
        Box::pin(async move {
            let image = arguments.required("image");
            let found = InspectRequest { image: image.clone() }.run(&node, no_steps()).await?;
            if found.image.is_none() {
                return Err(Failure::new("NotFound", format!("no image `{image}`")));
            }
            document(&found)
        })
    }),
    get("/pulls", "Running and waiting pulls with their layers", &[], "RunningPulls", |node, _| {
        run(node, PullsRequest::default())
    }),
    get(
        "/disk",
        "The disk of the images: usage, thresholds, what holds it, history and forecast",
        &[parameter("samples", ParameterKind::Number { max: SAMPLES_MAX }, "Most samples of the history.")],
        "Disk",
        |node, arguments| run(node, DiskRequest { samples: arguments.number("samples") }),
    ),
    get(
        "/decisions",
        "The last pulls, removals and failures with their reasons, the latest first",
        &[parameter("limit", ParameterKind::Number { max: DECISIONS_MAX }, "Most rows; 100 unless given.")],
        "Decisions",
        |node, arguments| run(node, DecisionsRequest { limit: arguments.number("limit").unwrap_or(100) }),
    ),
    get(
        "/decisions/{image}",
        "The history of an image, what holds it, and the next decision on it",
        &[IMAGE],
        "Why",
        |node, arguments| run(node, WhyRequest { image: arguments.required("image") }),
    ),
    get(
        "/queue",
        "Waiting pulls, images in back-off, and the waits of pods and namespaces",
        &[],
        "Queue",
        |node, _| run(node, QueueRequest::default()),
    ),
    get("/registries", "The registries that are not asked at present", &[], "OpenCircuits", |node, _| {
        Box::pin(async move {
            let queue = QueueRequest::default().run(&node, no_steps()).await?;
            document(&OpenCircuits { registries: queue.registries })
        })
    }),
    get("/status", "The daemon at a glance, as `imagelet status -o json`", &[], "Status", |node, _| {
        run(node, StatusRequest::default())
    }),
    get(
        "/gc/plan",
        "What a collection would remove and keep, and why",
        &[
            parameter("high", PERCENT, "High threshold in percent; the configured one unless given."),
            parameter("low", PERCENT, "Low threshold in percent; the configured one unless given."),
            parameter("free", BYTES, "Free this many bytes, whatever the thresholds are."),
            parameter("allUnused", ParameterKind::Flag, "Plan for all images that are neither used nor pinned."),
            parameter("limit", ROWS, "Most rows, images to remove first; 100 unless given."),
        ],
        "Collected",
        |node, arguments| {
            Box::pin(async move {
                let percent = |name| arguments.number(name).and_then(|percent| u8::try_from(percent).ok());
                let request = CollectRequest {
                    dry_run: true,
                    high: percent("high"),
                    low: percent("low"),
                    free: arguments.number("free"),
                    all_unused: arguments.flag("allUnused"),
                    ..CollectRequest::default()
                };
                let mut plan = request.run(&node, no_steps()).await?;
                let limit = arguments.number("limit").unwrap_or(100);
                plan.images.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
                document(&plan)
            })
        },
    ),
    post("/gc", "Collect now", "CollectRequest", "Collected", run_body::<CollectRequest>),
    get("/pins", "The pins, each with the images it keeps", &[], "Pins", |node, _| run(node, PinsRequest::default())),
    post("/pins", "Pin the images of a reference, glob or digest", "PinRequest", "PinChanged", run_body::<PinRequest>),
    Route {
        method: Method::DELETE,
        path: "/pins",
        summary: "Take a pin back",
        parameters: &[parameter("pattern", ParameterKind::Required, "The pattern as it was pinned.")],
        body: None,
        answer: "PinChanged",
        run: |node, arguments| run(node, UnpinRequest { pattern: arguments.required("pattern") }),
    },
];

/// A route that reads.
const fn get(
    path: &'static str,
    summary: &'static str,
    parameters: &'static [Parameter],
    answer: &'static str,
    run: Run,
) -> Route {
    Route { method: Method::GET, path, summary, parameters, body: None, answer, run }
}

/// A route that changes the node as the document of its body says.
const fn post(path: &'static str, summary: &'static str, body: &'static str, answer: &'static str, run: Run) -> Route {
    Route { method: Method::POST, path, summary, parameters: &[], body: Some(body), answer, run }
}

pub(super) fn add(mut router: Router<Arc<LocalNode>>, actions: &Actions) -> Router<Arc<LocalNode>> {
    for route in &ROUTES {
        let Ok(filter) = MethodFilter::try_from(route.method.clone()) else { continue };
        // A name of an image has slashes.
        let path = format!("{ROOT}{}", route.path.replace("{image}", "{*image}"));
        let actions = actions.clone();
        let handler = move |State(node): State<Arc<LocalNode>>, path: RawPathParams, uri: Uri, body: Bytes| async move {
            let ends: Vec<_> = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let answer = match Arguments::check(route.parameters, &ends, uri.query().unwrap_or_default(), body) {
                Ok(arguments) if route.method == Method::GET => (route.run)(node, arguments).await,
                Ok(arguments) => actions.run((route.run)(node, arguments)).await,
                Err(failure) => Err(failure),
            };
            answer.map_or_else(|failure| refuse(&failure), |document| json(StatusCode::OK, document))
        };
        router = router.route(&path, on(filter, handler));
    }
    router.route(&format!("{ROOT}/openapi.json"), axum::routing::get(|| async { json(StatusCode::OK, OPENAPI.into()) }))
}

/// A failure as its document, with the status that fits its reason.
pub(super) fn refuse(failure: &Failure) -> Response {
    json(status_of(&failure.reason), serde_json::to_vec(failure).unwrap_or_default())
}

pub(super) fn status_of(reason: &str) -> StatusCode {
    match reason {
        "InvalidArgument" => StatusCode::BAD_REQUEST,
        "Unauthenticated" => StatusCode::UNAUTHORIZED,
        "PermissionDenied" => StatusCode::FORBIDDEN,
        "NotFound" => StatusCode::NOT_FOUND,
        "ShadowMode" | "FailedPrecondition" => StatusCode::CONFLICT,
        "Unsupported" => StatusCode::NOT_IMPLEMENTED,
        "Unavailable" | "TimedOut" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn json(status: StatusCode, document: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], document).into_response()
}

fn run<C: Command + 'static>(node: Arc<LocalNode>, command: C) -> Answer {
    Box::pin(async move { document(&command.run(&node, no_steps()).await?) })
}

fn run_body<C: Command + Default + 'static>(node: Arc<LocalNode>, arguments: Arguments) -> Answer {
    Box::pin(async move { document(&arguments.document::<C>()?.run(&node, no_steps()).await?) })
}

fn document<T: Serialize>(answer: &T) -> Result<Vec<u8>, Failure> {
    Ok(serde_json::to_vec(answer)?)
}

/// The images after a key, at most `limit` of them. An image of several handlers has several rows.
fn page(mut rows: Vec<ImageRow>, after: Option<&str>, limit: u64) -> ImagePage {
    let key = |row: &ImageRow| format!("{},{}", row.id, row.runtime_handler);
    let total = rows.len() as u64;
    rows.sort_by_cached_key(key);
    rows.retain(|row| after.is_none_or(|after| key(row).as_str() > after));
    let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
    let next = (rows.len() > limit).then(|| key(&rows[limit - 1]));
    rows.truncate(limit);
    ImagePage { images: rows, total, next }
}

impl Arguments {
    /// Refuses what the route does not declare.
    fn check(declared: &[Parameter], path: &[(String, String)], query: &str, body: Bytes) -> Result<Self, Failure> {
        let wrong = |message: String| Failure::new("InvalidArgument", message);
        let mut given = BTreeMap::new();
        let find = |name: &str| declared.iter().find(|it| it.name == name);
        for (name, value) in path {
            given.extend(find(name).map(|it| (it.name, value.clone())));
        }
        for (name, value) in pairs(query) {
            let (name, value) = (decoded(name)?, decoded(value)?);
            let Some(declared) = find(&name).filter(|it| it.kind != ParameterKind::Path) else {
                return Err(wrong(format!("there is no parameter `{}`", name.escape_debug())));
            };
            let (name, shown) = (declared.name, value.escape_debug());
            match declared.kind {
                ParameterKind::Number { max } if !value.parse::<u64>().is_ok_and(|number| number <= max) => {
                    return Err(wrong(format!("`{name}` is `{shown}`; it must be a number from 0 to {max}")));
                }
                ParameterKind::Flag if !["true", "false", ""].contains(&value.as_str()) => {
                    return Err(wrong(format!("`{name}` is `{shown}`; it must be `true` or `false`")));
                }
                _ => {}
            }
            if given.insert(name, value).is_some() {
                return Err(wrong(format!("`{name}` is given twice")));
            }
        }
        let missing = declared.iter().find(|it| it.kind == ParameterKind::Required && !given.contains_key(it.name));
        match missing {
            Some(missing) => Err(wrong(format!("`{}` is missing", missing.name))),
            None => Ok(Self { given, body }),
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.given.get(name).map(String::as_str)
    }

    fn required(&self, name: &str) -> String {
        self.given.get(name).cloned().unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(|text| text.parse().ok())
    }

    fn flag(&self, name: &str) -> bool {
        self.text(name).is_some_and(|text| text != "false")
    }

    /// The document of the body. Unlike on the socket, whose clients are of any version, an unknown field is refused: a
    /// misspelled `dryRun` must not collect.
    fn document<T: DeserializeOwned + Default + Serialize>(&self) -> Result<T, Failure> {
        let body: &[u8] = if self.body.is_empty() { b"{}" } else { &self.body };
        let invalid = |error: serde_json::Error| Failure {
            reason: "InvalidArgument".into(),
            ..Failure::because("the body of the request is not valid", &error)
        };
        let fields: serde_json::Map<String, Value> = serde_json::from_slice(body).map_err(invalid)?;
        let known = serde_json::to_value(T::default())?;
        let is_known = |name: &String| known.get(name).is_some();
        if let Some(unknown) = fields.keys().find(|name| !is_known(name)) {
            let names = known.as_object().into_iter().flat_map(serde_json::Map::keys).map(String::as_str);
            let near = nearest(unknown, names).map_or_else(String::new, |near| format!("; `{near}` is near"));
            let message = format!("the body has no field `{}`{near}", unknown.escape_debug());
            return Err(Failure::new("InvalidArgument", message));
        }
        serde_json::from_value(Value::Object(fields)).map_err(invalid)
    }
}

/// The names and values of a query or a form, still encoded.
pub(super) fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// One value of a query or a form.
pub(super) fn value_of(query: &str, name: &str) -> Option<String> {
    pairs(query).find(|(given, _)| *given == name).and_then(|(_, value)| decoded(value).ok())
}

/// A part of a query, where `+` is a space as in forms.
fn decoded(text: &str) -> Result<String, Failure> {
    let text = text.replace('+', " ");
    percent_encoding::percent_decode_str(&text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| Failure::new("InvalidArgument", "a parameter is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(declared: &[Parameter], query: &str) -> Result<Arguments, String> {
        Arguments::check(declared, &[], query, Bytes::new()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn parameters_are_checked_against_the_table() {
        let declared = [
            parameter("limit", ParameterKind::Number { max: 10 }, ""),
            parameter("after", ParameterKind::Text, ""),
            parameter("all", ParameterKind::Flag, ""),
        ];
        let arguments = check(&declared, "limit=10&after=a%2Cb+c&all").unwrap();
        assert_eq!(
            (arguments.number("limit"), arguments.text("after"), arguments.flag("all")),
            (Some(10), Some("a,b c"), true)
        );
        let arguments = check(&declared, "all=false&").unwrap();
        assert_eq!((arguments.number("limit"), arguments.flag("all"), arguments.flag("none")), (None, false, false));
        for (query, words) in [
            ("limit=11", "`limit` is `11`; it must be a number from 0 to 10"),
            ("limit=-1", "a number from 0 to 10"),
            ("limit=", "a number from 0 to 10"),
            ("limit=1&limit=2", "`limit` is given twice"),
            ("all=yes", "`true` or `false`"),
            ("%1b=1", "there is no parameter `\\u{1b}`"),
            ("after=%ff", "not UTF-8"),
        ] {
            let refused = check(&declared, query).unwrap_err();
            assert!(refused.contains(words), "{query}: {refused}");
        }
        let required = [parameter("pattern", ParameterKind::Required, "")];
        assert_eq!(check(&required, "").unwrap_err(), "`pattern` is missing");
        assert!(check(&[IMAGE], "image=a").is_err(), "it is in the path");
    }

    #[test]
    fn an_unknown_field_of_a_body_is_refused_with_the_one_that_is_near() {
        let read = |body: &str| {
            let arguments = Arguments { body: Bytes::copy_from_slice(body.as_bytes()), ..Arguments::default() };
            let read: Result<CollectRequest, Failure> = arguments.document();
            read.map(|request| (request.dry_run, request.free)).map_err(|failure| {
                assert_eq!(failure.reason, "InvalidArgument");
                failure.to_string()
            })
        };
        assert_eq!((read(""), read("{}")), (Ok((false, None)), Ok((false, None))));
        assert_eq!(read("{\"dryRun\": true, \"free\": 5}"), Ok((true, Some(5))));
        for (body, words) in [
            ("{\"dry_run\": true}", "no field `dry_run`; `dryRun` is near"),
            ("{\"\\u001b\": 1}", "no field `\\u{1b}`"),
            ("{\"free\": \"much\"}", "not valid"),
            ("[]", "not valid"),
            ("{", "not valid"),
        ] {
            let refused = read(body).unwrap_err();
            assert!(refused.contains(words), "{body}: {refused}");
        }
    }

    #[test]
    fn pages_follow_one_another_without_gap_or_overlap_also_when_images_are_removed_between_them() {
        let rows = || -> Vec<ImageRow> {
            let row = |number: u32| ImageRow { id: format!("sha256:{:04}", (number * 7) % 100), ..ImageRow::default() };
            (0..100).map(row).collect()
        };
        let (mut seen, mut after) = (Vec::new(), None::<String>);
        loop {
            let mut left = rows();
            left.retain(|row| !seen.contains(&row.id) || row.id == "sha256:0000");
            let page = page(left, after.as_deref(), 9);
            assert!(page.images.len() <= 9 && page.total > 0);
            seen.extend(page.images.into_iter().map(|row| row.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, (0..100).map(|number| format!("sha256:{number:04}")).collect::<Vec<_>>());
        assert_eq!(page(rows(), None, 0).images.len(), 1);
    }
}
