//! What credentials say about the access to an image, in the records' words (`docs/spec/pull.md §2.3.2`, `§2.3.3`).

use crate::{
    credentials::{CredentialSource, TrackedCredential},
    records::{AccessProof, ImageAccess, RecordedSecret, RecordedServiceAccount},
};

/// What credentials say about their client: its secrets, and the first service account.
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

/// The access to an image that this credential opened; anonymous access opens it to all.
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
        // Its owner is unknown. It is its own object, so that only a client that shows the same again is known by it.
        Some((CredentialSource::Request, hash)) => access.kubernetes_secrets.push(RecordedSecret {
            uid: format!("credential:{hash}"),
            credential_hash: hash.clone(),
            ..RecordedSecret::default()
        }),
        Some((CredentialSource::ServiceAccount(object), _)) => {
            access.kubernetes_service_accounts.push(RecordedServiceAccount {
                uid: object.uid.clone(),
                namespace: object.namespace.clone(),
                name: object.name.clone(),
            });
        }
    }
    access
}
