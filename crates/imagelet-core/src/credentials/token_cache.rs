//! Caches service account tokens while they are valid (`docs/spec/pull.md §7.6`).
//!
//! The age of a token counts from its arrival, by the boot clock: no setting of the wall clock prolongs the use of a
//! token, or renews it with each pull.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use super::{IssuedToken, ServiceAccount, TokenRequest, TokenSource, TokenSourceError};

/// Tokens with a longer lifetime are renewed after this time too.
const AGE_MAX: Duration = Duration::from_hours(24);
/// Each check is early by less than this, in whole seconds, so that tokens issued together are not renewed together.
const JITTER_SECONDS: u64 = 10;
/// Most cached tokens; the kubelet has no bound.
const TOKENS_MAX: usize = 10_000;

/// The time since boot, suspended or not.
type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// Caches a source's tokens for four fifths of their lifetime. Service accounts are not cached.
pub struct TokenCache {
    source: Arc<dyn TokenSource>,
    clock: Clock,
    tokens: Mutex<HashMap<TokenRequest, CachedToken>>,
}

#[derive(Clone)]
struct CachedToken {
    token: IssuedToken,
    arrived: Duration,
}

impl TokenCache {
    /// Wraps a source.
    pub fn new(source: Arc<dyn TokenSource>) -> Self {
        Self { source, clock: Box::new(since_boot), tokens: Mutex::default() }
    }

    fn keep(&self, request: &TokenRequest, token: IssuedToken, arrived: Duration) {
        let mut tokens = self.tokens();
        tokens.retain(|_, cached| !cached.is_expired(arrived));
        if tokens.len() >= TOKENS_MAX
            && let Some(soonest) = tokens.iter().min_by_key(|(_, cached)| cached.end()).map(|(key, _)| key.clone())
        {
            tokens.remove(&soonest);
        }
        tokens.insert(request.clone(), CachedToken { token, arrived });
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<TokenRequest, CachedToken>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl TokenSource for TokenCache {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, TokenSourceError> {
        self.source.service_account(namespace, name).await
    }

    async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, TokenSourceError> {
        let now = (self.clock)();
        let kept = self.tokens().get(request).cloned();
        if let Some(cached) = &kept
            && !cached.wants_renewal(now, jitter())
        {
            return Ok(cached.token.clone());
        }
        match (self.source.token(request).await, kept) {
            (Ok(token), _) => {
                self.keep(request, token.clone(), now);
                Ok(token)
            }
            (Err(error), None) => Err(TokenSourceError::new(format!("failed to fetch token: {error}"))),
            (Err(error), Some(cached)) if cached.is_expired((self.clock)()) => {
                let key = format!("{}/{}", request.namespace, request.service_account);
                let error = without_token(&error, &cached.token);
                Err(TokenSourceError::new(format!("token {key} expired and refresh failed: {error}")))
            }
            (Err(error), Some(CachedToken { token, .. })) => {
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

/// The renewal error without the token: a rejection may repeat it.
fn without_token(error: &TokenSourceError, token: &IssuedToken) -> String {
    let (text, token) = (error.to_string(), token.token.expose());
    if token.is_empty() { text } else { text.replace(token, "[redacted]") }
}

impl CachedToken {
    fn life(&self) -> Duration {
        self.token.expires.duration_since(self.token.issued).unwrap_or_default()
    }

    fn end(&self) -> Duration {
        self.arrived.saturating_add(self.life())
    }

    /// Whether it is due for renewal, although it may still be valid.
    fn wants_renewal(&self, now: Duration, jitter: Duration) -> bool {
        let (life, age) = (self.life(), now.saturating_sub(self.arrived) + jitter);
        let last_fifth = Duration::from_secs(life.as_secs() / 5);
        age > life.saturating_sub(last_fifth) || age > AGE_MAX
    }

    fn is_expired(&self, now: Duration) -> bool {
        now > self.end()
    }
}

fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

fn jitter() -> Duration {
    Duration::from_secs(RandomState::new().hash_one(()) % JITTER_SECONDS)
}

impl fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCache").field("source", &self.source).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, sync::atomic::AtomicU64, time::SystemTime};

    use super::*;
    use crate::credentials::{Secret, Standalone};

    const HOUR: u64 = 3600;

    /// Issues tokens for an hour, or fails, by script; records its requests.
    #[derive(Debug, Default)]
    struct Scripted {
        now: Arc<AtomicU64>,
        /// How far the issuer's clock is from the one that counts ages, in seconds.
        apart: std::sync::atomic::AtomicI64,
        failures: Mutex<VecDeque<&'static str>>,
        asked: Mutex<Vec<TokenRequest>>,
    }

    #[async_trait]
    impl TokenSource for Scripted {
        async fn service_account(&self, _: &str, name: &str) -> Result<ServiceAccount, TokenSourceError> {
            Ok(ServiceAccount { uid: format!("uid-{name}"), ..ServiceAccount::default() })
        }

        async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, TokenSourceError> {
            self.asked.lock().unwrap().push(request.clone());
            if let Some(failure) = self.failures.lock().unwrap().pop_front() {
                return Err(TokenSourceError::new(failure));
            }
            let apart = self.apart.load(std::sync::atomic::Ordering::Relaxed);
            let (now, distance) = (at(self.now.load(std::sync::atomic::Ordering::Relaxed)), apart.unsigned_abs());
            let distance = Duration::from_secs(distance);
            let issued = if apart < 0 { now - distance } else { now + distance };
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
            let clock = Box::new(move || Duration::from_secs(now.load(std::sync::atomic::Ordering::Relaxed)));
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
    async fn a_step_of_a_clock_neither_prolongs_nor_renews_a_token() {
        let year = i64::try_from(365 * 24 * HOUR).unwrap();
        for apart in [0, 3600, -3600, year, -year] {
            let bed = Bed::new();
            bed.source.apart.store(apart, std::sync::atomic::Ordering::Relaxed);
            let start = 2 * HOUR;
            assert_eq!(bed.token_at(start, &request("a")).await.as_deref(), Ok("token-1"));
            bed.source.apart.store(-apart, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(bed.token_at(start + 2860, &request("a")).await.as_deref(), Ok("token-1"), "{apart}");
            assert_eq!(bed.token_at(start + 2881, &request("a")).await.as_deref(), Ok("token-2"), "{apart}");
        }
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
        assert_eq!(bed.cache.tokens().len(), 1);
    }

    #[test]
    fn renewal_comes_after_four_fifths_or_a_day_less_the_jitter() {
        let token = |hours: u64| {
            let (issued, expires) = (at(0), at(0) + Duration::from_hours(hours));
            CachedToken { token: IssuedToken { token: Secret::new(""), issued, expires }, arrived: Duration::ZERO }
        };
        let wants_renewal = |token: &CachedToken, now, jitter| token.wants_renewal(now, jitter);
        let (at, jitter) = (Duration::from_secs, Duration::from_secs);
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
