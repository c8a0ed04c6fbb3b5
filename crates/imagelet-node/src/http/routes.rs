//! The JSON API: typed routes, the same on the socket and over HTTP.

use axum::{
    Json, Router,
    body::Bytes,
    extract::{FromRequest, Path, Query, Request, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{Method, StatusCode, header};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _},
};
use serde_json::Value;

use crate::{
    api::{
        CollectRequest, Collected, DiskRequest, ImagePage, ImageRow, InspectRequest, Inspected, OpenCircuits,
        PinRequest, PinsRequest, PullsRequest, QueueRequest, StatusRequest, UnpinRequest, at_most, no_steps,
    },
    failure::Failure,
    nearest::nearest,
    node::{Command, Daemon, DecisionsRequest, Why, WhyRequest},
};

/// The OpenAPI document of these routes. A test compares it with the types of the parameters and the answers.
pub(super) const OPENAPI: &str = include_str!("openapi.json");
pub(super) const ROOT: &str = "/api/v1";
const ROWS_MAX: u64 = 1000;
const FREE_BYTES_MAX: u64 = 1 << 60;

pub(super) fn routes() -> Router<Daemon> {
    let openapi = || async { ([(header::CONTENT_TYPE, "application/json")], OPENAPI) };
    let routes = Router::new()
        .route("/openapi.json", get(openapi))
        .route("/images", get(images))
        // The name of an image contains slashes, so the name is the rest of the path.
        .route("/images/{*image}", get(image))
        .route("/pulls", get(read::<PullsRequest>))
        .route("/disk", get(read::<DiskRequest>))
        .route("/decisions", get(read::<DecisionsRequest>))
        .route("/decisions/{*image}", get(why))
        .route("/queue", get(read::<QueueRequest>))
        .route("/registries", get(registries))
        .route("/status", get(read::<StatusRequest>))
        .route("/gc/plan", get(plan))
        .route("/gc", post(act::<CollectRequest>))
        .route("/pins", get(read::<PinsRequest>).post(act::<PinRequest>).delete(act::<UnpinRequest>));
    Router::new().nest(ROOT, routes)
}

async fn read<C: Command>(
    State(Daemon { node, .. }): State<Daemon>,
    Arguments(command): Arguments<C>,
) -> Result<Json<C::Answer>, Failure> {
    command.run(&node, no_steps()).await.map(Json)
}

/// An action runs to its end even if the client disconnects.
async fn act<C: Command>(
    State(Daemon { node, calls }): State<Daemon>,
    Arguments(command): Arguments<C>,
) -> Result<Json<C::Answer>, Failure> {
    calls.act(async move { command.run(&node, no_steps()).await }).await.map(Json)
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct NoParameters {}

#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct PageParameters {
    /// Images of the page; 100 unless given.
    #[cfg_attr(test, schemars(range(max = ROWS_MAX)))]
    limit: Option<u64>,
    /// `next` of the page before.
    after: Option<String>,
}

async fn images(
    State(Daemon { node, .. }): State<Daemon>,
    Arguments(asked): Arguments<PageParameters>,
) -> Result<Json<ImagePage>, Failure> {
    let limit = at_most("limit", asked.limit.unwrap_or(100), ROWS_MAX)?;
    Ok(Json(page(node.pulls.images.rows().await?, asked.after.as_deref(), limit)))
}

async fn image(
    State(Daemon { node, .. }): State<Daemon>,
    Path(image): Path<String>,
    Arguments(NoParameters {}): Arguments<NoParameters>,
) -> Result<Json<Inspected>, Failure> {
    let found = InspectRequest { image: image.clone() }.run(&node, no_steps()).await?;
    match found.image {
        Some(_) => Ok(Json(found)),
        None => Err(Failure::new("NotFound", format!("no image `{image}`"))),
    }
}

async fn why(
    State(Daemon { node, .. }): State<Daemon>,
    Path(image): Path<String>,
    Arguments(NoParameters {}): Arguments<NoParameters>,
) -> Result<Json<Why>, Failure> {
    WhyRequest { image }.run(&node, no_steps()).await.map(Json)
}

async fn registries(
    State(Daemon { node, .. }): State<Daemon>,
    Arguments(NoParameters {}): Arguments<NoParameters>,
) -> Result<Json<OpenCircuits>, Failure> {
    Ok(Json(OpenCircuits { registries: node.pulls.queue().registries }))
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PlanParameters {
    /// High threshold in percent; the configured one unless given.
    #[cfg_attr(test, schemars(range(max = 100)))]
    high: Option<u8>,
    /// Low threshold in percent; the configured one unless given.
    #[cfg_attr(test, schemars(range(max = 100)))]
    low: Option<u8>,
    /// Free this many bytes, whatever the thresholds are.
    #[cfg_attr(test, schemars(range(max = FREE_BYTES_MAX)))]
    free: Option<u64>,
    /// Plan for all images that are neither used nor pinned.
    #[serde(deserialize_with = "flag")]
    all_unused: bool,
    /// Most rows, images to remove first; 100 unless given.
    #[cfg_attr(test, schemars(range(max = ROWS_MAX)))]
    limit: Option<u64>,
}

/// Parses a flag of a query. A flag without a value is `true`.
fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    match &*String::deserialize(from)? {
        "true" | "" => Ok(true),
        "false" => Ok(false),
        _ => Err(D::Error::custom("provided string was not `true` or `false`")),
    }
}

async fn plan(
    State(Daemon { node, .. }): State<Daemon>,
    Arguments(asked): Arguments<PlanParameters>,
) -> Result<Json<Collected>, Failure> {
    let PlanParameters { high, low, free, all_unused, limit } = asked;
    let limit = at_most("limit", limit.unwrap_or(100), ROWS_MAX)?;
    at_most("free", free.unwrap_or_default(), FREE_BYTES_MAX)?;
    let request = CollectRequest { dry_run: true, high, low, free, all_unused, ..CollectRequest::default() };
    let mut plan = request.run(&node, no_steps()).await?;
    plan.images.truncate(limit);
    Ok(Json(plan))
}

/// Returns at most `limit` rows that follow the key `after`. An image of several handlers has several rows.
fn page(mut rows: Vec<ImageRow>, after: Option<&str>, limit: usize) -> ImagePage {
    let key = |row: &ImageRow| format!("{},{}", row.id, row.runtime_handler);
    let (total, limit) = (rows.len() as u64, limit.max(1));
    rows.sort_by_cached_key(key);
    rows.retain(|row| after.is_none_or(|after| key(row).as_str() > after));
    let next = (rows.len() > limit).then(|| key(&rows[limit - 1]));
    rows.truncate(limit);
    ImagePage { images: rows, total, next }
}

/// The query parameters, or the body of a POST. An unknown name is rejected, so that a request with a misspelled
/// `dryRun` does not collect. Commands of the socket ignore unknown names, because clients may have another version.
struct Arguments<T>(T);

impl<S: Send + Sync, T: DeserializeOwned + Serialize + Default> FromRequest<S> for Arguments<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let invalid = |error| invalid("the parameters of the request are not valid", &error);
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(request.uri()).map_err(invalid)?.0;
        let (refusal, names) = ("there is no parameter", pairs.iter().map(|(name, _)| name));
        if request.method() == Method::POST {
            check_names::<NoParameters>(refusal, names)?;
            return document(&Bytes::from_request(request, state).await?).map(Self);
        }
        check_names::<T>(refusal, names)?;
        Ok(Self(Query::<T>::try_from_uri(request.uri()).map_err(invalid)?.0))
    }
}

fn document<T: DeserializeOwned + Serialize + Default>(body: &[u8]) -> Result<T, Failure> {
    let invalid = |error| invalid("the body of the request is not valid", &error);
    let body: &[u8] = if body.is_empty() { b"{}" } else { body };
    let fields: serde_json::Map<String, Value> = serde_json::from_slice(body).map_err(invalid)?;
    check_names::<T>("the body has no field", fields.keys())?;
    serde_json::from_value(Value::Object(fields)).map_err(invalid)
}

fn check_names<'a, T: Serialize + Default>(
    refusal: &str,
    mut names: impl Iterator<Item = &'a String>,
) -> Result<(), Failure> {
    let known = serde_json::to_value(T::default())?;
    let Some(unknown) = names.find(|name| known.get(name).is_none()) else { return Ok(()) };
    let known = known.as_object().into_iter().flat_map(serde_json::Map::keys).map(String::as_str);
    let near = nearest(unknown, known).map_or_else(String::new, |near| format!("; `{near}` is near"));
    Err(Failure::invalid(format!("{refusal} `{}`{near}", unknown.escape_debug())))
}

fn invalid(message: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure { reason: "InvalidArgument".into(), ..Failure::because(message, error) }
}

impl Failure {
    pub(super) fn status(&self) -> StatusCode {
        match self.reason.as_str() {
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
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status(), Json(self)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parameters_are_checked_against_their_type() {
        async fn check(query: &str) -> Result<PlanParameters, String> {
            let request = Request::get(format!("/api/v1/gc/plan?{query}")).body(axum::body::Body::empty()).unwrap();
            let checked = Arguments::from_request(request, &()).await;
            checked.map(|it| it.0).map_err(|failure| {
                assert_eq!(failure.reason, "InvalidArgument");
                failure.to_string()
            })
        }
        let checked = check("limit=10&free=5&allUnused=true&").await.unwrap();
        assert_eq!((checked.limit, checked.free, checked.all_unused), (Some(10), Some(5), true));
        for (query, all_unused) in [("allUnused", true), ("allUnused=", true), ("allUnused=false", false), ("", false)]
        {
            assert_eq!(check(query).await.unwrap().all_unused, all_unused, "{query}");
        }
        for (query, words) in [
            ("limit=-1", "limit: invalid digit"),
            ("limit=", "limit: cannot parse"),
            ("limit=1&limit=2", "duplicate field `limit`"),
            ("allUnused=yes", "allUnused: provided string was not `true` or `false`"),
            ("all_unused=true", "there is no parameter `all_unused`; `allUnused` is near"),
            ("%1b=1", "there is no parameter `\\u{1b}`"),
        ] {
            let refused = check(query).await.unwrap_err();
            assert!(refused.contains(words), "{query}: {refused}");
        }
        let refused = at_most("limit", 11, 10).unwrap_err().to_string();
        assert_eq!(refused, "`limit` is `11`; it must be a number from 0 to 10");
    }

    #[tokio::test]
    async fn a_request_with_a_body_has_no_parameters() {
        for (query, is_refused) in [("", false), ("?", false), ("?dryRun=true", true), ("?dryRun", true)] {
            let request = Request::post(format!("/api/v1/gc{query}")).body(axum::body::Body::empty()).unwrap();
            let checked: Result<Arguments<CollectRequest>, Failure> = Arguments::from_request(request, &()).await;
            let refused = checked.err().map(|failure| failure.to_string());
            let wanted = is_refused.then(|| "there is no parameter `dryRun`".to_owned());
            assert_eq!(refused, wanted, "{query}");
        }
    }

    #[test]
    fn an_unknown_field_of_a_body_is_refused_with_the_one_that_is_near() {
        let read = |body: &str| {
            let read: Result<CollectRequest, Failure> = document(body.as_bytes());
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
