//! The HTTP endpoint: metrics, health, the JSON API and the dashboard, for the clients that its access policy accepts.

mod access;
mod actions;
mod controller;
mod dashboard;
mod event_stream;
mod health;
mod listener;
mod routes;
#[cfg(test)]
mod tests;

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::SystemTime,
};

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use imagelet_core::metrics::Metrics;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use access::HttpAccess;
pub use controller::{MeasuredController, serve_controller, serve_health};

use crate::{
    api::{EventsRequest, Handler},
    connections::{http_limits, open_files_max},
    failure::Failure,
    node::LocalNode,
};
use access::{AccessPolicy, Decision, Presented, Purpose};
use actions::Actions;
use event_stream::EventStreams;

/// The header without which nothing is changed.
const ACTION: &str = "x-imagelet-action";
/// How often a stream of events reports the progress of pulls, in milliseconds.
const PROGRESS_MS: u64 = 1000;
/// The end of the permission by which a request is answered.
#[derive(Clone, Debug)]
struct PermissionEnd(CancellationToken);

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

/// Listens on `HOST:PORT`; without a token on loopback only.
pub async fn bind(address: &str, has_token: bool) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Failure::because(format!("could not listen on `{address}`"), &error))?;
    // A configuration knows addresses; what a name means is known now.
    if !has_token && listener.local_addr().is_ok_and(|bound| !bound.ip().is_loopback()) {
        let message = format!("the HTTP address `{address}` is not loopback and needs a token file");
        return Err(Failure::new("InvalidArgument", message).or_hint("`imagelet help http` describes the access"));
    }
    Ok(listener)
}

/// Listens on a port of all addresses, for what every client may read.
pub async fn bind_all(port: u16) -> Result<TcpListener, Failure> {
    // A listener of IPv6 accepts IPv4 as well, where the kernel has IPv6.
    let bound = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        bound => bound,
    };
    bound.map_err(|error| Failure::because(format!("could not listen on the port {port}"), &error))
}

pub async fn serve(listener: TcpListener, node: Arc<LocalNode>, access: HttpAccess, stop: CancellationToken) {
    let limits = http_limits(open_files_max());
    let streams = EventStreams::new(limits.open.each, node.started_at, stop.clone());
    let actions = Actions::new(stop.clone());
    listener::serve(listener, router(node, access, streams, &actions), limits, stop).await;
    actions.end().await;
}

fn router(node: Arc<LocalNode>, access: HttpAccess, streams: EventStreams, actions: &Actions) -> Router {
    let (readiness, login, pages) = (access.clone(), access.clone(), access.clone());
    let events = move |State(node): State<Arc<LocalNode>>,
                       Extension(end): Extension<PermissionEnd>,
                       headers: HeaderMap| async move {
        let after = text_of(&headers, "last-event-id").map(str::to_owned);
        let asked = EventsRequest { follow: true, progress_ms: Some(PROGRESS_MS) };
        streams.open(node as Arc<dyn Handler>, &asked, after.as_deref(), end.0)
    };
    let ready = move |State(node): State<Arc<LocalNode>>, uri: Uri, headers: HeaderMap| async move {
        let is_verbose = is_verbose(&uri, &headers, &readiness);
        probe("readyz", &health::ready(&node).await, is_verbose)
    };
    let live = |uri: Uri| async move { probe("livez", &health::live(), asks_for_details(&uri)) };
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(live))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/login", post(move |body: Bytes| async move { log_in(&login.policy(), &body) }))
        .route("/logout", post(|| async { to_start(&AccessPolicy::log_out()) }))
        .route(&format!("{}/events", routes::ROOT), get(events));
    dashboard::add(routes::add(router, actions), move || pages.has_token())
        .fallback(|| async { not_found() })
        .with_state(node)
        .layer(from_fn_with_state(access, guard))
}

async fn metrics(State(node): State<Arc<LocalNode>>) -> impl IntoResponse {
    node.measure().await;
    rendered(&node.parts.metrics)
}

/// All metrics in Prometheus' text format.
fn rendered(metrics: &Metrics) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
}

fn not_found() -> Response {
    routes::refuse(&Failure::new("NotFound", "there is nothing at this path"))
}

/// Answers the requests that the policy allows, with the headers of every answer.
async fn guard(State(access): State<HttpAccess>, mut request: Request, next: Next) -> Response {
    let (policy, headers) = (access.policy(), request.headers());
    let purpose = purpose_of(request.method(), request.uri().path());
    let decision = policy.decide(purpose, &presented(headers), SystemTime::now());
    let refused = |reason: &str, message: &str| routes::refuse(&Failure::new(reason, message));
    let mut response = match decision {
        Decision::Allow => {
            request.extensions_mut().insert(PermissionEnd(policy.ended.clone()));
            next.run(request).await
        }
        Decision::ForeignHost => {
            let message = "the request names another host; http.hostNames lists the names of this one";
            (StatusCode::MISDIRECTED_REQUEST, refused("PermissionDenied", message)).into_response()
        }
        Decision::Unauthenticated if is_page(&request) => {
            (StatusCode::UNAUTHORIZED, Html(dashboard::login(None))).into_response()
        }
        Decision::Unauthenticated => {
            let refused = refused("Unauthenticated", "the request has neither a valid token nor a session");
            ([(header::WWW_AUTHENTICATE, "Bearer")], refused).into_response()
        }
        Decision::ActionsOff => routes::refuse(
            &Failure::new("PermissionDenied", "this daemon does not take actions over HTTP")
                .or_hint("http.actions: true"),
        ),
        Decision::ForgedAction => {
            let message = format!("an action needs the header `{ACTION}` and must come from this server's own pages");
            refused("PermissionDenied", &message)
        }
        Decision::ForgedLogin => refused("PermissionDenied", "a session begins and ends on this server's own pages"),
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
        _ if path.starts_with("/assets/") => Purpose::Asset,
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
    asks_for_details(uri) && may_read
}

fn asks_for_details(uri: &Uri) -> bool {
    routes::pairs(uri.query().unwrap_or_default()).any(|(name, _)| name == "verbose")
}

fn probe(name: &str, checks: &[health::Checked], is_verbose: bool) -> (StatusCode, String) {
    let (is_ok, text) = health::report(name, checks, is_verbose);
    (if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

fn log_in(policy: &AccessPolicy, body: &[u8]) -> Response {
    if !policy.has_token() {
        return not_found();
    }
    let token = routes::value_of(std::str::from_utf8(body).unwrap_or_default(), "token").unwrap_or_default();
    match policy.log_in(token.trim(), SystemTime::now()) {
        Some(cookie) => to_start(&cookie),
        None => (StatusCode::UNAUTHORIZED, Html(dashboard::login(Some("The token is wrong.")))).into_response(),
    }
}

fn to_start(cookie: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, "/")]).into_response()
}
