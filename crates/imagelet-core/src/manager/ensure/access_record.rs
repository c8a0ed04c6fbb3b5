//! What credentials say about who may use an image, in the records' words (`docs/spec/pull.md §2.3.2`, `§2.3.3`).

use crate::{
    credentials::{CredentialSource, TrackedCredential},
    records::{Asker, ImageAccess, RecordedSecret, RecordedServiceAccount},
};

/// What an asker's credentials say about it: its secrets, and the first service account.
pub(super) fn asker_of(credentials: &[TrackedCredential]) -> Asker {
    let mut asker = Asker::default();
    for tracked in credentials {
        let access = access_of(Some(tracked));
        asker.secrets.extend(access.kubernetes_secrets);
        if asker.service_account.is_none() {
            asker.service_account = access.kubernetes_service_accounts.into_iter().next();
        }
    }
    asker
}

/// Who may use an image that this credential opened; anonymous access opens it to all.
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
        // Nobody told whose it is. It is its own object, so that only who shows the same again is known by it.
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
