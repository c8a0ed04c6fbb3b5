//! The credentials of one request: its own or its pull secrets', then the node's, then the providers'; and the access
//! records made of them (`docs/spec/pull.md §2.3.2`, `§2.3.3`).

use std::sync::OnceLock;

use super::Ensuring;
use crate::{
    credentials::{CredentialSource, Keyring, KeyringError, TrackedCredential},
    image::Reference,
    manager::{Caller, EnsureError, error::Cause},
    records::{AccessProof, ImageAccess, RecordedSecret},
};

/// Each part is looked up at most once, and only where needed.
#[derive(Debug, Default)]
pub(super) struct RequestCredentials {
    own: OnceLock<Result<FoundCredentials, KeyringError>>,
    all: OnceLock<Result<FoundCredentials, KeyringError>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FoundCredentials {
    pub(super) credentials: Vec<TrackedCredential>,
    /// Failed sources: unreadable secrets, failed providers.
    pub(super) missing: Vec<String>,
}

impl Ensuring<'_> {
    pub(super) async fn credentials(&self) -> Result<&FoundCredentials, EnsureError> {
        if self.credentials.all.get().is_none() {
            let found = self.find_credentials().await;
            self.credentials.all.get_or_init(|| found);
        }
        let found = self.credentials.all.get().expect("it was set above");
        found.as_ref().map_err(|error| self.error(Cause::Credentials(error.clone())))
    }

    /// The proof by the client's own credentials, which takes no wait.
    pub(super) fn own_proof(&self) -> Result<AccessProof, EnsureError> {
        let own = self.own_credentials().as_ref();
        let own = own.map_err(|error| self.error(Cause::Credentials(error.clone())))?;
        Ok(proof_of(&own.credentials))
    }

    async fn find_credentials(&self) -> Result<FoundCredentials, KeyringError> {
        let mut found = self.own_credentials().clone()?;
        let asks_none = matches!(
            self.request.caller,
            Caller::Client { own_credentials: false, .. } | Caller::Prefetch { own_credentials: false }
        );
        let Ok(reference) = self.request.image.parse::<Reference>() else { return Ok(found) };
        if asks_none || !self.request.credentials.is_empty() {
            return Ok(found);
        }
        let (repository, parts) = (reference.repository(), &self.manager.parts);
        if !self.is_kubelet() {
            let (known, problem) = parts.keyring.ask_helper(repository).await;
            found.credentials.extend(known);
            found.missing.extend(problem);
        }
        found.credentials.extend(parts.keyring.keyring().await.lookup(repository));
        let provided = parts.providers.provide(&self.request.query(repository)).await;
        found.credentials.extend(provided.credentials);
        found.missing.extend(provided.failures);
        self.drop_unusable(&mut found);
        Ok(found)
    }

    fn own_credentials(&self) -> &Result<FoundCredentials, KeyringError> {
        self.credentials.own.get_or_init(|| {
            let given = &self.request.credentials;
            if !given.is_empty() {
                let of_request = |credential| TrackedCredential::new(credential, CredentialSource::Request);
                let credentials = given.iter().cloned().map(of_request).collect();
                return Ok(FoundCredentials { credentials, missing: Vec::new() });
            }
            let Ok(reference) = self.request.image.parse::<Reference>() else { return Ok(FoundCredentials::default()) };
            let (keyring, mut unreadable) = Keyring::from_secrets(&self.request.secrets);
            if self.is_kubelet() && !unreadable.is_empty() {
                return Err(unreadable.swap_remove(0));
            }
            let missing = unreadable.iter().map(|error| {
                let text = format!("{error}: {}", error.source);
                tracing::warn!(image = self.request.image, "{text}; the secret is skipped");
                text
            });
            let missing = missing.collect();
            let mut found = FoundCredentials { credentials: keyring.lookup(reference.repository()), missing };
            self.drop_unusable(&mut found);
            Ok(found)
        })
    }

    fn drop_unusable(&self, found: &mut FoundCredentials) {
        found.credentials.retain(|tracked| self.is_kubelet() || tracked.is_usable());
    }
}

pub(super) fn proof_of(credentials: &[TrackedCredential]) -> AccessProof {
    let mut proof = AccessProof::default();
    for tracked in credentials {
        let access = access_of(Some(tracked));
        proof.secrets.extend(access.kubernetes_secrets);
        if proof.service_account.is_none() {
            proof.service_account = access.kubernetes_service_accounts.into_iter().next();
        }
    }
    proof
}

/// The access that a credential opened; anonymous access opens the image to all.
pub(super) fn access_of(used: Option<&TrackedCredential>) -> ImageAccess {
    let mut access = ImageAccess::default();
    match used.map(|tracked| (&tracked.source, &tracked.hash)) {
        None | Some((CredentialSource::Node, _)) => access.node_pods_accessible = true,
        Some((CredentialSource::Secret(object), hash)) => access.kubernetes_secrets.push(RecordedSecret {
            uid: object.uid.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            credential_hash: hash.clone(),
        }),
        // Its owner is unknown. The hash is its own identity, so that only a client with the same credential matches.
        Some((CredentialSource::Request, hash)) => access.kubernetes_secrets.push(RecordedSecret {
            uid: format!("credential:{hash}"),
            credential_hash: hash.clone(),
            ..RecordedSecret::default()
        }),
        Some((CredentialSource::ServiceAccount(object), _)) => {
            access.kubernetes_service_accounts.push(object.clone());
        }
    }
    access
}
