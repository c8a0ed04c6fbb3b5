//! The port to the issuer of service account tokens, and a cache of valid tokens (`docs/spec/pull.md §7.6`).

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use super::Secret;
use crate::{bounded_map::make_room, lock::locked, retry_wait::random, text::PlainError};

/// A token is renewed after this time, even if its lifetime is longer.
const AGE_MAX: Duration = Duration::from_hours(24);
/// A renewal is up to this many seconds early, at random, so that tokens of the same age are not renewed together.
const JITTER_SECONDS: u64 = 10;
const TOKENS_MAX: usize = 10_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccount {
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TokenRequest {
    pub namespace: String,
    pub service_account: String,
    /// The expected uid. If the service account has another uid, no token is issued.
    pub service_account_uid: String,
    pub audience: String,
    pub pod_name: String,
    pub pod_uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    pub token: Secret,
    pub issued: SystemTime,
    pub expires: SystemTime,
}

#[async_trait]
pub trait TokenSource: fmt::Debug + Send + Sync {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, PlainError>;

    async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, PlainError>;
}

/// The token source of a node without a cluster. It has no service accounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standalone;

#[async_trait]
impl TokenSource for Standalone {
    async fn service_account(&self, _namespace: &str, _name: &str) -> Result<ServiceAccount, PlainError> {
        Err(PlainError::new("cannot get ServiceAccounts when kubelet is in standalone mode"))
    }

    async fn token(&self, _request: &TokenRequest) -> Result<IssuedToken, PlainError> {
        Err(PlainError::new("cannot use TokenManager when kubelet is in standalone mode"))
    }
}

type Clock = Box<dyn Fn() -> SystemTime + Send + Sync>;

/// Caches the tokens of a source for four fifths of their lifetime. Does not cache service accounts.
pub struct TokenCache {
    source: Arc<dyn TokenSource>,
    clock: Clock,
    tokens: Mutex<HashMap<TokenRequest, IssuedToken>>,
}

impl TokenCache {
    pub fn new(source: Arc<dyn TokenSource>) -> Self {
        Self { source, clock: Box::new(SystemTime::now), tokens: Mutex::default() }
    }

    fn keep(&self, request: &TokenRequest, token: IssuedToken, now: SystemTime) {
        let mut tokens = locked(&self.tokens);
        tokens.retain(|_, token| !is_expired(token, now));
        make_room(&mut tokens, request, TOKENS_MAX, |token| token.expires);
        tokens.insert(request.clone(), token);
    }
}

#[async_trait]
impl TokenSource for TokenCache {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, PlainError> {
        self.source.service_account(namespace, name).await
    }

    async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, PlainError> {
        let now = (self.clock)();
        let kept = locked(&self.tokens).get(request).cloned();
        if let Some(token) = &kept
            && !wants_renewal(token, now, jitter())
        {
            return Ok(token.clone());
        }
        match (self.source.token(request).await, kept) {
            (Ok(token), _) => {
                self.keep(request, token.clone(), now);
                Ok(token)
            }
            (Err(error), None) => Err(PlainError::new(format!("failed to fetch token: {error}"))),
            (Err(error), Some(token)) if is_expired(&token, (self.clock)()) => {
                let key = format!("{}/{}", request.namespace, request.service_account);
                let error = without_token(&error, &token);
                Err(PlainError::new(format!("token {key} expired and refresh failed: {error}")))
            }
            (Err(error), Some(token)) => {
                let error = without_token(&error, &token);
                tracing::warn!(
                    namespace = request.namespace, service_account = request.service_account, %error,
                    "could not renew a token that is still good"
                );
                Ok(token)
            }
        }
    }
}

/// The text of a renewal error, from which the token is removed, because the error may repeat the token.
fn without_token(error: &PlainError, token: &IssuedToken) -> String {
    let (text, token) = (error.to_string(), token.token.expose());
    if token.is_empty() { text } else { text.replace(token, "[redacted]") }
}

fn wants_renewal(token: &IssuedToken, now: SystemTime, jitter: Duration) -> bool {
    let life = token.expires.duration_since(token.issued).unwrap_or_default();
    let last_fifth = Duration::from_secs(life.as_secs() / 5);
    let early = token.expires.checked_sub(last_fifth + jitter);
    let old = token.issued.checked_add(AGE_MAX.saturating_sub(jitter));
    early.is_none_or(|early| now > early) || old.is_some_and(|old| now > old)
}

fn is_expired(token: &IssuedToken, now: SystemTime) -> bool {
    now > token.expires
}

fn jitter() -> Duration {
    Duration::from_secs(random() % JITTER_SECONDS)
}

impl fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCache").field("source", &self.source).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, sync::atomic::AtomicU64};

    use super::*;
    use crate::credentials::{Secret, Standalone};

    const HOUR: u64 = 3600;

    /// Issues tokens for an hour, or fails, by script; records its requests.
    #[derive(Debug, Default)]
    struct Scripted {
        now: Arc<AtomicU64>,
        failures: Mutex<VecDeque<&'static str>>,
        asked: Mutex<Vec<TokenRequest>>,
    }

    #[async_trait]
    impl TokenSource for Scripted {
        async fn service_account(&self, _: &str, name: &str) -> Result<ServiceAccount, PlainError> {
            Ok(ServiceAccount { uid: format!("uid-{name}"), ..ServiceAccount::default() })
        }

        async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, PlainError> {
            self.asked.lock().unwrap().push(request.clone());
            if let Some(failure) = self.failures.lock().unwrap().pop_front() {
                return Err(PlainError::new(failure));
            }
            let issued = at(self.now.load(std::sync::atomic::Ordering::Relaxed));
            let number = self.asked.lock().unwrap().len();
            let token = Secret::new(format!("token-{number}"));
            Ok(IssuedToken { token, issued, expires: issued + Duration::from_secs(HOUR) })
        }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seconds)
    }

    struct Bed {
        source: Arc<Scripted>,
        cache: TokenCache,
    }

    impl Bed {
        fn new() -> Self {
            let source = Arc::new(Scripted::default());
            let now = Arc::clone(&source.now);
            let clock = Box::new(move || at(now.load(std::sync::atomic::Ordering::Relaxed)));
            let cache = TokenCache { clock, ..TokenCache::new(Arc::clone(&source) as Arc<dyn TokenSource>) };
            Self { source, cache }
        }

        async fn token_at(&self, seconds: u64, request: &TokenRequest) -> Result<String, String> {
            self.source.now.store(seconds, std::sync::atomic::Ordering::Relaxed);
            let issued = self.cache.token(request).await.map_err(|error| error.to_string())?;
            Ok(issued.token.expose().to_owned())
        }
    }

    fn request(pod: &str) -> TokenRequest {
        TokenRequest {
            namespace: "ns".into(),
            service_account: "sa".into(),
            pod_uid: pod.into(),
            ..TokenRequest::default()
        }
    }

    #[tokio::test]
    async fn a_token_is_used_until_a_fifth_of_its_life_is_left_and_is_each_pods_own() {
        let bed = Bed::new();
        assert_eq!(bed.token_at(0, &request("a")).await.as_deref(), Ok("token-1"));
        assert_eq!(
            bed.token_at(2860, &request("a")).await.as_deref(),
            Ok("token-1"),
            "jitter takes less than ten seconds"
        );
        assert_eq!(bed.token_at(2860, &request("b")).await.as_deref(), Ok("token-2"));
        assert_eq!(bed.token_at(2881, &request("a")).await.as_deref(), Ok("token-3"));
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_renewed_is_used_until_it_expires() {
        let bed = Bed::new();
        bed.source.failures.lock().unwrap().push_back("boom");
        assert_eq!(bed.token_at(0, &request("a")).await, Err("failed to fetch token: boom".to_owned()));
        assert_eq!(bed.token_at(0, &request("a")).await.as_deref(), Ok("token-2"));
        bed.source.failures.lock().unwrap().extend(["boom", "boom", "boom"]);
        assert_eq!(bed.token_at(3000, &request("a")).await.as_deref(), Ok("token-2"));
        assert_eq!(bed.token_at(3600, &request("a")).await.as_deref(), Ok("token-2"));
        let failed = bed.token_at(3601, &request("a")).await;
        assert_eq!(failed, Err("token ns/sa expired and refresh failed: boom".to_owned()));
    }

    #[tokio::test]
    async fn expired_tokens_are_removed_with_the_next_one() {
        let bed = Bed::new();
        for pod in ["a", "b"] {
            bed.token_at(0, &request(pod)).await.unwrap();
        }
        bed.token_at(3700, &request("c")).await.unwrap();
        assert_eq!(bed.cache.tokens.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_full_cache_gives_up_the_token_that_expires_first() {
        let bed = Bed::new();
        let kept = |number: u64| IssuedToken {
            token: Secret::new("kept"),
            issued: at(0),
            expires: at(HOUR + (number + 1) % TOKENS_MAX as u64),
        };
        let requests: Vec<TokenRequest> = (0..TOKENS_MAX).map(|number| request(&number.to_string())).collect();
        bed.cache.tokens.lock().unwrap().extend(requests.iter().cloned().zip((0..).map(kept)));
        bed.token_at(0, &request("one more")).await.unwrap();
        assert_eq!(bed.cache.tokens.lock().unwrap().len(), TOKENS_MAX);
        assert!(
            !bed.cache.tokens.lock().unwrap().contains_key(&requests[TOKENS_MAX - 1])
                && bed.cache.tokens.lock().unwrap().contains_key(&requests[0])
        );
        // With one place left nothing has to go.
        bed.cache.tokens.lock().unwrap().remove(&requests[0]);
        bed.token_at(0, &request("another")).await.unwrap();
        assert!(bed.cache.tokens.lock().unwrap().contains_key(&request("one more")));
        assert_eq!(bed.cache.tokens.lock().unwrap().len(), TOKENS_MAX);
    }

    #[test]
    fn renewal_comes_after_four_fifths_or_a_day_less_the_jitter() {
        let token = |hours: u64| IssuedToken {
            token: Secret::new(""),
            issued: at(0),
            expires: at(0) + Duration::from_hours(hours),
        };
        let jitter = Duration::from_secs;
        assert!(!wants_renewal(&token(1), at(2880), jitter(0)));
        assert!(wants_renewal(&token(1), at(2881), jitter(0)));
        assert!(!wants_renewal(&token(1), at(2871), jitter(9)));
        assert!(wants_renewal(&token(1), at(2872), jitter(9)));
        assert!(!wants_renewal(&token(100), at(24 * HOUR), jitter(0)));
        assert!(wants_renewal(&token(100), at(24 * HOUR + 1), jitter(0)));
        for _ in 0..100 {
            assert!(super::jitter() < jitter(10));
        }
    }

    #[tokio::test]
    async fn a_node_without_a_cluster_says_so() {
        let cache = TokenCache::new(Arc::new(Standalone));
        let account = cache.service_account("ns", "sa").await.map_err(|error| error.to_string());
        assert_eq!(account, Err("cannot get ServiceAccounts when kubelet is in standalone mode".to_owned()));
        let token = cache.token(&request("a")).await.map_err(|error| error.to_string());
        let expected = "failed to fetch token: cannot use TokenManager when kubelet is in standalone mode";
        assert_eq!(token, Err(expected.to_owned()));
    }
}
