//! The tenant of a pull: one tenant's resources must not block another tenant's pull.

use imagelet_core::credentials::Credential;

/// The pods of a namespace with a credential, or a client with a credential.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) namespace: String,
    pub(crate) credential: Option<Credential>,
}
