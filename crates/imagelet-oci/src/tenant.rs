//! The tenant of a pull: one tenant's resources must not block another tenant's pull.

use imagelet_core::credentials::Credential;

/// One tenant: the pods of one namespace that use one credential, or a client with one credential.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) namespace: String,
    pub(crate) credential: Option<Credential>,
}
