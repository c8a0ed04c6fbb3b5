//! A service account token appears in no error, log or `Debug` text, whatever plugin and cluster return.

use std::io;

use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::credentials::TokenCache;
use crate::text::PlainError;

/// No part of it looks like a secret.
const TOKEN: &str = "planted-header-of-a-token.planted-claims-of-a-token.planted-signature-of-a-token";
/// Part of each section.
const MARKER: &str = "planted";
/// The base64 forms of its parts.
const CODED: [&str; 3] = ["cGxhbnRlZ", "BsYW50ZW", "wbGFudGVk"];

/// Issues the token once, due for renewal; then rejects requests and repeats the token in the error.
#[derive(Debug)]
struct Repeating {
    issued: AtomicUsize,
    expires_in: Duration,
}

#[async_trait]
impl TokenSource for Repeating {
    async fn service_account(&self, _: &str, name: &str) -> Result<ServiceAccount, PlainError> {
        if name == "unknown" {
            return Err(PlainError::new("service account not found"));
        }
        Ok(ServiceAccount { uid: "uid".into(), ..ServiceAccount::default() })
    }

    async fn token(&self, _: &TokenRequest) -> Result<IssuedToken, PlainError> {
        if self.issued.fetch_add(1, Ordering::Relaxed) > 0 {
            return Err(PlainError::new(format!("unauthorized: `{TOKEN}` is revoked")));
        }
        let now = SystemTime::now();
        let (issued, expires) = (now - Duration::from_hours(1), now + self.expires_in);
        Ok(IssuedToken { token: Secret::new(TOKEN), issued, expires })
    }
}

#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn assert_hidden(place: &str, text: &str) {
    for secret in [MARKER].into_iter().chain(CODED) {
        assert!(!text.contains(secret), "the token is in {place}: {text}");
    }
}

/// Scripts that get the token as `$t`, and the expected text of each.
fn scripts() -> Vec<(&'static str, String, &'static str)> {
    let answer = |rest: &str| {
        format!("printf '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"{V1}\",{rest}}}' \"$t\"\n")
    };
    let login = "\"auth\":{\"a.io\":{\"username\":\"u\",\"password\":\"%s\"}}";
    let complains =
        "echo \"refused: $t\" >&2\nprintf %s \"u:$t\" | base64 -w0 >&2\ncat $i >&2\necho \"${t##*.}\" >&2\n";
    vec![
        ("returned", answer(&format!("\"cacheKeyType\":\"Image\",{login}")), "returned the service account token"),
        ("version", "printf '{\"apiVersion\":\"%s\"}' \"$t\"\n".to_owned(), "actual apiVersion:[redacted]"),
        ("keytype", answer("\"cacheKeyType\":\"%s\""), "valid cacheKeyType"),
        ("echo", "echo \"$t\"\n".to_owned(), "invalid character"),
        ("field", answer("\"cacheKeyType\":\"Image\",\"%s\":1"), "error decoding"),
        ("fails", format!("{complains}exit 4\n"), "exit status 4: refused: [redacted]"),
        ("fails-whole", format!("{}{complains}exit 4\n", answer(login)), "exit status 4: refused: [redacted]"),
        ("dies", format!("{complains}kill -SEGV $$\n"), "signal: segmentation fault"),
    ]
}

#[tokio::test]
async fn a_token_is_seen_nowhere_though_plugin_and_cluster_repeat_it() {
    let log = Log::default();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).with_writer(log.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    // With a single dispatcher, the first thread at a log line decides for all threads whether it is enabled; it may be
    // a parallel test without logging. With two dispatchers, both are asked.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    for expires_in in [Duration::from_mins(1), Duration::ZERO] {
        for (name, body, shown) in scripts() {
            let cluster = Arc::new(Repeating { issued: AtomicUsize::new(0), expires_in });
            let cache = Arc::new(TokenCache::new(cluster));
            let metrics = Arc::new(Metrics::new());
            let providers = Arc::new(Providers::new(Arc::clone(&cache) as Arc<dyn TokenSource>, Arc::clone(&metrics)));
            let bed = Bed { metrics, providers, ..Bed::new() };
            let take = "t=$(sed 's/.*serviceAccountToken\":\"\\([^\"]*\\)\".*/\\1/' $i)\n";
            bed.script(name, &format!("{take}{body}"));
            let mut entry = provider(name, "a.io");
            entry["tokenAttributes"] = json!({
                "serviceAccountTokenAudience": "aud", "cacheType": "ServiceAccount", "requireServiceAccount": true
            });
            bed.configure(&json!([entry])).unwrap();
            let provided = bed.providers.provide(&query("a.io/x", Some("sa"))).await;
            let [failure] = provided.failures.as_slice() else { panic!("{name}: {provided:?}") };
            assert!(failure.contains(shown), "{name}: {failure}");
            assert!(bed.questions(name)[0].contains(TOKEN), "{name} did not get its token");
            assert_hidden(name, &format!("{failure} {provided:?} {:?} {cache:?}", bed.providers));
            // The second call is rejected by the cluster.
            let again = bed.providers.provide(&query("a.io/x", Some("sa"))).await;
            assert_hidden(name, &format!("{again:?}"));
            assert_eq!(
                again.failures[0].contains("unauthorized: `[redacted]` is revoked"),
                expires_in.is_zero(),
                "{again:?}"
            );
            let set = bed.providers.set();
            let error = set.providers[0].ask(&query("a.io/x", Some("sa"))).await.unwrap_err();
            assert_hidden(name, &format!("{error} {error:?} {:?}", set.providers[0]));
        }
    }
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for shown in ["Failed to provide credentials for image", "could not renew a token that is still good"] {
        assert!(log.contains(shown), "`{shown}` is not logged: {log}");
    }
    assert_hidden("the log", &log);
}

#[tokio::test]
async fn a_token_that_opens_a_registry_does_not_print() {
    let cluster = Arc::new(Repeating { issued: AtomicUsize::new(0), expires_in: Duration::from_hours(1) });
    let request = TokenRequest { namespace: "ns".into(), ..TokenRequest::default() };
    let issued = cluster.token(&request).await.unwrap();
    assert_hidden("what is issued", &format!("{issued:?} {request:?} {cluster:?}"));
    let shown = cache::PluginAccount {
        identity: crate::credentials::ObjectIdentity::default(),
        annotations: std::collections::BTreeMap::new(),
        token: issued.token.clone(),
        is_per_token: true,
    };
    let key = cache::CacheKey::new("a.io", Some(&shown)).unwrap();
    assert_hidden("what is sent and kept", &format!("{shown:?} {key:?}"));
}
