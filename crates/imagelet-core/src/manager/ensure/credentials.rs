//! The credentials of one request: its own or its pull secrets', then the node's, then the providers'; and the access
//! recorded from them (`docs/spec/pull.md §2.3.2`, `§2.3.3`). Each other host of the image has separate credentials.

use std::sync::OnceLock;

use tokio::sync::OnceCell;

use super::Ensuring;
use crate::{
    credentials::{CredentialSource, HostCredentials, Keyring, KeyringError, PullCredentials, TrackedCredential},
    manager::{Caller, EnsureError, error::Cause},
    ports::RegistryHost,
    records::{AccessProof, ImageAccess, RecordedSecret},
};

/// `own`: the credentials from the request. `all`: these and those of the node. Each is looked up at most once.
#[derive(Debug, Default)]
pub(super) struct RequestCredentials {
    own: OnceLock<Result<FoundCredentials, KeyringError>>,
    all: OnceCell<Result<FoundCredentials, KeyringError>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FoundCredentials {
    pub(super) credentials: PullCredentials,
    /// The errors of unreadable secrets and failed providers.
    pub(super) missing: Vec<String>,
}

impl Ensuring<'_> {
    pub(super) async fn credentials(&self) -> Result<&FoundCredentials, EnsureError> {
        let found = self.credentials.all.get_or_init(|| self.find_credentials()).await;
        found.as_ref().map_err(|error| self.error(Cause::Credentials(error.clone())))
    }

    /// The access proof from the request's own credentials. Calls no helper and no provider.
    pub(super) fn own_proof(&self) -> Result<AccessProof, EnsureError> {
        let own = self.own_credentials().as_ref();
        let own = own.map_err(|error| self.error(Cause::Credentials(error.clone())))?;
        Ok(proof_of(own.credentials.iter()))
    }

    async fn find_credentials(&self) -> Result<FoundCredentials, KeyringError> {
        let mut found = self.own_credentials().clone()?;
        let asks_none = matches!(
            self.request.caller,
            Caller::Client { own_credentials: false, .. } | Caller::Prefetch { own_credentials: false }
        );
        let Ok(reference) = &self.reference else { return Ok(found) };
        if !asks_none && self.request.pull.credential.is_none() {
            let names = [reference.repository().to_owned()];
            let keyring = self.manager.parts.keyring.keyring().await;
            let of_files = self.of_registry(&keyring, reference.repository());
            self.add_of_node(&names, of_files, &mut found.credentials.registry, &mut found.missing).await;
            self.drop_unusable(&mut found.credentials.registry);
        }
        // The mirrors get the pull secrets and node credentials for them, and never the credential of the request.
        let asks_node = !matches!(self.request.caller, Caller::Prefetch { own_credentials: false });
        let (secrets, _) = self.keyring_of_secrets();
        for RegistryHost { host, repositories } in self.manager.parts.runtime.registry_hosts(reference).await {
            let mut credentials = at_host(&secrets, &repositories);
            if asks_node {
                let of_files = at_host(self.manager.parts.keyring.keyring().await.as_ref(), &repositories);
                self.add_of_node(&repositories, of_files, &mut credentials, &mut found.missing).await;
            }
            credentials.retain(TrackedCredential::is_usable);
            if !credentials.is_empty() {
                found.credentials.hosts.push(HostCredentials { host, credentials });
            }
        }
        Ok(found)
    }

    /// Adds the node's credentials for a repository: from the credential helper, then `of_files`, then the providers.
    async fn add_of_node(
        &self,
        names: &[String],
        of_files: Vec<TrackedCredential>,
        credentials: &mut Vec<TrackedCredential>,
        missing: &mut Vec<String>,
    ) {
        let (Some(name), parts) = (names.first(), &self.manager.parts) else { return };
        if self.manager.policy().access.docker_keyring {
            let (known, problem) = parts.keyring.ask_helper(name).await;
            credentials.extend(known);
            missing.extend(problem);
        }
        credentials.extend(of_files);
        let provided = parts.providers.provide(&self.request.query(name)).await;
        credentials.extend(provided.credentials);
        missing.extend(provided.failures);
    }

    pub(super) async fn has_secret_for_host(&self) -> bool {
        let Ok(reference) = &self.reference else { return false };
        if self.request.secrets.is_empty() {
            return false;
        }
        let (secrets, _) = self.keyring_of_secrets();
        let hosts = self.manager.parts.runtime.registry_hosts(reference).await;
        hosts.iter().any(|host| !at_host(&secrets, &host.repositories).is_empty())
    }

    fn keyring_of_secrets(&self) -> (Keyring, Vec<KeyringError>) {
        Keyring::from_secrets(&self.request.secrets, self.manager.policy().access.docker_keyring)
    }

    fn of_registry(&self, keyring: &Keyring, repository: &str) -> Vec<TrackedCredential> {
        if self.manager.policy().access.docker_keyring {
            keyring.lookup_at(repository)
        } else {
            keyring.lookup(repository)
        }
    }

    fn own_credentials(&self) -> &Result<FoundCredentials, KeyringError> {
        self.credentials.own.get_or_init(|| {
            let mut found = FoundCredentials::default();
            if let Some(given) = &self.request.pull.credential {
                found.credentials.registry = vec![TrackedCredential::new(given.clone(), CredentialSource::Request)];
                return Ok(found);
            }
            let Ok(reference) = &self.reference else { return Ok(found) };
            let (keyring, mut unreadable) = self.keyring_of_secrets();
            if !self.manager.policy().access.skips_unreadable_secrets && !unreadable.is_empty() {
                return Err(unreadable.swap_remove(0));
            }
            found.missing = unreadable.iter().map(|error| format!("{error}: {}", error.source)).collect();
            for text in &found.missing {
                tracing::warn!(image = self.request.image(), "{text}; the secret is skipped");
            }
            found.credentials.registry = self.of_registry(&keyring, reference.repository());
            self.drop_unusable(&mut found.credentials.registry);
            Ok(found)
        })
    }

    fn drop_unusable(&self, credentials: &mut Vec<TrackedCredential>) {
        credentials.retain(|tracked| !self.manager.policy().access.docker_keyring || tracked.is_usable());
    }
}

/// The credentials for an image at a host besides its registry, without duplicates. `names`: the repository there.
fn at_host(keyring: &Keyring, names: &[String]) -> Vec<TrackedCredential> {
    let mut found: Vec<TrackedCredential> = Vec::new();
    for tracked in names.iter().flat_map(|name| keyring.lookup_at(name)) {
        if !found.contains(&tracked) {
            found.push(tracked);
        }
    }
    found
}

pub(super) fn proof_of<'a>(credentials: impl Iterator<Item = &'a TrackedCredential>) -> AccessProof {
    let mut proof = AccessProof::default();
    for tracked in credentials {
        let access = access_of(&[tracked]);
        proof.secrets.extend(access.kubernetes_secrets);
        if proof.service_account.is_none() {
            proof.service_account = access.kubernetes_service_accounts.into_iter().next();
        }
    }
    proof
}

/// The access that a pull proves. If it was anonymous or used a node credential, every pod may use the image.
pub(super) fn access_of(used: &[&TrackedCredential]) -> ImageAccess {
    let mut access = ImageAccess::default();
    for TrackedCredential { source, hash, .. } in used {
        match source {
            CredentialSource::Node => access.node_pods_accessible = true,
            CredentialSource::Secret(object) => access.kubernetes_secrets.push(RecordedSecret {
                uid: object.uid.clone(),
                namespace: object.namespace.clone(),
                name: object.name.clone(),
                credential_hash: hash.clone(),
            }),
            // The owner of the credential is unknown. The hash is the uid, so only a client with the same credential
            // matches.
            CredentialSource::Request => access.kubernetes_secrets.push(RecordedSecret {
                uid: format!("credential:{hash}"),
                credential_hash: hash.clone(),
                ..RecordedSecret::default()
            }),
            CredentialSource::ServiceAccount(object) => access.kubernetes_service_accounts.push(object.clone()),
        }
    }
    access.node_pods_accessible |= used.is_empty();
    access
}
