//! Tokens of service accounts for credential providers (KEP-4412), issued by the API server.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use imagelet_core::credentials::{IssuedToken, Secret, ServiceAccount, TokenRequest, TokenSource};
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest as KubeTokenRequest, TokenRequestStatus},
        core::v1::ServiceAccount as KubeServiceAccount,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Client;
use serde_json::{Value, json};

use super::{object_cache::ObjectName, secret_api};
use crate::api_error::ApiError;
use imagelet_core::text::PlainError;

/// The API server's tokens have about 1 KiB.
const TOKEN_LENGTH_MAX: usize = 64 << 10;
/// The API server's default lifetime of a token. It is used if the answer has no lifetime.
const LIFE_DEFAULT: Duration = Duration::from_hours(1);
const LIFE_MAX: Duration = Duration::from_hours(366 * 24);

pub struct ClusterTokens(pub Client);

#[async_trait]
impl TokenSource for ClusterTokens {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, PlainError> {
        let answer = secret_api::send(&self.0, &path(namespace, name), None).await.map_err(|error| failed(&error))?;
        let account =
            serde_json::from_slice(&answer).map_err(|error| failed(&kube::Error::SerdeError(error).into()))?;
        let KubeServiceAccount { metadata: ObjectMeta { uid, annotations, .. }, .. } = account;
        Ok(ServiceAccount { uid: uid.unwrap_or_default(), annotations: annotations.unwrap_or_default() })
    }

    async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, PlainError> {
        // The token must be bound to a pod, because an unbound token stays valid after the end of the pod.
        if request.pod_name.is_empty() || request.pod_uid.is_empty() {
            return Err(PlainError::new("the request for the image names no pod, to which the token is bound"));
        }
        let path = format!("{}/token", path(&request.namespace, &request.service_account));
        let answer = secret_api::send(&self.0, &path, Some(&token_request(request).to_string())).await;
        answer.and_then(|json| read_token(&json)).map_err(|error| failed(&error))
    }
}

fn failed(error: &ApiError) -> PlainError {
    PlainError::new(error.to_string())
}

fn path(namespace: &str, name: &str) -> String {
    ObjectName { namespace: namespace.into(), name: name.into() }.path("serviceaccounts")
}

/// Requests a token for one audience that expires with the pod. The uid excludes a recreated service account.
fn token_request(request: &TokenRequest) -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {
            "namespace": request.namespace,
            "name": request.service_account,
            "uid": request.service_account_uid,
        },
        "spec": {
            "audiences": [request.audience],
            "boundObjectRef": {
                "apiVersion": "v1", "kind": "Pod", "name": request.pod_name, "uid": request.pod_uid,
            },
        },
    })
}

/// Parses an issued token. The error contains nothing of the token.
fn read_token(json: &[u8]) -> Result<IssuedToken, ApiError> {
    let invalid = |why: String| ApiError::SecretInvalid { what: "token", why };
    let KubeTokenRequest { spec, status, .. } =
        serde_json::from_slice(json).map_err(|error| ApiError::undecodable("token", &error))?;
    let TokenRequestStatus { token, expiration_timestamp } = status.unwrap_or_default();
    let token = Secret::new(token.unwrap_or_default());
    let length = token.expose().len();
    if !(1..=TOKEN_LENGTH_MAX).contains(&length) || !token.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid(format!("{length} bytes; a token has 1 to {TOKEN_LENGTH_MAX} visible ASCII characters")));
    }
    let expires = SystemTime::from(expiration_timestamp.ok_or_else(|| invalid("it has no expiration".into()))?.0);
    let life = spec.and_then(|spec| u64::try_from(spec.expiration_seconds?).ok());
    let life = life.map_or(LIFE_DEFAULT, Duration::from_secs).min(LIFE_MAX);
    let issued = expires.checked_sub(life).unwrap_or(SystemTime::UNIX_EPOCH);
    Ok(IssuedToken { token, issued, expires })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use imagelet_core::credentials::TokenCache;

    use super::*;
    use crate::ApiAccess;
    use crate::testing::{ApiFault, FakeApi, FakeApiOptions};

    fn request(pod: &str) -> TokenRequest {
        TokenRequest {
            namespace: "shop".into(),
            service_account: "builder".into(),
            service_account_uid: "uid-builder".into(),
            audience: "reg.test".into(),
            pod_name: pod.into(),
            pod_uid: if pod.is_empty() { String::new() } else { format!("uid-{pod}") },
        }
    }

    struct Bed {
        api: FakeApi,
        tokens: Arc<ClusterTokens>,
        _folder: tempfile::TempDir,
    }

    impl Bed {
        async fn new() -> Self {
            let api = FakeApi::start(FakeApiOptions { token: Some("a-token".into()), tls: true }).await;
            let folder = tempfile::tempdir().unwrap();
            let tokens = Arc::new(ClusterTokens(ApiAccess::Kubeconfig(api.kubeconfig(folder.path())).client()));
            let metadata = json!({
                "namespace": "shop", "name": "builder", "uid": "uid-builder", "annotations": {"team": "shop"},
            });
            api.put("/api/v1/serviceaccounts", json!({"metadata": metadata}));
            Self { api, tokens, _folder: folder }
        }
    }

    #[tokio::test]
    async fn a_token_is_requested_for_one_audience_and_bound_to_its_pod_and_account() {
        let bed = Bed::new().await;
        let account = bed.tokens.service_account("shop", "builder").await.unwrap();
        assert_eq!((account.uid.as_str(), account.annotations["team"].as_str()), ("uid-builder", "shop"));
        let issued = bed.tokens.token(&request("web")).await.unwrap();
        assert_eq!(issued.token.expose(), "token-1-of-builder");
        assert_eq!(issued.expires.duration_since(issued.issued).unwrap(), Duration::from_mins(20));
        let [sent] = &bed.api.token_requests()[..] else { panic!("one request") };
        assert_eq!(sent["spec"]["audiences"], json!(["reg.test"]));
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-web"});
        assert_eq!(sent["spec"]["boundObjectRef"], pod);

        let other = TokenRequest { service_account_uid: "uid-before".into(), ..request("web") };
        let error = bed.tokens.token(&other).await.unwrap_err().to_string();
        assert!(error.starts_with("the API server answered 409: "), "{error}");
    }

    #[tokio::test]
    async fn a_token_without_a_pod_is_not_requested() {
        let bed = Bed::new().await;
        let error = bed.tokens.token(&request("")).await.unwrap_err().to_string();
        assert_eq!(error, "the request for the image names no pod, to which the token is bound");
        assert_eq!(bed.api.requests(), [""; 0]);
    }

    #[tokio::test]
    async fn the_cache_asks_the_cluster_once_for_each_pod_and_passes_its_refusal_on() {
        let bed = Bed::new().await;
        let cache = TokenCache::new(Arc::clone(&bed.tokens) as Arc<dyn TokenSource>);
        for _ in 0..3 {
            for (pod, token) in [("web", "token-1-of-builder"), ("api", "token-2-of-builder")] {
                assert_eq!(cache.token(&request(pod)).await.unwrap().token.expose(), token);
            }
        }
        assert_eq!(bed.api.token_requests().len(), 2);
        bed.api.plant_lasting(Some(ApiFault::Status(403, "serviceaccounts \"builder\" is forbidden".into())));
        let error = cache.token(&request("new")).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "failed to fetch token: the API server answered 403: serviceaccounts \"builder\" is forbidden"
        );
    }

    #[test]
    fn a_token_is_read_with_its_times_and_what_is_none_is_rejected_without_a_word_of_it() {
        let answer = |spec: &Value, status: &Value| json!({"spec": spec, "status": status}).to_string();
        let status = |token: &str, expires: &str| json!({"token": token, "expirationTimestamp": expires});
        let good = status("hunter2", "2026-01-01T01:00:00Z");
        for (spec, life) in [
            (json!({"expirationSeconds": 600}), 600),
            (json!({}), 3600),
            (json!({"expirationSeconds": i64::MAX}), LIFE_MAX.as_secs()),
        ] {
            let issued = read_token(answer(&spec, &good).as_bytes()).unwrap();
            let expires = issued.expires.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            assert_eq!((issued.token.expose(), expires), ("hunter2", 1_767_229_200));
            assert_eq!(issued.expires.duration_since(issued.issued).unwrap().as_secs(), life);
        }
        let long = "hunter2".repeat(TOKEN_LENGTH_MAX / 7 + 1);
        for (status, why) in [
            (status("", "2026-01-01T01:00:00Z"), "0 bytes; a token has"),
            (status(&long, "2026-01-01T01:00:00Z"), "a token has 1 to 65536"),
            (status("hunter2\n", "2026-01-01T01:00:00Z"), "8 bytes; a token has"),
            (status("hunter2", "tomorrow"), "line 1 column"),
            (json!({"token": ["hunter2"], "expirationTimestamp": ""}), "line 1 column"),
            (json!({"token": "hunter2"}), "it has no expiration"),
            (json!("hunter2"), "line 1 column"),
        ] {
            let error = read_token(answer(&json!({}), &status).as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("the API server sent an invalid token: ") && error.contains(why), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
