//! The port to the issuer of service account tokens.

use std::{collections::BTreeMap, fmt, time::SystemTime};

use async_trait::async_trait;

use super::Secret;
use crate::text::PlainError;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccount {
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TokenRequest {
    pub namespace: String,
    pub service_account: String,
    /// The uid of the service account. No token is issued for a service account with another uid.
    pub service_account_uid: String,
    pub audience: String,
    pub pod_name: String,
    pub pod_uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    pub token: Secret,
    pub issued: SystemTime,
    pub expires: SystemTime,
}

/// The service account API of the cluster, without a cache.
#[async_trait]
pub trait TokenSource: fmt::Debug + Send + Sync {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, PlainError>;

    async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, PlainError>;
}

/// The token source of a node without a cluster. It has no service accounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standalone;

#[async_trait]
impl TokenSource for Standalone {
    async fn service_account(&self, _namespace: &str, _name: &str) -> Result<ServiceAccount, PlainError> {
        Err(PlainError::new("cannot get ServiceAccounts when kubelet is in standalone mode"))
    }

    async fn token(&self, _request: &TokenRequest) -> Result<IssuedToken, PlainError> {
        Err(PlainError::new("cannot use TokenManager when kubelet is in standalone mode"))
    }
}
