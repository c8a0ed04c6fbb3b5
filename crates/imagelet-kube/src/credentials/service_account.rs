//! A service account object of the API: its uid, annotations and pull secrets.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1::ServiceAccount as KubeServiceAccount, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::object_cache::Versioned;
use crate::{
    api_error::ApiError,
    names::{NAME_LENGTH_MAX, is_name},
    pods::SECRETS_MAX,
};

/// What of a service account is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AccountObject {
    pub(super) uid: String,
    pub(super) annotations: BTreeMap<String, String>,
    /// The names of its pull secrets, in its namespace.
    pub(super) pull_secrets: Vec<Arc<str>>,
}

/// Reads a service account.
///
/// # Errors
/// Where the text is not that of one.
pub(super) fn read_account(json: &[u8]) -> Result<Versioned<AccountObject>, ApiError> {
    let KubeServiceAccount { metadata, image_pull_secrets, .. } =
        serde_json::from_slice(json).map_err(kube::Error::SerdeError)?;
    let names =
        image_pull_secrets.into_iter().flatten().map(|it| it.name).filter(|name| is_name(name, NAME_LENGTH_MAX));
    let pull_secrets = names.take(SECRETS_MAX).map(Arc::from).collect();
    let ObjectMeta { uid, resource_version, annotations, .. } = metadata;
    let (uid, annotations) = (uid.unwrap_or_default(), annotations.unwrap_or_default());
    let object = AccountObject { uid, annotations, pull_secrets };
    Ok(Versioned { version: resource_version.unwrap_or_default(), object })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pull_secrets_are_read_up_to_the_bound_and_names_that_are_none_are_passed_over() {
        let many: Vec<_> = (0..100).map(|at| json!({"name": format!("s{at}")})).collect();
        for (secrets, expected) in [
            (json!([{"name": "a"}, {"name": "../b"}, {}, {"name": "c"}]), 2),
            (json!(null), 0),
            (json!([]), 0),
            (json!(many), SECRETS_MAX),
        ] {
            let object = json!({"metadata": {"resourceVersion": "9"}, "imagePullSecrets": secrets});
            let read = read_account(object.to_string().as_bytes()).unwrap();
            assert_eq!((read.version.as_str(), read.object.pull_secrets.len()), ("9", expected), "{secrets}");
        }
        for text in ["[]", r#"{"metadata": {}, "imagePullSecrets": 5}"#, "<html>"] {
            assert!(read_account(text.as_bytes()).is_err(), "{text}");
        }
    }
}
