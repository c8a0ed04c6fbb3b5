//! The port for credentials beyond configuration documents, with its query and result.

use std::fmt;

use async_trait::async_trait;

use super::TrackedCredential;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialQuery {
    /// The image's normalised repository, without tag and digest.
    pub repository: String,
    /// The pod's namespace; empty without a pod.
    pub namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
    /// The name of the pod's service account; `None` where it has none.
    pub service_account: Option<String>,
}

/// The result of all providers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provided {
    /// In the order to try them.
    pub credentials: Vec<TrackedCredential>,
    /// The providers that failed, each with its error, in the order of the configuration. Holds no secret.
    pub failures: Vec<String>,
}

/// Supplies credentials that no document holds. Never fails as a whole: a pull continues with what is available.
#[async_trait]
pub trait CredentialProvider: fmt::Debug + Send + Sync {
    /// All credentials for a repository. Dropping the future cancels its work.
    async fn provide(&self, query: &CredentialQuery) -> Provided;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NoProviders;

#[async_trait]
impl CredentialProvider for NoProviders {
    async fn provide(&self, _query: &CredentialQuery) -> Provided {
        Provided::default()
    }
}
