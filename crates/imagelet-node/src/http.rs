//! The daemon's routes: the JSON API on the socket and over HTTP; commands only on the socket; metrics, health and the
//! dashboard only over HTTP, for the clients that its access policy accepts.

mod access;
mod commands;
mod controller;
mod dashboard;
mod event_stream;
mod health;
mod routes;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::{
    Extension, Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use imagelet_core::metrics::Metrics;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use access::HttpAccess;
pub use controller::{MeasuredController, serve_controller, serve_health};

use crate::{
    api::EventsRequest,
    connections::{self, Limits, Peer, open_files_max},
    failure::Failure,
    node::{Daemon, follower, send_events},
};
use access::{Decision, Purpose, text_of};
use event_stream::{EventStreams, Framing};

const FORGED: &str = "an action needs the header `x-imagelet-action` and must come from this server's own pages";
/// How often a stream of events reports the progress of pulls, in milliseconds.
const PROGRESS_MS: u64 = 1000;
/// An extension of a request. It is cancelled when a reload replaces the token that permitted the request.
#[derive(Clone, Debug)]
struct PermissionEnd(CancellationToken);

/// Headers of every answer: pages load content only from this server, and pages of other servers may not embed them.
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

/// Listens on `HOST:PORT`. Without a token, the address must be a loopback address.
pub async fn bind(address: &str, has_token: bool) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Failure::because(format!("could not listen on `{address}`"), &error))?;
    // The configuration check does not resolve host names, so the bound address is checked.
    if !has_token && listener.local_addr().is_ok_and(|bound| !bound.ip().is_loopback()) {
        let message = format!("the HTTP address `{address}` is not loopback and needs a token file");
        return Err(Failure::invalid(message).or_hint("`imagelet help http` describes the access"));
    }
    Ok(listener)
}

/// Listens on a port of all addresses, for content that every client may read.
pub async fn bind_all(port: u16) -> Result<TcpListener, Failure> {
    // An IPv6 listener also accepts IPv4, if the kernel has IPv6.
    let bound = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        bound => bound,
    };
    bound.map_err(|error| Failure::because(format!("could not listen on the port {port}"), &error))
}

/// The routes of the socket, whose clients may run every command.
pub(crate) fn on_socket(daemon: &Daemon, limits: Limits) -> Router {
    api(daemon, limits).merge(commands::routes()).with_state(daemon.clone())
}

pub async fn serve(listener: TcpListener, daemon: Daemon, access: HttpAccess) {
    let (limits, stop) = (Limits::of_http(open_files_max()), daemon.calls.accepting.clone());
    let ready = |Daemon { node, .. }: Daemon| async move { health::ready(&node).await };
    let router = dashboard::add(api(&daemon, limits)).route("/metrics", get(metrics));
    let router = with_probes(router, Some(access.clone()), ready)
        .fallback(not_found)
        .with_state(daemon)
        .layer(from_fn_with_state(access, guard));
    connections::serve(listener, router, limits, stop).await;
}

fn api(daemon: &Daemon, limits: Limits) -> Router<Daemon> {
    let streams = EventStreams::new(limits.connections.each, daemon.calls.accepting.clone());
    let events = move |State(Daemon { node, .. }): State<Daemon>,
                       end: Option<Extension<PermissionEnd>>,
                       headers: HeaderMap| async move {
        let framing = Framing::new(node.status.started_at, text_of(&headers, "last-event-id"));
        let asked = EventsRequest { follow: true, progress_ms: Some(PROGRESS_MS) };
        let end = end.map(|Extension(PermissionEnd(end))| end).unwrap_or_default();
        let place = follower()?;
        Ok::<_, Failure>(streams.open(framing, end, |client| async move {
            send_events(&node.pulls, &asked, place, client).await;
        }))
    };
    routes::routes().route(&format!("{}/events", routes::ROOT), get(events))
}

/// Adds the routes of the probes. Only clients with read access get the reasons of failures, which may contain paths.
fn with_probes<S, F>(
    router: Router<S>,
    access: Option<HttpAccess>,
    ready: impl Fn(S) -> F + Clone + Send + Sync + 'static,
) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    F: Future<Output = Vec<health::Checked>> + Send,
{
    let has_details = access.is_some();
    let live = move |uri: Uri| async move { probe("livez", &health::live(), has_details && asks_for_details(&uri)) };
    let ready = move |State(state): State<S>, uri: Uri, headers: HeaderMap| async move {
        let may_read = |access: &HttpAccess| access.policy().decide(Purpose::Read, &headers) == Decision::Allow;
        let is_verbose = asks_for_details(&uri) && access.as_ref().is_some_and(may_read);
        probe("readyz", &ready(state).await, is_verbose)
    };
    router.route("/healthz", get(live)).route("/livez", get(live)).route("/readyz", get(ready))
}

async fn metrics(State(Daemon { node, .. }): State<Daemon>) -> impl IntoResponse {
    node.measure().await;
    rendered(&node.status.metrics)
}

fn rendered(metrics: &Metrics) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
}

async fn not_found() -> Failure {
    Failure::new("NotFound", "there is nothing at this path")
}

/// Answers the requests that the access policy allows, and adds [`HEADERS`] to every answer.
async fn guard(
    State(access): State<HttpAccess>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let policy = access.policy();
    let purpose = purpose_of(request.method(), request.uri().path());
    let decision = policy.decide(purpose, request.headers());
    let is_near = matches!(peer, Peer::Address(address) if address.to_canonical().is_loopback());
    let denied = |message: &str| Failure::new("PermissionDenied", message);
    let mut response = match decision {
        // This case precedes the challenge: a remote browser must not ask its user for a token that opens no page.
        Decision::Allow | Decision::Unauthenticated if dashboard::is_part(request.uri().path()) && !is_near => {
            denied("the dashboard answers on loopback only")
                .or_hint("ssh -L 9100:127.0.0.1:9100 NODE; the API needs no such way")
                .into_response()
        }
        Decision::Allow => {
            request.extensions_mut().insert(PermissionEnd(policy.ended.clone()));
            next.run(request).await
        }
        Decision::ForeignHost => {
            let refused = denied("the request names another host; http.hostNames lists the names of this one");
            (StatusCode::MISDIRECTED_REQUEST, refused).into_response()
        }
        Decision::Unauthenticated => {
            // With `Basic`, a browser asks for a name, which is ignored, and for a password, which is the token. A
            // script of the page gets the same challenge, because the browser may not know the token yet.
            let by_page = text_of(request.headers(), "sec-fetch-site") == Some("same-origin");
            let challenge =
                if is_near && (by_page || is_page(&request)) { "Basic realm=\"imagelet\"" } else { "Bearer" };
            let refused = Failure::new("Unauthenticated", "the request has no valid token");
            ([(header::WWW_AUTHENTICATE, challenge)], refused).into_response()
        }
        Decision::ActionsOff => {
            denied("this daemon does not take actions over HTTP").or_hint("http.actions: true").into_response()
        }
        Decision::ForgedAction => denied(FORGED).into_response(),
        Decision::ForeignPage => {
            denied("a page of another site cannot read by the login of the browser").into_response()
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
        _ if path.starts_with("/assets/") => Purpose::Asset,
        _ if *method == Method::GET || *method == Method::HEAD => Purpose::Read,
        _ => Purpose::Action,
    }
}

/// Whether a browser requests a page. A program does not send `text/html` in `Accept`.
fn is_page(request: &Request) -> bool {
    let accepted = text_of(request.headers(), "accept").unwrap_or_default();
    request.method() == Method::GET && accepted.contains("text/html") && !request.uri().path().starts_with(routes::ROOT)
}

fn asks_for_details(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair.split('=').next() == Some("verbose")))
}

fn probe(name: &str, checks: &[health::Checked], is_verbose: bool) -> (StatusCode, String) {
    let (is_ok, text) = health::report(name, checks, is_verbose);
    (if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}
