//! The tenant of a pull: what one tenant holds must not keep another's pull waiting.

use imagelet_core::credentials::Credential;

/// Pods of a namespace with a credential, or a caller with one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) namespace: String,
    pub(crate) credential: Option<Credential>,
}
