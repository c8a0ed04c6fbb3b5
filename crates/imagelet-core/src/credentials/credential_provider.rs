//! What is asked for credentials beyond documents, and what it answers.

use std::fmt;

use async_trait::async_trait;

use super::TrackedCredential;

/// Which pod pulls from which repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialQuery {
    /// The image's normalised repository, without tag and digest.
    pub repository: String,
    /// The asking pod's namespace; empty where no pod asks.
    pub namespace: String,
    /// The pod's name.
    pub pod_name: String,
    /// The pod's uid.
    pub pod_uid: String,
    /// The name of the pod's service account; `None` where it has none.
    pub service_account: Option<String>,
}

/// What providers had to give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provided {
    /// In the order in which to try them.
    pub credentials: Vec<TrackedCredential>,
    /// Providers that should have answered and did not, in the order of the configuration.
    pub failures: Vec<ProviderFailure>,
}

/// That one provider gave nothing, and why. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderFailure {
    /// Its name in the configuration.
    pub provider: String,
    /// The whole chain of causes.
    pub message: String,
}

impl fmt::Display for ProviderFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "credential provider `{}`: {}", self.provider, self.message)
    }
}

/// Knows credentials for images that no document holds. Never fails as a whole: a pull goes on with what there is.
#[async_trait]
pub trait CredentialProvider: fmt::Debug + Send + Sync {
    /// All credentials for a repository. Dropped, it gives up whatever it began.
    async fn provide(&self, query: &CredentialQuery) -> Provided;
}

/// Provides nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProviders;

#[async_trait]
impl CredentialProvider for NoProviders {
    async fn provide(&self, _query: &CredentialQuery) -> Provided {
        Provided::default()
    }
}
