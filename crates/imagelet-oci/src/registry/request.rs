//! Puts one question to mirrors and registry in order, and again where that may help.

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
/// Most of an error answer that is read.
const ERROR_BYTES_MAX: usize = 8 << 10;

/// What is asked of a repository.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// Behind the repository: `manifests/latest`.
    pub(crate) path: String,
    /// `HEAD` where the answer's head says all that is wanted.
    pub(crate) method: Method,
    pub(crate) accept: Option<&'static str>,
    /// The value of a `Range` header; `None` asks for the whole.
    pub(crate) range: Option<String>,
    /// Which hosts may be asked: a tag needs another capability than a digest.
    pub(crate) is_tag: bool,
    /// What it is for a message: `image `a/b:c``.
    pub(crate) subject: String,
}

impl Question {
    fn suits(&self, host: &Host) -> bool {
        if self.is_tag { host.can_resolve } else { host.can_pull }
    }

    pub(crate) fn hop(&self) -> Stage {
        if self.path.starts_with("blobs/") { Stage::Blob } else { Stage::Manifest }
    }

    /// The hosts that may be asked, as places in the session's list. Never empty.
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

/// How often one thing is tried again.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u32,
    spent: u32,
}

impl Budget {
    pub(crate) fn new(total: u32) -> Self {
        Self { total, spent: 0 }
    }

    /// There was progress: what failed before no longer counts.
    pub(crate) fn refill(&mut self) {
        self.spent = 0;
    }

    /// Waits as long as the failure asks for, or gives up with it. A pause of our own choice counts as silence.
    pub(crate) async fn pause(&mut self, failure: Failure, session: &PullSession) -> Result<(), RuntimeError> {
        let is_ours = failure.again == Again::Soon;
        let wait = self.spend(failure)?;
        let _waiting = is_ours.then(|| session.reception().waiting());
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// How long to wait before the next try, or the failure where there is none.
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

    /// Asks hosts in order, each mirror once and the registry again where that may help; the first success counts.
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

    /// Asks one host, once but for a 401. Only a success is an answer.
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
            // Another origin that answers 401 may want credentials that are not for it.
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
        // Some registries send their rate limit with another status.
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
        // The words only explain; the status decides, so an unreadable body is none.
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

/// Notes that a mirror did not help.
fn passed_over(session: &PullSession, index: usize, failure: &Failure) -> String {
    let place = session.host(index).origin.authority();
    let why = failure.error.chain();
    tracing::debug!(host = place, error = why, "a mirror did not help, asking the next host");
    format!("`{place}`: {why}")
}

/// Adds what the mirrors said, unless there is something better to say.
fn after_mirrors(error: RuntimeError, before: &[String]) -> RuntimeError {
    if before.is_empty() || error.hint().is_some() {
        return error;
    }
    error.with_hint(format!("asked before, without success: {}", before.join("; ")))
}

fn open_headers(question: &Question) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // A digest is over the bytes as they are stored.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(accept) = question.accept {
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    }
    if let Some(range) = question.range.as_deref().and_then(|range| HeaderValue::try_from(range).ok()) {
        headers.insert(header::RANGE, range);
    }
    headers
}

/// How long a registry asks to wait: seconds, or a date. `None` for what is neither.
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

/// Three quarters to all of a wait, so that many pulls do not come back at once.
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
