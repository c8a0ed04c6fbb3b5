//! Sends one request and follows its redirects; credentials stay with their origin.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use imagelet_core::runtime::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage};
use tokio::time::{Instant, timeout};

use super::{
    origin::Target,
    reception::{Reception, Silent},
    tls::Clients,
};
use crate::registry::{
    error::{Again, Failure, unavailable, unreachable},
    hosts::TlsSettings,
};

/// As curl and Go do.
const REDIRECTS_MAX: usize = 10;
/// A longer body is not drained; its connection is closed.
const DRAIN_BYTES_MAX: usize = 16 << 10;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) clients: Clients,
    pub(crate) header_timeout: Duration,
    pub(crate) progress_timeout: Duration,
    pub(crate) token_timeout: Duration,
    pub(crate) user_agent: HeaderValue,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) target: Target,
    pub(crate) tls: TlsSettings,
    /// Only for the origin of `target`: its configured headers and the authorization.
    pub(crate) bound: HeaderMap,
    pub(crate) open: HeaderMap,
    pub(crate) method: Method,
    pub(crate) form: Option<String>,
    pub(crate) redirects: Redirects,
    pub(crate) hop: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirects {
    /// To any origin, without credentials.
    Any,
    SameOrigin,
}

/// The head of a response, and the unread body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Incoming,
    pub(crate) target: Target,
    /// Another origin than that of the request sent or redirected it.
    pub(crate) strayed: bool,
}

impl Transport {
    /// Sends a request and waits for the response head.
    pub(crate) async fn send(&self, request: Request, reception: &Reception) -> Result<Answer, Failure> {
        let origin = request.target.origin.clone();
        // A client certificate is a credential too.
        let stray_tls = TlsSettings { identity: None, ..request.tls.clone() };
        let mut target = request.target.clone();
        let mut strayed = false;
        for _ in 0..=REDIRECTS_MAX {
            let mut headers = request.open.clone();
            if !strayed {
                headers.extend(request.bound.clone());
            }
            headers.insert(header::USER_AGENT, self.user_agent.clone());
            let tls = if strayed { &stray_tls } else { &request.tls };
            let response = self.exchange(&target, tls, headers, &request, reception).await?;
            let (head, body) = response.into_parts();
            if !is_redirect(head.status) {
                return Ok(Answer { status: head.status, headers: head.headers, body, target, strayed });
            }
            let next = location(&head.headers, &target)?;
            let allowed = request.form.is_none() && (request.redirects == Redirects::Any || next.origin == origin);
            if !allowed {
                return Err(
                    refused(&target, &format!("sends on to `{}`, which is not followed here", next.origin)).into()
                );
            }
            if target.origin.is_https() && !next.origin.is_https() {
                return Err(refused(&target, &format!("sends on to `{}`, which is not encrypted", next.origin)).into());
            }
            drain(body).await;
            strayed |= next.origin != origin;
            target = next;
        }
        Err(refused(&request.target, &format!("redirects more than {REDIRECTS_MAX} times")).into())
    }

    async fn exchange(
        &self,
        target: &Target,
        tls: &TlsSettings,
        headers: HeaderMap,
        asked: &Request,
        reception: &Reception,
    ) -> Result<http::Response<Incoming>, Failure> {
        let form = asked.form.as_deref();
        let place = target.origin.authority();
        let invalid = |error: http::Error| refused(target, "has an address that cannot be asked").caused_by(error);
        let mut request = http::Request::builder().uri(target.uri().map_err(invalid)?);
        request = match form {
            Some(_) => request
                .method(Method::POST)
                .header(header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded")),
            None => request.method(asked.method.clone()),
        };
        let body = Full::new(form.map_or_else(Bytes::new, |form| Bytes::copy_from_slice(form.as_bytes())));
        let mut request = request.body(body).map_err(invalid)?;
        request.headers_mut().extend(headers);
        let client = if target.origin.is_https() { self.clients.secure(tls).await? } else { self.clients.plain()? };
        match reception.within(self.header_timeout, client.request(request)).await {
            Ok(Ok(response)) => {
                reception.heard(1);
                Ok(response)
            }
            Ok(Err(error)) => {
                let error = unreachable(&place, error);
                // A failure with a hint needs a correction first.
                let again = if error.hint().is_some() { Again::Never } else { Again::Soon };
                Err(Failure { error, again })
            }
            Err(silent) => {
                let error = unavailable(format!("registry `{place}` did not answer")).caused_by(silent);
                let error = error.with_fault(Fault::new(ErrorClass::TimedOut, asked.hop));
                Err(Failure { error, again: again(silent) })
            }
        }
    }

    /// Reads at most `limit` bytes of a body; `true` when more follow.
    pub(crate) async fn read(
        &self,
        mut body: Incoming,
        limit: usize,
        reception: &Arc<Reception>,
    ) -> Result<(Bytes, bool), ReadError> {
        let mut patience = Patience::new(self.progress_timeout, reception);
        let mut all = BytesMut::new();
        while let Some(chunk) = patience.next(&mut body).await? {
            let room = limit - all.len();
            if chunk.len() > room {
                all.extend_from_slice(&chunk[..room]);
                return Ok((all.freeze(), true));
            }
            all.extend_from_slice(&chunk);
        }
        Ok((all.freeze(), false))
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Silent(Silent),
    #[error("the connection was cut")]
    Cut(#[source] hyper::Error),
}

impl ReadError {
    pub(crate) fn failure(self, what: &str, place: &str) -> Failure {
        let (kind, class, again) = match self {
            Self::Silent(silent) => (RuntimeErrorKind::TimedOut, ErrorClass::TimedOut, again(silent)),
            Self::Cut(_) => (RuntimeErrorKind::RegistryUnavailable, ErrorClass::ConnectionLost, Again::Soon),
        };
        let message = format!("could not read {what} from registry `{place}`");
        let hop = if what.starts_with("blob") { Stage::Blob } else { Stage::Manifest };
        let error = RuntimeError::new(kind, message).caused_by(self).with_fault(Fault::new(class, hop));
        Failure { error, again }
    }
}

/// A silent connection is retried; a silent pull fails.
fn again(silent: Silent) -> Again {
    match silent {
        Silent::Connection(_) => Again::Soon,
        Silent::Pull(_) => Again::Never,
    }
}

/// Reads one body with a limit on the wait for each byte. A slow reader does not count.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Duration,
    /// Time since the last byte.
    waited: Duration,
    reception: Arc<Reception>,
}

impl Patience {
    pub(crate) fn new(limit: Duration, reception: &Arc<Reception>) -> Self {
        Self { limit, waited: Duration::ZERO, reception: Arc::clone(reception) }
    }

    pub(crate) async fn next(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, ReadError> {
        loop {
            let started = Instant::now();
            let left = self.limit.saturating_sub(self.waited);
            let frame = self.reception.within(left, body.frame()).await.map_err(|silent| match silent {
                Silent::Connection(_) => ReadError::Silent(Silent::Connection(self.limit)),
                Silent::Pull(_) => ReadError::Silent(silent),
            })?;
            self.waited += started.elapsed();
            let Some(frame) = frame else { return Ok(None) };
            let Ok(chunk) = frame.map_err(ReadError::Cut)?.into_data() else { continue };
            if !chunk.is_empty() {
                self.waited = Duration::ZERO;
                self.reception.heard(chunk.len() as u64);
                return Ok(Some(chunk));
            }
        }
    }
}

/// Reads a short body to its end, so that its connection can be reused.
pub(crate) async fn drain(mut body: Incoming) {
    if body.size_hint().lower() > DRAIN_BYTES_MAX as u64 {
        return;
    }
    let read = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            left = match left.checked_sub(length) {
                Some(left) => left,
                None => return,
            };
        }
    };
    // Hyper reuses or drops the connection according to what was read.
    let _ = timeout(DRAIN_TIMEOUT, read).await;
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn location(headers: &HeaderMap, from: &Target) -> Result<Target, RuntimeError> {
    let value = headers.get(header::LOCATION).ok_or_else(|| refused(from, "redirects to nowhere"))?;
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| refused(from, "redirects to no URL"))?;
    from.join(text).map_err(|problem| refused(from, &format!("redirects to {problem}")))
}

fn refused(target: &Target, what: &str) -> RuntimeError {
    RuntimeError::new(RuntimeErrorKind::Other, format!("`{target}` {what}"))
}
