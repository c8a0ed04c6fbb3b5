//! One request to mirrors and registry in order, with retries.

use std::{
    hash::{BuildHasher as _, Hasher as _},
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use imagelet_core::runtime::{ErrorClass, RuntimeError, RuntimeErrorKind, Stage};

use super::{
    Registry,
    connection::transport::{Answer, Redirects, Request, drain},
    error::{Again, Failure, explanation, status_fault, unavailable},
    hosts::Host,
    pull_session::PullSession,
};

const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
const ERROR_BYTES_MAX: usize = 8 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The path after the repository: `manifests/latest`.
    pub(crate) path: String,
    /// `HEAD` where the response head is enough.
    pub(crate) method: Method,
    pub(crate) accept: Option<&'static str>,
    /// The value of a `Range` header; `None` requests the whole body.
    pub(crate) range: Option<String>,
    /// A tag needs the `resolve` capability of a host, a digest only `pull`.
    pub(crate) is_tag: bool,
    /// The subject of messages: `image `a/b:c``.
    pub(crate) subject: String,
}

impl Question {
    fn suits(&self, host: &Host) -> bool {
        if self.is_tag { host.can_resolve } else { host.can_pull }
    }

    pub(crate) fn hop(&self) -> Stage {
        if self.path.starts_with("blobs/") { Stage::Blob } else { Stage::Manifest }
    }

    /// The hosts with the capability, as indices of the session's list. Never empty.
    pub(crate) fn hosts(&self, session: &PullSession) -> Result<Vec<usize>, RuntimeError> {
        let indexes: Vec<usize> = (0..session.hosts().len()).filter(|index| self.suits(session.host(*index))).collect();
        if indexes.is_empty() {
            let message = format!("no host is configured that may be asked for {}", self.subject);
            return Err(RuntimeError::other(message)
                .with_hint("give a host in hosts.toml the capabilities `pull` and `resolve`"));
        }
        Ok(indexes)
    }
}

/// The retries that are left.
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
        let is_ours = failure.again == Again::Soon;
        let wait = self.spend(failure)?;
        let _waiting = is_ours.then(|| session.reception().waiting());
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// The wait before the next retry, or the failure if there are no more.
    pub(crate) fn spend(&mut self, failure: Failure) -> Result<Duration, RuntimeError> {
        let wait = match failure.again {
            Again::Never => return Err(failure.error),
            Again::Soon => jittered(backoff(self.spent)),
            Again::After(wait) => wait,
        };
        if self.spent >= self.total {
            return Err(failure.error);
        }
        self.spent += 1;
        tracing::debug!(error = failure.error.chain(), wait_ms = wait.as_millis(), "asking the registry again");
        Ok(wait)
    }
}

impl Registry {
    pub(crate) fn budget(&self) -> Budget {
        Budget::new(self.shared.retries)
    }

    /// Tries each mirror once, then the registry with retries; returns the first success.
    pub(crate) async fn in_turn<'a, T>(
        &self,
        session: &PullSession,
        hosts: &[usize],
        budget: &mut Budget,
        attempt: impl Fn(usize) -> BoxFuture<'a, Result<T, Failure>>,
    ) -> Result<T, RuntimeError> {
        let mut before = Vec::new();
        let (last, mirrors) = hosts.split_last().expect("there is a host to ask");
        for index in mirrors {
            match attempt(*index).await {
                Ok(found) => return Ok(found),
                Err(failure) => before.push(passed_over(session, *index, &failure)),
            }
        }
        loop {
            match attempt(*last).await {
                Ok(found) => return Ok(found),
                Err(failure) => budget.pause(failure, session).await.map_err(|error| after_mirrors(error, &before))?,
            }
        }
    }

    /// Sends one request to one host and answers at most one 401. Only a success is a result.
    pub(crate) async fn ask_host(
        &self,
        session: &PullSession,
        index: usize,
        question: &Question,
    ) -> Result<Answer, Failure> {
        let host = session.host(index);
        let mut is_second = false;
        loop {
            let grant = session.grant(index);
            let shown = grant.as_ref().map(|grant| grant.number);
            let mut bound = host.headers.clone();
            if let Some(grant) = grant {
                bound.insert(header::AUTHORIZATION, grant.header);
            }
            let request = Request {
                target: session.target(host, &question.path),
                tls: host.tls.clone(),
                bound,
                open: open_headers(question),
                method: question.method.clone(),
                form: None,
                redirects: Redirects::Any,
                hop: question.hop(),
            };
            let answer = self.transport().send(request, session.reception()).await?;
            if answer.status.is_success() {
                return Ok(answer);
            }
            // A 401 of another origin may ask for credentials that belong elsewhere.
            if answer.status != StatusCode::UNAUTHORIZED || answer.strayed || is_second {
                return Err(self.refusal(session, index, question, answer).await);
            }
            let headers = answer.headers;
            drain(answer.body).await;
            self.authenticate(session, index, &headers, shown).await?;
            is_second = true;
        }
    }

    async fn refusal(&self, session: &PullSession, index: usize, question: &Question, answer: Answer) -> Failure {
        let wait = answer.headers.get(header::RETRY_AFTER).and_then(|value| retry_after(value, SystemTime::now()));
        let mut fault = status_fault(answer.status.as_u16(), question.hop(), wait);
        let Failure { error, again } = self.refusal_in_words(session, index, question, answer).await;
        // Some registries report a rate limit with another status.
        if error.to_string().contains("TOOMANYREQUESTS") {
            fault.class = ErrorClass::RateLimited;
        }
        Failure { error: error.with_fault(fault), again }
    }

    async fn refusal_in_words(
        &self,
        session: &PullSession,
        index: usize,
        question: &Question,
        answer: Answer,
    ) -> Failure {
        let Answer { status, headers, body, target, strayed } = answer;
        let place = target.origin.authority();
        let subject = &question.subject;
        let kind =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        // The status decides; an unreadable body is treated as empty.
        let words = match self.transport().read(body, ERROR_BYTES_MAX, session.reception()).await {
            Ok((body, cut)) => explanation(&kind, &body, cut, &session.secrets()),
            Err(_) => None,
        };
        let told = words.as_ref().map(|words| format!(": {words}")).unwrap_or_default();
        match status.as_u16() {
            401 | 403 if strayed => RuntimeError::new(
                RuntimeErrorKind::Denied,
                format!("`{place}`, where the registry sends for {subject}, answered {status}{told}"),
            )
            .into(),
            401 | 403 => session.denied(index, Some(words.unwrap_or_else(|| status.to_string()))).into(),
            404 => {
                let error = RuntimeError::new(
                    RuntimeErrorKind::NotFound,
                    format!("{subject} was not found in registry `{place}`{told}"),
                );
                if question.is_tag { error.with_hint("check the name and the tag").into() } else { error.into() }
            }
            408 | 425 | 429 | 500..=599 => {
                let error = unavailable(format!("registry `{place}` answered {status} for {subject}{told}"));
                let now = SystemTime::now();
                match headers.get(header::RETRY_AFTER).and_then(|value| retry_after(value, now)) {
                    Some(wait) if wait > RETRY_AFTER_MAX => unavailable(format!(
                        "registry `{place}` answered {status} for {subject} and asks to come back in {} s; more than {} s are not waited{told}",
                        wait.as_secs(),
                        RETRY_AFTER_MAX.as_secs()
                    ))
                    .into(),
                    Some(wait) => Failure { error, again: Again::After(wait) },
                    None => Failure::passing(error),
                }
            }
            _ => RuntimeError::other(format!("registry `{place}` answered {status} for {subject}{told}")).into(),
        }
    }
}

/// Records a mirror's failure.
fn passed_over(session: &PullSession, index: usize, failure: &Failure) -> String {
    let place = session.host(index).origin.authority();
    let why = failure.error.chain();
    tracing::debug!(host = place, error = why, "a mirror did not help, asking the next host");
    format!("`{place}`: {why}")
}

/// Adds the mirrors' failures, unless the error has a hint already.
fn after_mirrors(error: RuntimeError, before: &[String]) -> RuntimeError {
    if before.is_empty() || error.hint().is_some() {
        return error;
    }
    error.with_hint(format!("asked before, without success: {}", before.join("; ")))
}

fn open_headers(question: &Question) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // A digest covers the bytes as stored.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(accept) = question.accept {
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    }
    if let Some(range) = question.range.as_deref().and_then(|range| HeaderValue::try_from(range).ok()) {
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
