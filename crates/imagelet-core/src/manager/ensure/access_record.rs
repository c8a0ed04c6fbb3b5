//! Converts credentials into access records (`docs/spec/pull.md §2.3.2`, `§2.3.3`).

use crate::{
    credentials::{CredentialSource, TrackedCredential},
    records::{AccessProof, ImageAccess, RecordedSecret},
};

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
