//! The HTTP endpoint: metrics, health, the JSON API and the dashboard, for the clients that its access policy accepts.

mod access;
mod dashboard;
mod event_stream;
mod health;
mod listener;
mod metrics;
#[cfg(test)]
mod openapi;
mod routes;

use std::{sync::Arc, time::SystemTime};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request, State},
    middleware::{Next, from_fn_with_state},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

pub(crate) use access::{AccessPolicy, HttpAccess};

use crate::{
    api::{EventsRequest, Handler},
    connections::{http_limits, open_files_max},
    failure::Failure,
    node::LocalNode,
};
use access::{Decision, Presented, Purpose};
use event_stream::{EventStreams, STREAMS_MAX};

/// The header without which nothing is changed.
const ACTION: &str = "x-imagelet-action";
/// The longest body: a pin, a collection, or a login.
const BODY_BYTES_MAX: usize = 64 << 10;
/// How often a stream of events reports the progress of pulls, in milliseconds.
const PROGRESS_MS: u64 = 1000;
/// Headers of every answer. Scripts, styles and connections come from this server alone, and no page embeds another.
static HEADERS: [(header::HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

pub(crate) async fn serve(listener: TcpListener, node: Arc<LocalNode>, access: HttpAccess, stop: CancellationToken) {
    let streams = EventStreams { free: Arc::new(Semaphore::new(STREAMS_MAX)), stop: stop.clone() };
    let limits = http_limits(open_files_max());
    listener::serve(listener, router(node, access, streams), limits, stop).await;
}

fn router(node: Arc<LocalNode>, access: HttpAccess, streams: EventStreams) -> Router {
    let (readiness, login, pages) = (access.clone(), access.clone(), access.clone());
    let events = move |State(node): State<Arc<LocalNode>>, headers: HeaderMap| async move {
        let after = text_of(&headers, "last-event-id").map(str::to_owned);
        let asked = EventsRequest { follow: true, progress_ms: Some(PROGRESS_MS) };
        streams.open(node as Arc<dyn Handler>, &asked, after)
    };
    let ready = move |State(node): State<Arc<LocalNode>>, uri: Uri, headers: HeaderMap| async move {
        let is_verbose = is_verbose(&uri, &headers, &readiness);
        probe("readyz", &health::ready(&node).await, is_verbose)
    };
    let live = |uri: Uri| async move { probe("livez", &health::live(), uri.query() == Some("verbose")) };
    let router = Router::new()
        .route("/metrics", get(metrics::metrics))
        .route("/healthz", get(live))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/login", post(move |body: Bytes| async move { log_in(&login.policy(), &body) }))
        .route("/logout", post(|| async { to_start(&AccessPolicy::log_out()) }))
        .route(&format!("{}/events", routes::ROOT), get(events));
    dashboard::add(routes::add(router), move || pages.has_token())
        .fallback(|| async { routes::refuse(&Failure::new("NotFound", "there is nothing at this path")) })
        .with_state(node)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(access, guard))
}

/// Answers the requests that the policy allows, with the headers of every answer.
async fn guard(State(access): State<HttpAccess>, request: Request, next: Next) -> Response {
    let (policy, headers) = (access.policy(), request.headers());
    let purpose = purpose_of(request.method(), request.uri().path());
    let decision = policy.decide(purpose, &presented(headers), SystemTime::now());
    let mut response = match decision {
        Decision::Allow => next.run(request).await,
        Decision::ForeignHost => {
            let message = "the request names another host; http.hostNames lists the names of this one";
            let refused = routes::refuse(&Failure::new("PermissionDenied", message));
            (StatusCode::MISDIRECTED_REQUEST, refused).into_response()
        }
        Decision::Unauthenticated if is_page(&request) => {
            (StatusCode::UNAUTHORIZED, Html(dashboard::login(None))).into_response()
        }
        Decision::Unauthenticated => {
            let failure = Failure::new("Unauthenticated", "the request has neither a valid token nor a session");
            ([(header::WWW_AUTHENTICATE, "Bearer")], routes::refuse(&failure)).into_response()
        }
        Decision::ActionsOff => routes::refuse(
            &Failure::new("PermissionDenied", "this daemon does not take actions over HTTP")
                .or_hint("http.actions: true"),
        ),
        Decision::ForgedAction => {
            let message = format!("an action needs the header `{ACTION}` and must come from this server's own pages");
            routes::refuse(&Failure::new("PermissionDenied", message))
        }
    };
    for (name, value) in &HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

fn purpose_of(method: &Method, path: &str) -> Purpose {
    match path {
        "/livez" | "/readyz" | "/healthz" => Purpose::Probe,
        "/login" | "/logout" => Purpose::Login,
        _ if path.starts_with("/assets/") => Purpose::Login,
        _ if *method == Method::GET || *method == Method::HEAD => Purpose::Read,
        _ => Purpose::Action,
    }
}

/// A browser asks for a page; a program does not name the type.
fn is_page(request: &Request) -> bool {
    let accepted = text_of(request.headers(), "accept").unwrap_or_default();
    request.method() == Method::GET && accepted.contains("text/html") && !request.uri().path().starts_with(routes::ROOT)
}

fn presented(headers: &HeaderMap) -> Presented<'_> {
    Presented {
        host: text_of(headers, "host"),
        authorization: text_of(headers, "authorization"),
        cookies: text_of(headers, "cookie"),
        has_action_header: headers.contains_key(ACTION),
        fetch_site: text_of(headers, "sec-fetch-site"),
    }
}

fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Reasons of failed checks may name paths and endpoints: only for clients that may read.
fn is_verbose(uri: &Uri, headers: &HeaderMap, access: &HttpAccess) -> bool {
    let may_read = access.policy().decide(Purpose::Read, &presented(headers), SystemTime::now()) == Decision::Allow;
    uri.query().is_some_and(|query| query.split('&').any(|it| it == "verbose" || it.starts_with("verbose=")))
        && may_read
}

fn probe(name: &str, checks: &[health::Checked], is_verbose: bool) -> (StatusCode, String) {
    let (is_ok, text) = health::report(name, checks, is_verbose);
    (if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

fn log_in(policy: &AccessPolicy, body: &[u8]) -> Response {
    let form = std::str::from_utf8(body).unwrap_or_default();
    let token = form.split('&').find_map(|field| field.strip_prefix("token="));
    let token = token.and_then(|token| routes::decoded(token).ok()).unwrap_or_default();
    match policy.log_in(token.trim(), SystemTime::now()) {
        Some(cookie) => to_start(&cookie),
        None => (StatusCode::UNAUTHORIZED, Html(dashboard::login(Some("The token is wrong.")))).into_response(),
    }
}

fn to_start(cookie: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, "/")]).into_response()
}
