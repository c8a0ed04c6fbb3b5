//! The pull secrets of a pod: those it names, or those of its service account, and no others.

use std::sync::Arc;

use imagelet_core::{credentials::PullSecret, image::ByteSize};
use kube::Client;

use super::{
    object_cache::{ObjectCache, ObjectName, ReadResult, Versioned, encoded},
    secret_api,
    secret_object::{NotPullSecret, read_secret},
    service_account::{AccountObject, read_account},
};
use crate::{api_error::ApiError, pods::BoundPod};

/// Most bytes of one pod's documents: each of its images has a copy while it is pulled.
const DOCUMENTS_LENGTH_MAX: usize = 4 << 20;

/// Reads the pull secrets of pods by `get`, one by one.
pub(crate) struct PullSecrets {
    client: Client,
    secrets: ObjectCache<Result<PullSecret, NotPullSecret>>,
    accounts: ObjectCache<AccountObject>,
}

impl PullSecrets {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, secrets: ObjectCache::new(), accounts: ObjectCache::new() }
    }

    /// The readable pull secrets of a pod, in its order. The others are skipped with a warning, as a kubelet does.
    pub(crate) async fn of_pod(&self, pod: &BoundPod) -> Vec<PullSecret> {
        let mut found = Vec::new();
        let mut length = 0;
        for name in self.names(pod).await {
            let name = ObjectName { namespace: Arc::clone(&pod.identity.namespace), name };
            let secret = match self.secret(&name).await {
                Ok(secret) => secret,
                Err(error) => {
                    let (pod, secret) = (pod.full_name(), &*name.name);
                    tracing::warn!(pod, secret, %error, "cannot read a pull secret; it is skipped");
                    continue;
                }
            };
            // As in a kubelet, such a secret has no credentials.
            let Ok(secret) = &*secret else { continue };
            length += secret.document.expose().len();
            if length > DOCUMENTS_LENGTH_MAX {
                tracing::warn!(
                    pod = pod.full_name(),
                    secret = &*name.name,
                    "the pull secrets of the pod are longer than {}; the rest is skipped",
                    ByteSize(DOCUMENTS_LENGTH_MAX as u64)
                );
                break;
            }
            found.push(secret.clone());
        }
        found
    }

    /// A pod that names none has those of its service account: what the API server does when it admits a pod.
    async fn names(&self, pod: &BoundPod) -> Vec<Arc<str>> {
        if !pod.pull_secrets.is_empty() || pod.service_account.is_empty() {
            return pod.pull_secrets.clone();
        }
        let (namespace, name) = (Arc::clone(&pod.identity.namespace), Arc::clone(&pod.service_account));
        match self.account(&ObjectName { namespace, name }).await {
            Ok(account) => account.pull_secrets.clone(),
            Err(error) => {
                let (pod, account) = (pod.full_name(), &*pod.service_account);
                tracing::debug!(pod, account, %error, "cannot read a service account; it counts as without pull secrets");
                Vec::new()
            }
        }
    }

    async fn secret(&self, name: &ObjectName) -> ReadResult<Result<PullSecret, NotPullSecret>> {
        let read = async |version: &str| self.read("secrets", name, version, |json| read_secret(name, json)).await;
        self.secrets.get(name, read).await
    }

    async fn account(&self, name: &ObjectName) -> ReadResult<AccountObject> {
        let read = async |version: &str| self.read("serviceaccounts", name, version, read_account).await;
        self.accounts.get(name, read).await
    }

    async fn read<T>(
        &self,
        kind: &str,
        name: &ObjectName,
        version: &str,
        decode: impl Fn(&[u8]) -> Result<Versioned<T>, ApiError>,
    ) -> Result<Versioned<T>, ApiError> {
        let path = name.path(kind);
        // From the cache of the API server, but never older than before. The first read has its newest state.
        let cached = format!("{path}?resourceVersion={}", encoded(version));
        let answer = match secret_api::get(&self.client, if version.is_empty() { &path } else { &cached }).await {
            // This API server is behind the one that answered before.
            Err(error) if matches!(error.code(), Some(410 | 504)) => secret_api::get(&self.client, &path).await?,
            answer => answer?,
        };
        decode(&answer)
    }
}
