//! The pull secret of a set: read when a pull needs it, from the namespace of the set, and not kept.

use imagelet_core::credentials::PullSecret;

use kube::Client;

use crate::{
    api_error::ApiError,
    credentials::{ObjectName, read_secret, secret_api},
};

/// Reads a secret. The error is for people, and shows nothing of the secret.
pub(super) async fn read(client: &Client, namespace: &str, name: &str) -> Result<PullSecret, String> {
    let failed = |why: String| format!("cannot read the pull secret `{namespace}/{name}`: {why}");
    let object = ObjectName { namespace: namespace.into(), name: name.into() };
    let answer = secret_api::get(client, &object.path("secrets")).await;
    let secret = answer.and_then(|json| read_secret(&object, &json)).map_err(|error| match error {
        ApiError::SecretInvalid { .. } => failed("the answer is no secret".to_owned()),
        error => failed(error.to_string()),
    })?;
    secret.object.map_err(|why| failed(why.to_string()))
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
        read(&fake.client(), "shop", "login").await
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
            (secret("kubernetes.io/dockercfg", &json!({".dockercfg": "hidden!"})), "the answer is no secret"),
            (secret("kubernetes.io/dockercfg", &json!(["hidden"])), "the answer is no secret"),
            (json!({"metadata": {"namespace": "other", "name": "login"}}), "secrets \"login\" not found"),
        ] {
            let error = read_with(object).await.unwrap_err();
            assert!(error.starts_with("cannot read the pull secret `shop/login`: "), "{error}");
            assert!(error.contains(why) && !error.contains("hidden"), "{error}");
        }
    }
}
