//! Service accounts and their tokens: the port to their issuer.

use std::{collections::BTreeMap, fmt, time::SystemTime};

use async_trait::async_trait;

use super::Secret;

/// A service account as the cluster has it now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Its uid.
    pub uid: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// A token for which audience, bound to which pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TokenRequest {
    /// Namespace of the pod and its service account.
    pub namespace: String,
    /// The service account's name.
    pub service_account: String,
    /// Its uid: a token is only issued while this is the one.
    pub service_account_uid: String,
    /// For whom the token is.
    pub audience: String,
    /// The pod it is bound to.
    pub pod_name: String,
    /// That pod's uid.
    pub pod_uid: String,
}

/// A token, and how long it is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    /// The token.
    pub token: Secret,
    /// From when.
    pub issued: SystemTime,
    /// Until when.
    pub expires: SystemTime,
}

/// The cluster did not answer, or answered no. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokenSourceError(String);

impl TokenSourceError {
    /// With the cluster's own words.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// The cluster, as far as service accounts go. Asked anew each time, without a cache.
#[async_trait]
pub trait TokenSource: fmt::Debug + Send + Sync {
    /// A service account.
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, TokenSourceError>;

    /// A new token.
    async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, TokenSourceError>;
}

/// A node without a cluster: it has no service accounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standalone;

#[async_trait]
impl TokenSource for Standalone {
    async fn service_account(&self, _namespace: &str, _name: &str) -> Result<ServiceAccount, TokenSourceError> {
        Err(TokenSourceError::new("cannot get ServiceAccounts when kubelet is in standalone mode"))
    }

    async fn token(&self, _request: &TokenRequest) -> Result<IssuedToken, TokenSourceError> {
        Err(TokenSourceError::new("cannot use TokenManager when kubelet is in standalone mode"))
    }
}
