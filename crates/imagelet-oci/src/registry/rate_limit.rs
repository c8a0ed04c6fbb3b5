//! The waits that registries request, shared by all requests with the same account (`docs/spec/pull.md §13.6`).

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::Mutex,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderValue, StatusCode, header};
use imagelet_core::credentials::Credential;
use tokio::time::Instant;

use super::{connection::Origin, locked};

const LIMITS_MAX: usize = 1024;
/// From this number of seconds on, a reset header has a Unix time, not a wait.
const UNIX_TIME_MIN: Duration = Duration::from_secs(1_000_000_000);

/// The hash of a credential, by which its rate limits are found. It differs in each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Account(u64);

#[derive(Default)]
pub(crate) struct RateLimits {
    salt: RandomState,
    ends: Mutex<HashMap<(Origin, Account), Instant>>,
}

impl RateLimits {
    pub(crate) fn account(&self, credential: Option<&Credential>) -> Account {
        Account(credential.map_or(0, |credential| self.salt.hash_one(&credential.kind)))
    }

    pub(crate) fn hold(&self, origin: &Origin, account: Account, end: Instant) {
        let now = Instant::now();
        let mut ends = locked(&self.ends);
        if ends.len() >= LIMITS_MAX {
            ends.retain(|_, end| *end > now);
        }
        if ends.len() < LIMITS_MAX {
            let held = ends.entry((origin.clone(), account)).or_insert(end);
            *held = (*held).max(end);
        }
    }

    pub(crate) fn held_until(&self, origin: &Origin, account: Account) -> Option<Instant> {
        locked(&self.ends).get(&(origin.clone(), account)).copied()
    }
}

/// The wait that an answer with status 429 or 503 requests: by `Retry-After`, or by the `RateLimit` headers.
pub(crate) fn requested_wait(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    if !matches!(status.as_u16(), 429 | 503) {
        return None;
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // The header has seconds, or a Unix time as GitLab and GitHub send it.
    let reset = || {
        let reset = ["ratelimit-reset", "x-ratelimit-reset"].into_iter().find_map(text).and_then(seconds)?;
        let is_time = reset >= UNIX_TIME_MIN;
        Some(if is_time { (UNIX_EPOCH + reset).duration_since(now).unwrap_or_default() } else { reset })
    };
    let next = || text("ratelimit").and_then(|text| parameter(text, "t"));
    // Docker Hub sends the length of its window. A request is allowed again within this time.
    let window =
        || text("ratelimit-remaining").filter(|text| remaining(text) == Some(0)).and_then(|it| parameter(it, "w"));
    headers
        .get(header::RETRY_AFTER)
        .and_then(|value| retry_after(value, now))
        .or_else(reset)
        .or_else(next)
        .or_else(window)
}

/// RFC 9110: seconds or a date.
fn retry_after(value: &HeaderValue, now: SystemTime) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    seconds(text).or_else(|| Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default()))
}

fn seconds(text: &str) -> Option<Duration> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::from(u32::MAX)).min(u64::from(u32::MAX))))
}

fn remaining(text: &str) -> Option<u64> {
    text.split(';').next()?.trim().parse().ok()
}

fn parameter(text: &str, name: &str) -> Option<Duration> {
    text.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('=')).and_then(seconds)
}

#[cfg(test)]
mod tests {
    use imagelet_core::credentials::Secret;

    use super::*;
    use crate::registry::connection::Target;

    #[test]
    fn a_wait_is_read_in_seconds_as_a_date_and_from_rate_limit_headers() {
        let now = httpdate::parse_http_date("Fri, 01 Jan 2027 00:00:00 GMT").unwrap();
        for (name, text, wait) in [
            ("retry-after", "7", Some(7)),
            ("retry-after", "0", Some(0)),
            ("retry-after", " 86400 ", Some(86_400)),
            ("retry-after", "99999999999999999999999", Some(u64::from(u32::MAX))),
            ("retry-after", "18446744073709551615", Some(u64::from(u32::MAX))),
            ("retry-after", "Fri, 01 Jan 2027 00:00:30 GMT", Some(30)),
            ("retry-after", "Thu, 31 Dec 2026 00:00:00 GMT", Some(0)),
            ("retry-after", "Friday, 01-Jan-27 00:00:30 GMT", Some(30)),
            ("retry-after", "Fri Jan  1 00:00:30 2027", Some(30)),
            ("retry-after", "soon", None),
            ("retry-after", "-1", None),
            ("retry-after", "", None),
            ("ratelimit-remaining", "0;w=21600", Some(21_600)),
            ("ratelimit-remaining", "0; w=60", Some(60)),
            ("ratelimit-remaining", "1;w=21600", None),
            ("ratelimit-remaining", "0", None),
            ("ratelimit-remaining", "0;w=x", None),
            ("ratelimit-reset", "12", Some(12)),
            ("ratelimit-reset", "1798761645", Some(45)),
            ("ratelimit-reset", "1798761000", Some(0)),
            ("x-ratelimit-reset", "1798761645", Some(45)),
            ("x-ratelimit-reset", "tomorrow", None),
            ("ratelimit", "\"default\";r=0;t=30", Some(30)),
            ("ratelimit", "\"default\"", None),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_str(text).unwrap())]);
            assert_eq!(
                requested_wait(StatusCode::TOO_MANY_REQUESTS, &headers, now),
                wait.map(Duration::from_secs),
                "{name}: {text}"
            );
        }
        let both = [("retry-after", "3"), ("ratelimit-remaining", "0;w=21600")];
        let both = both.map(|(name, text)| (name.parse().unwrap(), HeaderValue::from_static(text)));
        assert_eq!(
            requested_wait(StatusCode::SERVICE_UNAVAILABLE, &HeaderMap::from_iter(both), now),
            Some(Duration::from_secs(3))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_shared_by_one_account_at_one_registry() {
        let limits = RateLimits::default();
        let origin = |text| Target::parse(text).unwrap().origin;
        let credential = |password| Credential::basic("", "user", Secret::new(password));
        let account = |password| limits.account(Some(&credential(password)));
        let end = Instant::now() + Duration::from_secs(9);
        limits.hold(&origin("https://r.example"), account("a"), end);
        limits.hold(&origin("https://r.example"), account("a"), end - Duration::from_secs(5));
        assert_eq!(limits.held_until(&origin("https://r.example"), account("a")), Some(end), "the later end");
        for (place, account) in [
            ("https://r.example", account("b")),
            ("https://r.example", limits.account(None)),
            ("https://other.example", account("a")),
        ] {
            assert_eq!(limits.held_until(&origin(place), account), None, "{place}");
        }
    }
}
