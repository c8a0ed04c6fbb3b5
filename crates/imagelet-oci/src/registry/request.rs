//! One request to mirrors and registry in order, with retries.

use std::{
    hash::{BuildHasher as _, Hasher as _},
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use imagelet_core::runtime::{ErrorClass, RuntimeError, RuntimeErrorKind, Stage};

use super::{
    connection::transport::{Request, Response, drain},
    error::{ERROR_BYTES_MAX, Failure, Retry, denied, explanation, status_fault, unavailable},
    hosts::Host,
    pull_session::{PullSession, SessionHost},
};
use crate::manifest::MANIFEST_MEDIA_TYPES;

const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) path: String,
    /// `HEAD` where the response head is enough.
    pub(crate) method: Method,
    pub(crate) range: Option<String>,
    /// A tag needs the `resolve` capability of a host, a digest only `pull`.
    pub(crate) is_tag: bool,
    /// The subject of messages: `image `a/b:c``.
    pub(crate) subject: String,
}

impl Query {
    pub(crate) fn hop(&self) -> Stage {
        if self.path.starts_with("blobs/") { Stage::Blob } else { Stage::Manifest }
    }

    /// The hosts with the capability, as indices of the session's list. Never empty.
    pub(crate) fn hosts(&self, session: &PullSession) -> Result<Vec<usize>, RuntimeError> {
        let suits = |host: &Host| if self.is_tag { host.can_resolve } else { host.can_pull };
        let hosts = session.hosts().iter().enumerate();
        let indexes: Vec<usize> = hosts.filter(|(_, host)| suits(&host.host)).map(|(index, _)| index).collect();
        if indexes.is_empty() {
            let message = format!("no configured host may serve {}", self.subject);
            return Err(RuntimeError::other(message)
                .with_hint("give a host in hosts.toml the capabilities `pull` and `resolve`"));
        }
        Ok(indexes)
    }
}

#[derive(Debug)]
pub(crate) struct Budget {
    total: u32,
    spent: u32,
}

impl Budget {
    pub(crate) fn new(total: u32) -> Self {
        Self { total, spent: 0 }
    }

    /// After progress, earlier failures no longer count.
    pub(crate) fn refill(&mut self) {
        self.spent = 0;
    }

    /// Waits before the next retry, or returns the failure. A backoff counts as silence.
    pub(crate) async fn pause(&mut self, failure: Failure, session: &PullSession) -> Result<(), RuntimeError> {
        let is_ours = failure.retry == Retry::Soon;
        let wait = self.spend(failure)?;
        let _waiting = is_ours.then(|| session.reception().waiting());
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// The wait before the next retry, or the failure if there are no more.
    pub(crate) fn spend(&mut self, failure: Failure) -> Result<Duration, RuntimeError> {
        let wait = match failure.retry {
            Retry::Never => return Err(failure.error),
            Retry::Soon => jittered(backoff(self.spent)),
            Retry::After(wait) => wait,
        };
        if self.spent >= self.total {
            return Err(failure.error);
        }
        self.spent += 1;
        tracing::debug!(
            error = failure.error.chain(),
            wait_ms = wait.as_millis(),
            "retrying a request to the registry"
        );
        Ok(wait)
    }
}

impl PullSession {
    pub(crate) fn budget(&self) -> Budget {
        Budget::new(self.shared().config.retries)
    }

    /// Tries each mirror once, then the registry with retries; returns the first success.
    pub(crate) async fn first_success<'a, T>(
        &self,
        hosts: &[usize],
        budget: &mut Budget,
        attempt: impl Fn(usize) -> BoxFuture<'a, Result<T, Failure>>,
    ) -> Result<T, RuntimeError> {
        let mut before = Vec::new();
        let (last, mirrors) = hosts.split_last().expect("there is a host to ask");
        for index in mirrors {
            match attempt(*index).await {
                Ok(found) => return Ok(found),
                Err(failure) => before.push(passed_over(&self.hosts()[*index], &failure)),
            }
        }
        loop {
            match attempt(*last).await {
                Ok(found) => return Ok(found),
                Err(failure) => budget.pause(failure, self).await.map_err(|error| after_mirrors(error, &before))?,
            }
        }
    }

    /// Sends one request to one host and answers at most one 401. Only a success is a result.
    pub(crate) async fn send_to_host(&self, index: usize, query: &Query) -> Result<Response, Failure> {
        let host = &self.hosts()[index];
        let mut is_second = false;
        loop {
            let grant = host.grant();
            let shown = grant.as_ref().map(|grant| grant.number);
            let mut bound = host.host.headers.clone();
            if let Some(grant) = grant {
                bound.insert(header::AUTHORIZATION, grant.header);
            }
            let request = Request {
                target: host.target(&query.path),
                connection: host.host.connection.clone(),
                bound,
                open: open_headers(query),
                method: query.method.clone(),
                form: None,
                may_stray: true,
                hop: query.hop(),
            };
            let answer = self.transport().send(request, self.reception()).await?;
            if answer.status.is_success() {
                return Ok(answer);
            }
            // A 401 of another origin may ask for credentials that belong elsewhere.
            if answer.status != StatusCode::UNAUTHORIZED || answer.strayed || is_second {
                return Err(self.refusal(host, query, answer).await);
            }
            drain(answer.body).await;
            self.authenticate(host, &answer.headers, shown).await?;
            is_second = true;
        }
    }

    async fn refusal(&self, host: &SessionHost, query: &Query, answer: Response) -> Failure {
        let kind = answer.content_type().to_owned();
        let Response { status, headers, body, target, strayed } = answer;
        let place = target.origin.authority();
        let subject = &query.subject;
        // The status decides; an unreadable body is treated as empty.
        let words = match self.transport().read(body, ERROR_BYTES_MAX, self.reception()).await {
            Ok((body, cut)) => explanation(&kind, &body, cut, &self.secrets()),
            Err(_) => None,
        };
        let wait = headers.get(header::RETRY_AFTER).and_then(|value| retry_after(value, SystemTime::now()));
        let mut fault = status_fault(status.as_u16(), query.hop(), wait);
        // Some registries report a rate limit with another status.
        if words.as_ref().is_some_and(|words| words.contains("TOOMANYREQUESTS")) {
            fault.class = ErrorClass::RateLimited;
        }
        let detail = words.as_ref().map(|words| format!(": {words}")).unwrap_or_default();
        let mut retry = Retry::Never;
        let error = match status.as_u16() {
            401 | 403 if strayed => {
                denied(format!("`{place}`, where the registry sends for {subject}, answered {status}{detail}"))
            }
            401 | 403 => host.denied(Some(words.unwrap_or_else(|| status.to_string()))),
            404 => {
                let message = format!("{subject} was not found in registry `{place}`{detail}");
                let error = RuntimeError::new(RuntimeErrorKind::NotFound, message);
                if query.is_tag { error.with_hint("check the name and the tag") } else { error }
            }
            408 | 425 | 429 | 500..=599 => match wait {
                Some(wait) if wait > RETRY_AFTER_MAX => unavailable(format!(
                    "registry `{place}` answered {status} for {subject}; Retry-After {} s exceeds the maximum wait of \
                     {} s{detail}",
                    wait.as_secs(),
                    RETRY_AFTER_MAX.as_secs()
                )),
                wait => {
                    retry = wait.map_or(Retry::Soon, Retry::After);
                    unavailable(format!("registry `{place}` answered {status} for {subject}{detail}"))
                }
            },
            _ => RuntimeError::other(format!("registry `{place}` answered {status} for {subject}{detail}")),
        };
        Failure { error: error.with_fault(fault), retry }
    }
}

fn passed_over(host: &SessionHost, failure: &Failure) -> String {
    let place = host.host.origin.authority();
    let why = failure.error.chain();
    tracing::debug!(host = place, error = why, "a mirror failed; trying the next host");
    format!("`{place}`: {why}")
}

/// Adds the mirrors' failures, unless the error has a hint already.
fn after_mirrors(error: RuntimeError, before: &[String]) -> RuntimeError {
    if before.is_empty() || error.hint().is_some() {
        return error;
    }
    error.with_hint(format!("failed mirrors: {}", before.join("; ")))
}

fn open_headers(query: &Query) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // A digest covers the bytes as stored.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if query.hop() == Stage::Manifest {
        headers.insert(header::ACCEPT, HeaderValue::from_static(MANIFEST_MEDIA_TYPES));
    }
    if let Some(range) = query.range.as_deref().and_then(|range| HeaderValue::try_from(range).ok()) {
        headers.insert(header::RANGE, range);
    }
    headers
}

/// The wait that a registry requests, in seconds or as a date; `None` for other values.
fn retry_after(value: &HeaderValue, now: SystemTime) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::from(u32::MAX))));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

fn backoff(round: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(1 << round.min(16)).min(BACKOFF_MAX)
}

/// 75 to 100 % of a wait, so that pulls do not retry at the same moment.
fn jittered(wait: Duration) -> Duration {
    let random = std::hash::RandomState::new().build_hasher().finish() % 256;
    let quarter = wait / 4;
    wait.saturating_sub(quarter.mul_f64(random as f64 / 256.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_may_ask_for_time_in_seconds_or_by_date() {
        let now = httpdate::parse_http_date("Fri, 01 Jan 2027 00:00:00 GMT").unwrap();
        for (text, wait) in [
            ("7", Some(7)),
            ("0", Some(0)),
            (" 86400 ", Some(86_400)),
            ("99999999999999999999999", Some(u64::from(u32::MAX))),
            ("Fri, 01 Jan 2027 00:00:30 GMT", Some(30)),
            ("Thu, 31 Dec 2026 00:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
            ("", None),
        ] {
            let value = HeaderValue::from_str(text).unwrap();
            assert_eq!(retry_after(&value, now), wait.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        assert_eq!([0, 1, 2, 40].map(backoff), [200, 400, 800, 10_000].map(Duration::from_millis));
        assert!((0..100).all(|_| (150..=200).contains(&jittered(backoff(0)).as_millis())));
    }
}
