//! The pull secret of a set: read when a pull needs it, from the namespace of the set, and not kept.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use imagelet_core::credentials::{ObjectIdentity, PullSecret, PullSecretKind, Secret};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use crate::{
    api_client::{ApiClient, encoded},
    api_error::ApiError,
    prefetch::objects::ObjectMetadata,
};

/// A secret as the API has it. `Debug` hides the values.
#[derive(Debug, Deserialize)]
struct SecretObject {
    #[serde(default)]
    metadata: ObjectMetadata,
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    data: BTreeMap<String, SecretValue>,
}

#[derive(Debug)]
struct SecretValue(Secret);

impl<'de> Deserialize<'de> for SecretValue {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(value)?);
        // The error names no byte of the value.
        let bytes = BASE64_STANDARD.decode(text.as_bytes()).map_err(|_| serde::de::Error::custom("no base64"))?;
        Ok(Self(Secret::from_bytes(bytes)))
    }
}

/// Reads a secret. The error is for people, and shows nothing of the secret.
pub(super) async fn read(client: &ApiClient, namespace: &str, name: &str) -> Result<PullSecret, String> {
    let path = format!("/api/v1/namespaces/{}/secrets/{}", encoded(namespace), encoded(name));
    let failed = |why: String| format!("cannot read the pull secret `{namespace}/{name}`: {why}");
    let secret: SecretObject = client.get(&path).await.map_err(|error| match error {
        // A text of the decoder may hold parts of the answer.
        ApiError::Decode(_) => failed("the answer is no secret".to_owned()),
        error => failed(error.chain()),
    })?;
    let kind = PullSecretKind::from_type(&secret.r#type).ok_or_else(|| {
        failed("its type is neither `kubernetes.io/dockerconfigjson` nor `kubernetes.io/dockercfg`".to_owned())
    })?;
    let mut data = secret.data;
    let document = data.remove(kind.key()).ok_or_else(|| failed(format!("it has no `{}`", kind.key())))?.0;
    let identity = ObjectIdentity { uid: secret.metadata.uid, namespace: namespace.to_owned(), name: name.to_owned() };
    Ok(PullSecret { identity, kind, document })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{FakeApi, FakeApiOptions};

    async fn read_with(object: Value) -> Result<PullSecret, String> {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        fake.put("/api/v1/secrets", object);
        read(&ApiClient::connected(fake.client()), "shop", "login").await
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
