//! A secret object of the API, parsed only for its docker configuration.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use imagelet_core::credentials::{ObjectIdentity, PullSecret, PullSecretKind, Secret};
use serde::Deserialize;
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use super::object_cache::ObjectName;
use crate::api_error::ApiError;

/// The API server's uids have 36 bytes.
const UID_LENGTH_MAX: usize = 128;

#[derive(Deserialize)]
struct SecretObject<'a> {
    #[serde(borrow)]
    metadata: SecretMetadata<'a>,
    #[serde(default)]
    r#type: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Option<BTreeMap<Cow<'a, str>, &'a RawValue>>,
}

#[derive(Deserialize)]
struct SecretMetadata<'a> {
    #[serde(default)]
    uid: Cow<'a, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotPullSecret {
    #[error("its type is neither `kubernetes.io/dockerconfigjson` nor `kubernetes.io/dockercfg`")]
    Type,
    #[error("it has no `{0}`")]
    Document(&'static str),
}

/// Parses a secret. The inner error means that it is no pull secret. The outer error contains nothing of the secret.
pub(super) fn read_secret(name: &ObjectName, json: &[u8]) -> Result<Result<PullSecret, NotPullSecret>, ApiError> {
    let object: SecretObject<'_> =
        serde_json::from_slice(json).map_err(|error| ApiError::undecodable("secret", &error))?;
    let uid = object.metadata.uid;
    let invalid = |why| ApiError::SecretInvalid { what: "secret", why };
    if uid.len() > UID_LENGTH_MAX {
        return Err(invalid(format!("its uid is longer than {UID_LENGTH_MAX} bytes")));
    }
    let found = PullSecretKind::from_type(&object.r#type).ok_or(NotPullSecret::Type).and_then(|kind| {
        let raw = object.data.as_ref().and_then(|data| data.get(kind.key()));
        Ok((kind, raw.ok_or(NotPullSecret::Document(kind.key()))?))
    });
    let (kind, raw) = match found {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    let text: String = serde_json::from_str(raw.get()).map_err(|error| ApiError::undecodable("secret", &error))?;
    let document = BASE64_STANDARD.decode(Zeroizing::new(text).as_bytes()).map(Secret::from_bytes);
    let document = document.map_err(|_| invalid(format!("`{}` is not base64", kind.key())))?;
    let (uid, namespace, name) = (uid.into_owned(), name.namespace.to_string(), name.name.to_string());
    Ok(Ok(PullSecret { identity: ObjectIdentity { uid, namespace, name }, kind, document }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(object: &Value) -> Result<Result<(String, PullSecretKind, String), NotPullSecret>, String> {
        let name = ObjectName { namespace: "shop".into(), name: "registry".into() };
        let read = read_secret(&name, object.to_string().as_bytes()).map_err(|error| error.to_string())?;
        let text = |secret: PullSecret| {
            assert!(!format!("{secret:?}").contains(secret.document.expose()));
            (secret.identity.uid, secret.kind, secret.document.expose().to_owned())
        };
        Ok(read.map(text))
    }

    fn secret(kind: &str, data: &Value) -> Value {
        json!({"metadata": {"uid": "u1", "resourceVersion": "7"}, "type": kind, "data": data})
    }

    #[test]
    fn both_types_of_pull_secret_are_read_and_others_have_no_credentials() {
        let document = BASE64_STANDARD.encode(r#"{"auths":{}}"#);
        let found = |kind| Ok(Ok(("u1".to_owned(), kind, r#"{"auths":{}}"#.to_owned())));
        let without = |key| Ok(Err(NotPullSecret::Document(key)));
        for (kind, data, expected) in [
            (
                "kubernetes.io/dockerconfigjson",
                json!({".dockerconfigjson": document, "other": 5}),
                found(PullSecretKind::DockerConfigJson),
            ),
            ("kubernetes.io/dockercfg", json!({".dockercfg": document}), found(PullSecretKind::DockerCfg)),
            ("kubernetes.io/dockercfg", json!({".dockerconfigjson": document}), without(".dockercfg")),
            ("kubernetes.io/dockerconfigjson", json!({}), without(".dockerconfigjson")),
            ("kubernetes.io/dockerconfigjson", Value::Null, without(".dockerconfigjson")),
            ("Opaque", json!({".dockerconfigjson": document}), Ok(Err(NotPullSecret::Type))),
            ("", json!({".dockerconfigjson": document}), Ok(Err(NotPullSecret::Type))),
        ] {
            assert_eq!(read(&secret(kind, &data)), expected, "{kind} {data}");
        }
    }

    #[test]
    fn what_is_no_secret_object_is_rejected_without_a_word_of_its_content() {
        let kind = "kubernetes.io/dockerconfigjson";
        let long = "u".repeat(129);
        for (object, why) in [
            (secret(kind, &json!({".dockerconfigjson": "hunter2!"})), "`.dockerconfigjson` is not base64"),
            (secret(kind, &json!({".dockerconfigjson": ["hunter2"]})), "line 1 column"),
            (secret(kind, &json!({".dockerconfigjson": {"password": "hunter2"}})), "line 1 column"),
            (secret(kind, &json!("hunter2")), "line 1 column"),
            (json!({"data": {".dockerconfigjson": "hunter2"}}), "line 1 column"),
            (json!("hunter2"), "line 1 column"),
            (json!({"metadata": {"uid": long}}), "its uid is longer than 128 bytes"),
        ] {
            let error = read(&object).unwrap_err();
            assert!(error.starts_with("the API server sent an invalid secret: ") && error.contains(why), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
