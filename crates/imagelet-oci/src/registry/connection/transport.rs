//! Sends one request and follows its redirects; credentials stay with their origin.

use std::{
    collections::{BTreeSet, HashMap},
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Incoming};
use hyper_util::client::legacy::{Error as ClientError, connect::capture_connection};
use imagelet_core::runtime::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage};
use tokio::time::{Instant, timeout};

use super::{
    connector::ConnectError,
    failure::{is_no_http, is_unexplained, proxy_denied, unreachable},
    head_wait::{AwaitedHead, awaits, no_answer},
    host_slots::{HostSlot, HostSlots, Urgency},
    http_error::HttpError,
    origin::{Origin, Target, listing_hint, may_send_on},
    reception::{Reception, Silent},
    settings::ConnectionSettings,
    tls::{Clients, HttpClient},
};
use crate::registry::{
    error::{Failure, Retry},
    locked,
};

/// As curl and Go do.
const REDIRECTS_MAX: usize = 10;
/// A longer body is not drained; its connection is closed.
const DRAIN_BYTES_MAX: usize = 16 << 10;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Loopback registries are few; ports of tests are many.
const LOOPBACK_MAX: usize = 64;
/// After so many pairs of hosts the warnings of plain redirects repeat.
const PLAIN_WARNED_MAX: usize = 256;
/// A late head that a request watches may come after so many deadlines, beside further attempts.
const LATE_HEADS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) clients: Clients,
    pub(crate) slots: HostSlots,
    /// Which loopback registries without configuration were found to speak TLS.
    pub(crate) loopback_tls: Mutex<HashMap<Origin, bool>>,
    /// The redirects from HTTPS to plain HTTP that were warned of.
    pub(crate) plain_warned: Mutex<BTreeSet<String>>,
    pub(crate) header_timeout: Duration,
    pub(crate) progress_timeout: Duration,
    pub(crate) user_agent: HeaderValue,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) target: Target,
    pub(crate) connection: ConnectionSettings,
    /// Only for the origin of `target`: its configured headers and the authorization.
    pub(crate) bound: HeaderMap,
    pub(crate) open: HeaderMap,
    pub(crate) method: Method,
    /// A form; a request with one is never redirected.
    pub(crate) form: Option<String>,
    /// Redirects to other origins, without credentials, are followed.
    pub(crate) may_stray: bool,
    /// Origins inside the network that a host outside may redirect to.
    pub(crate) listed: Arc<[Origin]>,
    pub(crate) stage: Stage,
    /// `None`: the caller has a slot of the target's origin.
    pub(crate) urgency: Option<Arc<Urgency>>,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: ResponseBody,
    pub(crate) target: Target,
    /// Another origin than that of the request sent or redirected it.
    pub(crate) redirected: bool,
}

/// A body, and its place among the requests of its host.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    incoming: Incoming,
    _slot: Option<HostSlot>,
}

impl Request {
    /// A `GET` of the registry's own, whose response is waited for.
    pub(crate) fn get(target: Target, connection: ConnectionSettings) -> Self {
        Self {
            target,
            connection,
            bound: HeaderMap::new(),
            open: HeaderMap::new(),
            method: Method::GET,
            form: None,
            may_stray: false,
            listed: Arc::default(),
            stage: Stage::Manifest,
            urgency: Some(Urgency::is_next()),
        }
    }
}

impl Response {
    /// A header as text; empty if absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

impl Transport {
    pub(crate) async fn send(&self, request: Request, reception: &Reception) -> Result<Response, Failure> {
        let origin = request.target.origin.clone();
        let stray_connection = request.connection.clone().for_other_origin();
        let mut target = request.target.clone();
        let mut redirected = false;
        for _ in 0..=REDIRECTS_MAX {
            let mut headers = request.open.clone();
            if !redirected {
                headers.extend(request.bound.clone());
            }
            headers.insert(header::USER_AGENT, self.user_agent.clone());
            let connection = if redirected { &stray_connection } else { &request.connection };
            let slot = match &request.urgency {
                Some(urgency) => Some(self.slots.acquire(&target.origin, urgency).await),
                None => None,
            };
            let response = self.exchange(&target, connection, headers, &request, reception).await;
            let response = response.map_err(|failure| failure.of_redirect(redirected))?;
            let (head, incoming) = response.into_parts();
            let body = ResponseBody { incoming, _slot: slot };
            if !is_redirect(head.status) {
                return Ok(Response { status: head.status, headers: head.headers, body, target, redirected });
            }
            let next = location(&head.headers, &target, request.stage)?;
            let is_followed = request.form.is_none() && (request.may_stray || next.origin == origin);
            let is_downgrade = target.origin.is_https() && !next.origin.is_https();
            // A blob is verified by its digest, and its request has nothing bound to the registry.
            let is_plain_refused = is_downgrade && request.stage != Stage::Blob;
            if !is_followed || is_plain_refused {
                let problem = if is_followed { "is not encrypted" } else { "is not followed here" };
                let what = format!("sends on to `{}`, which {problem}", next.origin);
                return Err(refused(&target, request.stage, &what).into());
            }
            if !may_send_on(&target.origin, &next.origin, &request.listed) {
                let what = format!("sends on to `{}`, which is inside the network, and it is not", next.origin);
                return Err(refused(&target, request.stage, &what).with_hint(listing_hint(&next.origin)).into());
            }
            if is_downgrade {
                self.warn_of_plain(&target.origin, &next.origin);
            }
            drain(body).await;
            redirected |= next.origin != origin;
            target = next;
        }
        Err(refused(&request.target, request.stage, &format!("redirects more than {REDIRECTS_MAX} times")).into())
    }

    /// Logs once that blobs of a registry on HTTPS come over plain HTTP.
    fn warn_of_plain(&self, from: &Origin, to: &Origin) {
        let mut warned = locked(&self.plain_warned);
        if warned.len() >= PLAIN_WARNED_MAX {
            warned.clear();
        }
        if warned.insert(format!("{from} {to}")) {
            tracing::warn!(
                "`{from}` redirects blobs to `{to}`, which is not encrypted: their digests are verified, and no credential is sent there"
            );
        }
    }

    /// One request. A loopback host that answers plain HTTP with 400, or not with HTTP, is tried over TLS, as by containerd.
    async fn exchange(
        &self,
        target: &Target,
        connection: &ConnectionSettings,
        headers: HeaderMap,
        asked: &Request,
        reception: &Reception,
    ) -> Result<http::Response<Incoming>, Failure> {
        let origin = &target.origin;
        if !connection.may_be_tls || !origin.is_loopback() {
            return self.exchange_once(target, connection, headers, asked, reception).await;
        }
        let tls_target = Target { origin: origin.over_tls(), ..target.clone() };
        let tls_connection = connection.clone().for_loopback_tls();
        let over_tls = |headers| self.exchange_once(&tls_target, &tls_connection, headers, asked, reception);
        let known = locked(&self.loopback_tls).get(origin).copied();
        if origin.is_https() || known == Some(true) {
            return over_tls(headers).await;
        }
        let plain = self.exchange_once(target, connection, headers.clone(), asked, reception).await;
        let is_plain = match &plain {
            Ok(response) => response.status() != StatusCode::BAD_REQUEST,
            Err(failure) => !is_no_http(&failure.error),
        };
        if is_plain && plain.is_ok() {
            self.learn_loopback(origin, false);
        }
        if is_plain || known.is_some() {
            return plain;
        }
        match over_tls(headers).await {
            Ok(response) => {
                self.learn_loopback(origin, true);
                Ok(response)
            }
            Err(failure) if failure.error.fault().class == ErrorClass::CertificateInvalid => Err(failure),
            Err(_) => plain,
        }
    }

    fn learn_loopback(&self, origin: &Origin, is_tls: bool) {
        let mut known = locked(&self.loopback_tls);
        if known.len() >= LOOPBACK_MAX {
            known.clear();
        }
        known.insert(origin.clone(), is_tls);
    }

    async fn exchange_once(
        &self,
        target: &Target,
        connection: &ConnectionSettings,
        headers: HeaderMap,
        asked: &Request,
        reception: &Reception,
    ) -> Result<http::Response<Incoming>, Failure> {
        let place = target.origin.authority();
        let invalid =
            |error: http::Error| refused(target, asked.stage, "has an address that cannot be asked").caused_by(error);
        let request = http::Request::builder().uri(target.uri().map_err(invalid)?).method(asked.method.clone());
        let mut request = request.body(Full::from(asked.form.clone().unwrap_or_default())).map_err(invalid)?;
        request.headers_mut().extend(headers);
        let mut connection = connection.clone();
        if connection.proxy.is_none() {
            let chosen = self.clients.proxies.choose(&target.origin);
            connection.proxy = chosen.map_err(|bad| unreachable(&place, asked.stage, ConnectError::from(bad)))?;
        }
        let forwards = connection.proxy.as_deref().filter(|proxy| proxy.forwards(target.origin.is_https()));
        if let Some(authorization) = forwards.and_then(|proxy| proxy.authorization.clone()) {
            request.headers_mut().insert(header::PROXY_AUTHORIZATION, authorization);
        }
        let client = self.clients.client(target.origin.is_https(), &connection).await?;
        let head = AwaitedHead {
            place: place.clone(),
            stage: asked.stage,
            is_redirected: !target.origin.is_same_place(&asked.target.origin),
            since: Instant::now(),
        };
        match self.head(&client, request, self.clients.connect_max(&connection), (head, reception)).await {
            Ok(Ok(response)) => {
                reception.received();
                match forwards {
                    Some(proxy) if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                        Err(proxy_denied(&place, proxy).into())
                    }
                    _ => Ok(response),
                }
            }
            Ok(Err(error)) => {
                let error = unreachable(&place, asked.stage, error);
                let retry = match error.hint() {
                    // The server may have closed the connection for another reason.
                    Some(_) if is_unexplained(&error) => Retry::Again { times: 1 },
                    // A failure with a hint needs a correction first.
                    Some(_) => Retry::Never,
                    None => Retry::Soon,
                };
                Err(Failure { error, retry })
            }
            Err(silent) => Err(no_answer(&place, asked.stage, silent)),
        }
    }

    /// The response head. Its deadline starts when a connection is there; the connector has deadlines of its own. A request
    /// that watches the wait decides by itself when the head is late.
    async fn head(
        &self,
        client: &HttpClient,
        mut request: http::Request<Full<Bytes>>,
        connect_max: Duration,
        (head, reception): (AwaitedHead, &Reception),
    ) -> Result<Result<http::Response<Incoming>, ClientError>, Silent> {
        let mut connection = capture_connection(&mut request);
        let mut response = pin!(client.request(request));
        let connected = async {
            tokio::select! {
                biased;
                response = &mut response => Some(response),
                _ = connection.wait_for_connection_metadata() => None,
            }
        };
        if let Some(response) = reception.within(connect_max, Duration::ZERO, connected).await? {
            return Ok(response);
        }
        let watched = awaits(AwaitedHead { since: Instant::now(), ..head });
        let limit = if watched.is_some() { self.header_timeout * LATE_HEADS } else { self.header_timeout };
        reception.within(limit, Duration::ZERO, response).await
    }

    /// Reads at most `limit` bytes of a body; `true` when more follow.
    pub(crate) async fn read(
        &self,
        body: ResponseBody,
        limit: usize,
        reception: &Arc<Reception>,
    ) -> Result<(Bytes, bool), ReadError> {
        let mut body = BodyReader::new(body, self.progress_timeout, reception);
        let mut all = BytesMut::new();
        while let Some(chunk) = body.next().await? {
            all.extend_from_slice(&chunk);
            if all.len() > limit {
                all.truncate(limit);
                return Ok((all.freeze(), true));
            }
        }
        Ok((all.freeze(), false))
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

/// Reads one body with a limit on the wait for each byte. A slow reader does not count.
#[derive(Debug)]
pub(crate) struct BodyReader {
    body: ResponseBody,
    limit: Duration,
    waited: Duration,
    reception: Arc<Reception>,
}

impl BodyReader {
    pub(crate) fn new(body: ResponseBody, limit: Duration, reception: &Arc<Reception>) -> Self {
        Self { body, limit, waited: Duration::ZERO, reception: Arc::clone(reception) }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            let started = Instant::now();
            let frame = self.reception.within(self.limit, self.waited, self.body.incoming.frame()).await;
            let frame = frame.map_err(ReadError::Silent)?;
            self.waited += started.elapsed();
            let Some(frame) = frame else { return Ok(None) };
            let Ok(chunk) = frame.map_err(|error| ReadError::Cut(HttpError::new(error)))?.into_data() else { continue };
            if !chunk.is_empty() {
                self.waited = Duration::ZERO;
                self.reception.received();
                return Ok(Some(chunk));
            }
        }
    }
}

/// Reads a short body to its end, so that its connection can be reused.
pub(crate) async fn drain(body: ResponseBody) {
    if body.incoming.size_hint().lower() <= DRAIN_BYTES_MAX as u64 {
        let _ = timeout(DRAIN_TIMEOUT, Limited::new(body.incoming, DRAIN_BYTES_MAX).collect()).await;
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
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
