//! Sends one request to the mirrors and the registry in order, with retries.

mod attempts;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use imagelet_core::{
    error::{ErrorClass, Fault, Party, RuntimeError, RuntimeErrorKind, Stage},
    ports::{NextRequest, PullEvent},
    retry_wait::random_share,
};
use tokio::time::Instant;

use super::{
    auth::challenge::is_answerable,
    connection::{Reception, Request, RequestKind, Response, Target, Urgency, drain},
    error::{
        ERROR_BYTES_MAX, Failure, RETRY_AFTER_MAX, Retry, denied, explanation, scrubbed, status_fault, status_retry,
    },
    health,
    hosts::Host,
    next_host::{Attempts, Next, Standing},
    pull_session::{PullSession, SessionHost},
    rate_limit::requested_wait,
};
use crate::manifest::MANIFEST_MEDIA_TYPES;

/// The retry of a rejected signed URL, which may have expired. The registry signs a new URL for each retry.
const FRESH_REDIRECTS: Retry = Retry::Again { times: 2 };
/// Maximum random delay after a requested wait. It spreads the requests that wait for the same moment.
const HELD_SPREAD: Duration = Duration::from_millis(200);
const REPORTED_WAIT_MIN: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct Query {
    pub(crate) path: String,
    pub(crate) is_head: bool,
    pub(crate) range: Option<String>,
    /// Whether the request is by tag. A tag needs the capability `resolve` of a host, a digest only `pull`.
    pub(crate) is_tag: bool,
    /// The subject of messages, such as: blob `sha256:…` of `a/b:c`.
    pub(crate) subject: String,
    pub(crate) urgency: Arc<Urgency>,
}

impl Query {
    pub(crate) fn new(path: impl Into<String>, urgency: Arc<Urgency>) -> Self {
        Self { path: path.into(), is_head: false, range: None, is_tag: false, subject: String::new(), urgency }
    }

    pub(crate) fn stage(&self) -> Stage {
        if self.path.starts_with("blobs/") { Stage::Blob } else { Stage::Manifest }
    }

    /// The hosts with the needed capability, as indices in the session's list. It is an error if there are none.
    pub(crate) fn hosts(&self, session: &PullSession) -> Result<Vec<usize>, RuntimeError> {
        let suits = |host: &Host| if self.is_tag { host.capabilities.resolve } else { host.capabilities.pull };
        let hosts = session.hosts.iter().enumerate();
        let indexes: Vec<usize> = hosts.filter(|(_, host)| suits(&host.host)).map(|(index, _)| index).collect();
        if indexes.is_empty() {
            let message = format!("no configured host may serve {}", self.subject);
            return Err(RuntimeError::other(message)
                .with_hint("give a host in hosts.toml the capabilities `pull` and `resolve`"));
        }
        Ok(indexes)
    }
}

impl PullSession {
    /// Waits before an attempt. A backoff counts as time without a byte; a wait that the registry requests does not.
    async fn pause(&self, next: Next) {
        if next.wait >= REPORTED_WAIT_MIN {
            self.report(PullEvent::Retry(NextRequest {
                host: self.hosts[next.host].host.origin.authority(),
                at: Instant::now() + next.wait,
                is_requested: next.is_requested,
            }));
        }
        let spread = if next.is_requested { HELD_SPREAD.mul_f64(random_share()) } else { Duration::ZERO };
        let _waiting = (!next.is_requested).then(|| self.reception.waiting());
        tokio::time::sleep(next.wait + spread).await;
    }

    pub(crate) fn record_failure(&self, attempts: &mut Attempts, index: usize, failure: Failure, began: Instant) {
        let host = &self.hosts[index];
        let (origin, fault) = (&host.host.origin, failure.error.fault());
        tracing::debug!(host = %origin, error = failure.error.chain(), "a request to a registry host failed");
        host.count_failure(fault.class);
        if let Some(bad) = health::proof(&fault) {
            self.shared.health.failed(origin, self.reference.repository(), bad, began);
        }
        let now = Instant::now();
        if is_answer(&fault) {
            attempts.remove(|other| host.host.is_twin(&self.hosts[other].host));
        }
        let due = attempts.failed(index, failure, now);
        // The rate limit of a token service or redirect target does not delay other requests to the host.
        let is_limited = fault.class == ErrorClass::RateLimited || fault.retry_after.is_some();
        if is_limited
            && fault.stage != Stage::Token
            && fault.party != Party::RedirectTarget
            && let Some(end) = due.or_else(|| Some(now + fault.retry_after?.min(RETRY_AFTER_MAX)))
        {
            self.shared.rate_limits.hold(origin, host.account, end);
        }
    }

    pub(crate) fn record_success(&self, index: usize, began: Instant) {
        self.retry_budget.served(false);
        self.shared.health.succeeded(&self.hosts[index].host.origin, self.reference.repository(), began);
    }

    pub(crate) fn standing(&self, index: usize) -> Standing {
        let (host, shared) = (&self.hosts[index], &self.shared);
        let origin = &host.host.origin;
        let repository = self.reference.repository();
        shared.health.probe_if_due(origin, repository, || self.clone().probe(index));
        Standing {
            is_bad: shared.health.is_bad(origin, repository),
            held_until: shared.rate_limits.held_until(origin, host.account),
            is_asked: false,
        }
    }

    /// Whether a host answers without a server error. The host receives no credential.
    async fn probe(self, index: usize) -> bool {
        let host = &self.hosts[index].host;
        let target = Target { origin: host.origin.clone(), path_and_query: "/v2/".to_owned() };
        let request = Request::get(target, &host.connection.clone().without_identities());
        let answer = self.shared.transport.send(request, &Arc::new(Reception::new(None))).await;
        answer.is_ok_and(|answer| !answer.status.is_server_error())
    }

    /// The error after the last attempt of a request. It has the number of attempts, their hosts, and the time.
    fn given_up(&self, attempts: &mut Attempts, subject: &str, next: Option<Next>) -> RuntimeError {
        let (count, time) = attempts.spent(Instant::now());
        let (last, mut mirrors) = std::mem::replace(attempts, Attempts::new([])).into_errors();
        if let Some((last, _)) = &last {
            // A host that occurs twice, by another scheme or as its own mirror, is named once.
            let last = &self.hosts[*last].host.origin;
            mirrors.retain(|(index, _)| !self.hosts[*index].host.origin.is_same_place(last));
        }
        let error = match (last, next) {
            (Some((_, error)), _) => error,
            (None, None) => RuntimeError::other(format!("no host is left for {subject}")),
            (None, Some(Next { host, wait, .. })) => {
                let (place, seconds) = (self.hosts[host].host.origin.authority(), wait.as_secs_f32().ceil());
                let message = format!(
                    "registry `{place}` takes no request for {subject} in the next {seconds} s: it limits requests"
                );
                let fault = Fault { retry_after: Some(wait), ..Fault::new(ErrorClass::RateLimited, Stage::Manifest) };
                RuntimeError::new(RuntimeErrorKind::RegistryUnavailable, message).with_fault(fault)
            }
        };
        let mut parts = Vec::new();
        if count > 1 || !mirrors.is_empty() {
            parts.push(format!("{count} attempts in {:.1} s failed", time.as_secs_f32()));
        }
        if let Some(next) = next.filter(|next| count > 1 || (next.is_requested && count > 0)) {
            let what = if next.is_requested { "the registry requests a wait of" } else { "the next one is due in" };
            let (wait, spent) = (next.wait.as_secs_f32().ceil(), self.retry_budget.spent().as_secs_f32());
            let total = self.retry_budget.allowed(&next).as_secs_f32();
            parts.push(format!(
                "{what} {wait} s, and the pull retries for at most {total} s, of which {spent:.1} s are over"
            ));
        }
        let words = mirrors
            .iter()
            .map(|(index, error)| format!("`{}`: {}", self.hosts[*index].host.origin.authority(), error.chain()));
        let words = scrubbed(words.collect::<Vec<_>>().join("; ").as_bytes(), false, &self.secrets());
        if !words.is_empty() {
            parts.push(format!("mirrors failed: {words}"));
        }
        let error = match mirrors.iter().find_map(|(_, error)| error.hint()) {
            Some(hint) if error.hint().is_none() => error.with_hint(hint),
            _ => error,
        };
        if parts.is_empty() { error } else { error.about(format!("{subject}: {}", parts.join("; "))) }
    }

    /// Sends one request to one host, and answers at most one 401. Returns only successful responses. The future is
    /// boxed, so that the transport is compiled only in this crate.
    pub(crate) fn send_to_host<'a>(
        &'a self,
        index: usize,
        query: &'a Query,
    ) -> BoxFuture<'a, Result<Response, Failure>> {
        self.send(index, query).boxed()
    }

    async fn send(&self, index: usize, query: &Query) -> Result<Response, Failure> {
        let host = &self.hosts[index];
        let mut is_second = false;
        loop {
            let (bound, shown) = host.bound_headers();
            let request = Request {
                bound,
                open: open_headers(query),
                kind: if query.is_head { RequestKind::Head } else { RequestKind::Get },
                // A login follows no redirect to another origin, whose answer would say nothing about the credential.
                redirects: (!host.is_login).then(|| Arc::clone(&self.listed)),
                stage: query.stage(),
                urgency: Some(Arc::clone(&query.urgency)),
                ..Request::get(host.target(&query.path), &host.host.connection)
            };
            let answer = self.shared.transport.send(request, &self.reception).await?;
            if answer.status.is_success() {
                return Ok(answer);
            }
            let is_refusal = matches!(answer.status.as_u16(), 401 | 403 | 404) && !answer.redirected;
            let has_challenge = answer.status == StatusCode::UNAUTHORIZED && is_answerable(&answer.headers);
            if is_refusal && !has_challenge && host.has_unshown_credential() && !is_second {
                // Some registries reject a request without a credential instead of sending a challenge.
                let challenge = host.challenge.get_or_try_init(|| self.challenge_of(host, query)).await?;
                if let Some(challenge) = challenge {
                    drain(answer.body).await;
                    self.authenticate(host, challenge, shown).await?;
                    continue;
                }
            }
            // A 401 after a redirect to another origin is final: it may ask for the credential of another host.
            if answer.status != StatusCode::UNAUTHORIZED || answer.redirected || is_second {
                return Err(self.refusal(host, query, answer).await);
            }
            drain(answer.body).await;
            self.authenticate(host, &answer.headers, shown).await?;
            is_second = true;
        }
    }

    /// Requests the API root without a credential. Returns the headers of the answer if they ask for a credential.
    async fn challenge_of(&self, host: &SessionHost, query: &Query) -> Result<Option<HeaderMap>, Failure> {
        let base = &host.host.path.base;
        let root = if base.starts_with("/v2/") { "/v2" } else { base };
        let target = Target { origin: host.host.origin.clone(), path_and_query: format!("{root}/") };
        let bound = host.host.headers.clone();
        let request = Request { bound, ..Request::get(target, &host.host.connection) };
        let answer = self.shared.transport.send(request, &self.reception).await?;
        if status_retry(answer.status.as_u16(), None).is_some() {
            // A temporary failure does not show whether a credential is needed.
            return Err(self.refusal(host, query, answer).await);
        }
        let asks = answer.status == StatusCode::UNAUTHORIZED && !answer.redirected && is_answerable(&answer.headers);
        drain(answer.body).await;
        Ok(asks.then_some(answer.headers))
    }

    async fn refusal(&self, host: &SessionHost, query: &Query, answer: Response) -> Failure {
        let kind = answer.header("content-type").to_owned();
        let Response { status, headers, body, target, redirected } = answer;
        let (place, subject, code) = (target.origin.authority(), &query.subject, status.as_u16());
        // The status decides, so an unreadable body is ignored. A redirect may lead to any host: its body is not shown.
        let words = match body.read(ERROR_BYTES_MAX).await {
            Ok((body, cut)) if !redirected => explanation(&kind, &body, cut, &self.secrets()),
            _ => None,
        };
        let wait = requested_wait(status, &headers, SystemTime::now());
        // The wait that a redirect target requests is dropped, because its rate limit is not the registry's.
        let mut fault = status_fault(code, query.stage(), wait.filter(|_| !redirected));
        // Some registries report a rate limit with a status other than 429.
        if words.as_ref().is_some_and(|words| words.contains("TOOMANYREQUESTS")) {
            fault.class = ErrorClass::RateLimited;
        }
        let detail = words.as_ref().map(|words| format!(": {words}")).unwrap_or_default();
        let answered = |kind, more: &str| {
            RuntimeError::new(kind, format!("registry `{place}` answered {status} for {subject}{more}{detail}"))
        };
        let (error, retry) = match (code, status_retry(code, wait)) {
            (400 | 401 | 403 | 410, _) if redirected => {
                let message = format!("`{place}`, where the registry sends for {subject}, answered {status}{detail}");
                (denied(message), if code == 401 { Retry::Never } else { FRESH_REDIRECTS })
            }
            (401 | 403, _) => (host.denied(Some(words.unwrap_or_else(|| status.to_string()))), Retry::Never),
            (404, _) if host.is_login => (answered(RuntimeErrorKind::RegistryUnavailable, ""), Retry::Never),
            (404, _) => {
                let message = format!("{subject} was not found in registry `{place}`{detail}");
                let error = RuntimeError::new(RuntimeErrorKind::NotFound, message);
                (if query.is_tag { error.with_hint("check the name and the tag") } else { error }, Retry::Never)
            }
            (_, Some(Retry::Never)) => {
                let (wait, limit) = (wait.unwrap_or_default().as_secs(), RETRY_AFTER_MAX.as_secs());
                let more = format!("; Retry-After {wait} s exceeds the maximum wait of {limit} s");
                (answered(RuntimeErrorKind::RegistryUnavailable, &more), Retry::Never)
            }
            (_, Some(retry)) => (answered(RuntimeErrorKind::RegistryUnavailable, ""), retry),
            (_, None) => (answered(RuntimeErrorKind::Other, ""), Retry::Never),
        };
        Failure { error: error.with_fault(fault), retry }.of_redirect(redirected)
    }
}

/// Whether the failure is an answer of the host. Then the host is not tried with the other scheme (HTTP or HTTPS).
fn is_answer(fault: &Fault) -> bool {
    fault.party == Party::Registry
        && matches!(fault.stage, Stage::Manifest | Stage::Blob)
        && !matches!(fault.class, ErrorClass::TimedOut | ErrorClass::ConnectionLost | ErrorClass::AnswerInvalid)
}

fn open_headers(query: &Query) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // A content encoding would change the bytes, but the digest is of the bytes without an encoding.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if query.stage() == Stage::Manifest {
        headers.insert(header::ACCEPT, HeaderValue::from_static(MANIFEST_MEDIA_TYPES));
    }
    if let Some(range) = query.range.as_deref().and_then(|range| HeaderValue::try_from(range).ok()) {
        headers.insert(header::RANGE, range);
    }
    headers
}
