//! The pull secrets of a pod, which the pod or else its service account names, and the pull secret of a set.

use std::sync::{Arc, Mutex};

use imagelet_core::{credentials::PullSecret, image::ByteSize};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;

use super::{
    object_cache::{ObjectCache, ObjectName},
    secret_api,
    secret_object::{NotPullSecret, read_secret},
};
use crate::{
    api_error::ApiError,
    names::{NAME_LENGTH_MAX, is_name},
    pods::{BoundPod, SECRETS_MAX},
};

/// Maximum bytes of the pull secrets of one pod. Each running pull of the pod has a copy of them.
const DOCUMENTS_LENGTH_MAX: usize = 4 << 20;

pub(crate) struct PullSecrets {
    client: Client,
    secrets: ObjectCache<Result<PullSecret, NotPullSecret>>,
    accounts: ObjectCache<Vec<Arc<str>>>,
}

impl PullSecrets {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, secrets: ObjectCache(Mutex::default()), accounts: ObjectCache(Mutex::default()) }
    }

    /// The readable pull secrets of a pod, in the pod's order. As in a kubelet, the rest is skipped with a warning.
    pub(crate) async fn of_pod(&self, pod: &BoundPod) -> Vec<PullSecret> {
        let (mut found, mut length) = (Vec::new(), 0);
        for name in self.names(pod).await {
            let name = ObjectName { namespace: Arc::clone(&pod.identity.namespace), name };
            let read = async || read_secret(&name, &secret_api::send(&self.client, &name.path("secrets"), None).await?);
            let secret = self.secrets.get(&name, read).await;
            let secret = secret.inspect_err(|error| {
                let (pod, secret) = (pod.full_name(), &*name.name);
                tracing::warn!(pod, secret, %error, "could not read a pull secret; it is skipped");
            });
            // As in a kubelet, a secret of another type has no credentials.
            let Some(Ok(secret)) = secret.as_deref().ok() else { continue };
            length += secret.document.expose().len();
            if length > DOCUMENTS_LENGTH_MAX {
                let (pod, secret, max) = (pod.full_name(), &*name.name, ByteSize(DOCUMENTS_LENGTH_MAX as u64));
                tracing::warn!(pod, secret, "the pull secrets of the pod are longer than {max}; the rest is skipped");
                break;
            }
            found.push(secret.clone());
        }
        found
    }

    /// A pod without pull secrets gets those of its service account, as at admission.
    async fn names(&self, pod: &BoundPod) -> Vec<Arc<str>> {
        if !pod.pull_secrets.is_empty() || pod.service_account.is_empty() {
            return pod.pull_secrets.clone();
        }
        let name =
            ObjectName { namespace: Arc::clone(&pod.identity.namespace), name: Arc::clone(&pod.service_account) };
        let read =
            async || secrets_of_account(&secret_api::send(&self.client, &name.path("serviceaccounts"), None).await?);
        let names = self.accounts.get(&name, read).await.inspect_err(|error| {
            let (pod, account) = (pod.full_name(), &*pod.service_account);
            tracing::debug!(pod, account, %error, "could not read a service account; it counts as without pull secrets");
        });
        names.map_or_else(|_| Vec::new(), |names| names.to_vec())
    }
}

fn secrets_of_account(json: &[u8]) -> Result<Vec<Arc<str>>, ApiError> {
    let account: ServiceAccount = serde_json::from_slice(json).map_err(kube::Error::SerdeError)?;
    let names = account.image_pull_secrets.into_iter().flatten().map(|it| it.name);
    Ok(names.filter(|name| is_name(name, NAME_LENGTH_MAX)).take(SECRETS_MAX).map(Arc::from).collect())
}

/// Reads the pull secret of a set. The error is a text for users and contains nothing of the secret.
pub(crate) async fn read_set_secret(client: &Client, namespace: &str, name: &str) -> Result<PullSecret, String> {
    let object = ObjectName { namespace: namespace.into(), name: name.into() };
    let answer = secret_api::send(client, &object.path("secrets"), None).await;
    let secret = answer.and_then(|json| read_secret(&object, &json)).map_err(|error| error.to_string());
    let secret = secret.and_then(|secret| secret.map_err(|why| why.to_string()));
    secret.map_err(|why| format!("cannot read the pull secret `{namespace}/{name}`: {why}"))
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{FakeApi, FakeApiOptions};

    async fn read_with(object: Value) -> Result<PullSecret, String> {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        fake.put("/api/v1/secrets", object);
        read_set_secret(&fake.client(), "shop", "login").await
    }

    fn secret(kind: &str, data: &Value) -> Value {
        json!({"metadata": {"namespace": "shop", "name": "login", "uid": "7"}, "type": kind, "data": data})
    }

    #[tokio::test]
    async fn a_secret_is_read_with_its_identity_and_its_debug_hides_it() {
        let document = BASE64_STANDARD.encode(r#"{"auths":{}}"#);
        let found =
            read_with(secret("kubernetes.io/dockerconfigjson", &json!({".dockerconfigjson": document}))).await.unwrap();
        assert_eq!(found.document.expose(), r#"{"auths":{}}"#);
        assert_eq!(found.identity.uid, "7");
        assert!(!format!("{found:?}").contains("auths"));
    }

    #[tokio::test]
    async fn what_is_no_pull_secret_is_refused_without_a_byte_of_it() {
        let hidden = BASE64_STANDARD.encode("hidden");
        for (object, why) in [
            (secret("Opaque", &json!({".dockerconfigjson": hidden})), "its type is neither"),
            (secret("kubernetes.io/dockercfg", &json!({"other": hidden})), "it has no `.dockercfg`"),
            (
                secret("kubernetes.io/dockercfg", &json!({".dockercfg": "hidden!"})),
                "the API server sent an invalid secret",
            ),
            (secret("kubernetes.io/dockercfg", &json!(["hidden"])), "the API server sent an invalid secret"),
            (json!({"metadata": {"namespace": "other", "name": "login"}}), "secrets \"login\" not found"),
        ] {
            let error = read_with(object).await.unwrap_err();
            assert!(error.starts_with("cannot read the pull secret `shop/login`: "), "{error}");
            assert!(error.contains(why) && !error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn pull_secrets_of_an_account_are_read_up_to_the_bound_and_names_that_are_none_are_passed_over() {
        let many: Vec<_> = (0..100).map(|at| json!({"name": format!("s{at}")})).collect();
        for (secrets, expected) in [
            (json!([{"name": "a"}, {"name": "../b"}, {}, {"name": "c"}]), 2),
            (json!(null), 0),
            (json!([]), 0),
            (json!(many), SECRETS_MAX),
        ] {
            let object = json!({"metadata": {}, "imagePullSecrets": secrets});
            let read = secrets_of_account(object.to_string().as_bytes()).unwrap();
            assert_eq!(read.len(), expected, "{secrets}");
        }
        for text in ["[]", r#"{"metadata": {}, "imagePullSecrets": 5}"#, "<html>"] {
            assert!(secrets_of_account(text.as_bytes()).is_err(), "{text}");
        }
    }
}
