//! The `Authorization` header that a host receives, numbered within its pull.

use base64::Engine as _;
use http::HeaderValue;
use imagelet_core::credentials::{Credential, CredentialKind, Secret};
use zeroize::Zeroizing;

/// The header of one host, used until the host rejects it.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) header: HeaderValue,
    pub(crate) secret: Secret,
    pub(crate) number: u64,
}

impl Grant {
    pub(crate) fn ready(credential: &Credential) -> Option<Self> {
        match &credential.kind {
            CredentialKind::RegistryToken(token) => Self::new("Bearer", token.clone(), 0).ok(),
            CredentialKind::Basic { .. } | CredentialKind::IdentityToken(_) => None,
        }
    }

    pub(crate) fn new(scheme: &str, secret: Secret, number: u64) -> Result<Self, http::header::InvalidHeaderValue> {
        let text = Zeroizing::new(format!("{scheme} {}", secret.expose()));
        let mut header = HeaderValue::from_str(&text)?;
        header.set_sensitive(true);
        Ok(Self { header, secret, number })
    }
}

pub(crate) fn basic(username: &str, password: &Secret) -> Secret {
    let pair = Zeroizing::new(format!("{username}:{}", password.expose()));
    Secret::new(base64::engine::general_purpose::STANDARD.encode(pair.as_bytes()))
}
