//! The port to credential sources other than configuration documents, with its query and result.

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
    /// The name of the pod's service account; `None`: the pod has none.
    pub service_account: Option<String>,
}

/// The result of all providers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provided {
    /// In the order in which they are tried.
    pub credentials: Vec<TrackedCredential>,
    /// The error of each failed provider, in the order of the configuration. Contains no secret.
    pub failures: Vec<String>,
}

/// Supplies credentials that are in no document. The call never fails: a pull continues with the credentials it gets.
#[async_trait]
pub trait CredentialProvider: fmt::Debug + Send + Sync {
    /// Returns all credentials for a repository. A drop of the future cancels the work.
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
