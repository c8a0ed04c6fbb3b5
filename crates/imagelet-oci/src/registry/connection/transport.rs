//! Sends one request and follows its redirects; credentials stay with their origin.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Incoming};
use hyper_util::client::legacy::connect::capture_connection;
use imagelet_core::{
    credentials::Secret,
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
};
use tokio::time::{Instant, timeout};

use super::{
    ConnectError, HttpError,
    failure::{is_no_http, is_unexplained, proxy_denied, unreachable},
    host_slots::{HostSlot, HostSlots, Urgency},
    origin::{Origin, Target, listing_hint, may_send_on},
    reception::{AwaitedHead, Reception, Silent, awaits, no_answer},
    settings::ConnectionSettings,
    tls::Clients,
};
use crate::registry::{
    error::{Failure, Retry},
    is_new, locked,
};

const USER_AGENT: &str = concat!("imagelet/", env!("CARGO_PKG_VERSION"));
/// The limit of Go's HTTP client.
const REDIRECTS_MAX: usize = 10;
/// A longer body is not drained; its connection is closed.
const DRAIN_BYTES_MAX: usize = 16 << 10;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// If a `HeadWait` watches the wait for a head, the wait lasts this many deadlines: other attempts run in parallel.
const LATE_HEADS: u32 = 4;

pub(crate) struct Transport {
    pub(crate) clients: Clients,
    pub(crate) slots: HostSlots,
    pub(crate) loopback_tls: Mutex<BTreeSet<String>>,
    pub(crate) loopback_plain: Mutex<BTreeSet<String>>,
    /// The redirects from HTTPS to plain HTTP for which a warning was logged.
    pub(crate) plain_warned: Mutex<BTreeSet<String>>,
    pub(crate) header_timeout: Duration,
    pub(crate) progress_timeout: Duration,
}

pub(crate) struct Request {
    pub(crate) target: Target,
    pub(crate) connection: ConnectionSettings,
    /// Headers for the origin of `target` only: its configured headers and the authorization.
    pub(crate) bound: HeaderMap,
    pub(crate) open: HeaderMap,
    pub(crate) kind: RequestKind,
    /// With a list, redirects to other origins are followed, without credentials; without a list, they are an error. A
    /// redirect of an external host to an internal origin is followed only if the list contains the origin.
    pub(crate) redirects: Option<Arc<[Origin]>>,
    pub(crate) stage: Stage,
    /// How soon the request needs a slot. `None` if the caller already has a slot for the target's origin.
    pub(crate) urgency: Option<Arc<Urgency>>,
}

pub(crate) enum RequestKind {
    Get,
    Head,
    /// A `POST` of a form, which is never redirected.
    Form(Secret),
}

pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: BodyReader,
    pub(crate) target: Target,
    /// Whether the request was redirected to another origin.
    pub(crate) redirected: bool,
}

impl Request {
    /// A `GET` without redirects to other origins. The caller needs its response next.
    pub(crate) fn get(target: Target, connection: &ConnectionSettings) -> Self {
        Self {
            target,
            connection: connection.clone(),
            bound: HeaderMap::new(),
            open: HeaderMap::new(),
            kind: RequestKind::Get,
            redirects: None,
            stage: Stage::Manifest,
            urgency: Some(Urgency::is_next()),
        }
    }

    /// The HTTP request to `target`. After a redirect to another origin, it has no `bound` headers.
    fn http(&self, target: &Target, is_redirected: bool) -> Result<http::Request<Full<Bytes>>, http::Error> {
        let mut headers = self.open.clone();
        if !is_redirected {
            headers.extend(self.bound.clone());
        }
        let (method, body) = match &self.kind {
            RequestKind::Get => (Method::GET, Bytes::new()),
            RequestKind::Head => (Method::HEAD, Bytes::new()),
            RequestKind::Form(form) => {
                let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
                headers.insert(header::CONTENT_TYPE, form_type);
                (Method::POST, form.expose().to_owned().into())
            }
        };
        let mut request = http::Request::builder().uri(target.uri()?).method(method).body(Full::from(body))?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

impl Response {
    /// A header as text; empty if absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

impl Transport {
    pub(crate) async fn send(&self, request: Request, reception: &Arc<Reception>) -> Result<Response, Failure> {
        let (origin, stage) = (&request.target.origin, request.stage);
        let mut target = request.target.clone();
        let mut redirected = false;
        for _ in 0..=REDIRECTS_MAX {
            let slot = match &request.urgency {
                Some(urgency) => Some(self.slots.acquire(&target.origin, urgency).await),
                None => None,
            };
            let response = self.exchange(&request, &target, redirected, reception).await;
            let (head, incoming) = response.map_err(|failure| failure.of_redirect(redirected))?.into_parts();
            let (limit, reception) = (self.progress_timeout, Arc::clone(reception));
            let body = BodyReader { incoming, limit, reception, _slot: slot };
            if !matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(Response { status: head.status, headers: head.headers, body, target, redirected });
            }
            let next = location(&head.headers, &target, stage)?;
            let refuse = |why: &str| refused(&target, stage, &format!("sends on to `{}`, which {why}", next.origin));
            let is_form = matches!(request.kind, RequestKind::Form(_));
            if is_form || (request.redirects.is_none() && next.origin != *origin) {
                return Err(refuse("is not followed here").into());
            }
            let is_downgrade = target.origin.is_https && !next.origin.is_https;
            // Only a blob may come over plain HTTP: its digest is verified, and no `bound` headers are sent.
            if is_downgrade && stage != Stage::Blob {
                return Err(refuse("is not encrypted").into());
            }
            if !may_send_on(&target.origin, &next.origin, request.redirects.as_deref().unwrap_or_default()) {
                let hint = listing_hint(&next.origin);
                return Err(refuse("is inside the network, and it is not").with_hint(hint).into());
            }
            let (from, to) = (&target.origin, &next.origin);
            if is_downgrade && is_new(&self.plain_warned, &format!("{from} {to}")) {
                tracing::warn!(
                    "`{from}` redirects blobs to `{to}`, which is not encrypted: their digests are verified, and no credential is sent there"
                );
            }
            drain(body).await;
            redirected |= next.origin != *origin;
            target = next;
        }
        Err(refused(&request.target, stage, &format!("redirects more than {REDIRECTS_MAX} times")).into())
    }

    /// Sends one request. As in containerd, a loopback host that answers with 400 or not in HTTP is tried over TLS.
    async fn exchange(
        &self,
        request: &Request,
        target: &Target,
        redirected: bool,
        reception: &Reception,
    ) -> Result<http::Response<Incoming>, Failure> {
        let origin = &target.origin;
        let elsewhere = redirected.then(|| request.connection.clone().for_other_origin());
        let connection = elsewhere.as_ref().unwrap_or(&request.connection);
        let once = async |target: &Target, connection| {
            let place = target.origin.authority();
            let mut sent = request.http(target, redirected).map_err(|error| {
                refused(target, request.stage, "has an address that cannot be asked").caused_by(error)
            })?;
            sent.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
            let head = AwaitedHead {
                place,
                stage: request.stage,
                is_redirected: !target.origin.is_same_place(&request.target.origin),
                since: Instant::now(),
            };
            self.exchange_once(sent, &target.origin, connection, head, reception).await
        };
        if !connection.may_be_tls || !origin.is_loopback() {
            return once(target, connection.clone()).await;
        }
        let over_tls = async || {
            let target = Target { origin: origin.over_tls(), ..target.clone() };
            once(&target, connection.clone().for_loopback_tls()).await
        };
        let name = origin.to_string();
        if origin.is_https || locked(&self.loopback_tls).contains(&name) {
            return over_tls().await;
        }
        let plain = once(target, connection.clone()).await;
        let may_be_tls = match &plain {
            Ok(response) => response.status() == StatusCode::BAD_REQUEST,
            Err(failure) => is_no_http(&failure.error),
        };
        if !may_be_tls && plain.is_ok() {
            is_new(&self.loopback_plain, &name);
        }
        if !may_be_tls || locked(&self.loopback_plain).contains(&name) {
            return plain;
        }
        match over_tls().await {
            Ok(response) => {
                is_new(&self.loopback_tls, &name);
                Ok(response)
            }
            Err(failure) if failure.error.fault().class == ErrorClass::CertificateInvalid => Err(failure),
            Err(_) => plain,
        }
    }

    /// The deadline for the head starts when the connection is made; the connector has separate deadlines.
    async fn exchange_once(
        &self,
        mut request: http::Request<Full<Bytes>>,
        origin: &Origin,
        mut connection: ConnectionSettings,
        head: AwaitedHead,
        reception: &Reception,
    ) -> Result<http::Response<Incoming>, Failure> {
        let (place, stage) = (head.place.clone(), head.stage);
        if connection.proxy.is_none() {
            let chosen = self.clients.proxies.choose(origin);
            connection.proxy = chosen.map_err(|bad| unreachable(&place, stage, ConnectError::BadProxy(bad)))?;
        }
        let forwards = connection.proxy.as_deref().filter(|proxy| proxy.forwards(origin.is_https));
        if let Some(authorization) = forwards.and_then(|proxy| proxy.authorization.clone()) {
            request.headers_mut().insert(header::PROXY_AUTHORIZATION, authorization);
        }
        let client = self.clients.client(origin.is_https, &connection).await?;
        let mut captured = capture_connection(&mut request);
        let mut response = pin!(client.request(request));
        let connected = async {
            tokio::select! {
                biased;
                response = &mut response => Some(response),
                _ = captured.wait_for_connection_metadata() => None,
            }
        };
        let silent = |silent| no_answer(&place, stage, silent);
        let early = reception.within(self.clients.connect_max(&connection), connected).await.map_err(silent)?;
        let response = if let Some(response) = early {
            response
        } else {
            let is_watched = awaits(Some(AwaitedHead { since: Instant::now(), ..head }));
            let limit = if is_watched { self.header_timeout * LATE_HEADS } else { self.header_timeout };
            let response = reception.within(limit, response).await;
            awaits(None);
            response.map_err(silent)?
        };
        let response = response.map_err(|error| {
            let error = unreachable(&place, stage, error);
            let retry = match error.hint() {
                // The server may have closed the connection for a reason other than the certificate.
                Some(_) if is_unexplained(&error) => Retry::Again { times: 1 },
                // A failure with a hint needs a correction first.
                Some(_) => Retry::Never,
                None => Retry::Soon,
            };
            Failure { error, retry }
        })?;
        reception.received();
        match forwards {
            Some(proxy) if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                Err(proxy_denied(&place, proxy).into())
            }
            _ => Ok(response),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Silent(Silent),
    #[error("the connection was cut")]
    Cut(#[source] HttpError),
}

impl ReadError {
    pub(crate) fn failure(self, what: &str, place: &str) -> Failure {
        let (kind, class, retry) = match self {
            Self::Silent(silent) => (RuntimeErrorKind::TimedOut, ErrorClass::TimedOut, silent.retry()),
            Self::Cut(_) => (RuntimeErrorKind::RegistryUnavailable, ErrorClass::ConnectionLost, Retry::Soon),
        };
        let message = format!("could not read {what} from registry `{place}`");
        let stage = if what.starts_with("blob") { Stage::Blob } else { Stage::Manifest };
        let error = RuntimeError::new(kind, message).caused_by(self).with_fault(Fault::new(class, stage));
        Failure { error, retry }
    }
}

/// Reads one body. The wait for each chunk is limited; the time between two reads does not count.
pub(crate) struct BodyReader {
    incoming: Incoming,
    limit: Duration,
    reception: Arc<Reception>,
    _slot: Option<HostSlot>,
}

impl BodyReader {
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            let frame = self.reception.within(self.limit, self.incoming.frame()).await.map_err(ReadError::Silent)?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| ReadError::Cut(HttpError::new(error)))?;
            if let Ok(chunk) = frame.into_data() {
                self.reception.received();
                return Ok(Some(chunk));
            }
        }
    }

    /// Reads at most `limit` bytes. Returns whether the body is longer.
    pub(crate) async fn read(mut self, limit: usize) -> Result<(Bytes, bool), ReadError> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.next().await? {
            all.extend_from_slice(&chunk);
            if all.len() > limit {
                all.truncate(limit);
                return Ok((all.freeze(), true));
            }
        }
        Ok((all.freeze(), false))
    }
}

/// Reads a short body to its end, so that its connection can be reused.
pub(crate) async fn drain(body: BodyReader) {
    if body.incoming.size_hint().lower() <= DRAIN_BYTES_MAX as u64 {
        let _ = timeout(DRAIN_TIMEOUT, Limited::new(body.incoming, DRAIN_BYTES_MAX).collect()).await;
    }
}

fn location(headers: &HeaderMap, from: &Target, stage: Stage) -> Result<Target, RuntimeError> {
    let value = headers.get(header::LOCATION).ok_or_else(|| refused(from, stage, "redirects to nowhere"))?;
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| refused(from, stage, "redirects to no URL"))?;
    from.join(text).map_err(|problem| refused(from, stage, &format!("redirects to {problem}")))
}

fn refused(target: &Target, stage: Stage, what: &str) -> RuntimeError {
    RuntimeError::new(RuntimeErrorKind::Other, format!("`{target}` {what}"))
        .with_fault(Fault::new(ErrorClass::AnswerInvalid, stage))
}
