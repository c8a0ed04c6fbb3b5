//! Credentials for registries, and their sources. Secrets are never printed.

mod docker_config;
mod docker_logins;
mod keyring;
mod node;
mod provider;
mod pull_credentials;
mod registry_match;
mod secret;
mod token_cache;

pub use docker_config::PullSecretKind;
pub(crate) use docker_config::{DockerConfig, DockerEntry, HelperNames};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use docker_config::{PlainLogin, config_logins};
pub use docker_logins::{DockerLogins, LoginError, LoginPlace, registry_host};
pub(crate) use keyring::KeyringError;
pub use keyring::{CredentialSource, Keyring, ObjectIdentity, PullSecret, TrackedCredential};
pub use node::{LoginFile, NodeKeyring};
pub use provider::{CredentialProvider, CredentialQuery, NoProviders, Provided, ProviderOptions, Providers, Variables};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use provider::{helper_answer, plugin_answer, provider_names};
pub(crate) use pull_credentials::{HostCredentials, PullCredentials};
use registry_match::registry_key;
pub use secret::{Secret, spellings};
pub use token_cache::{IssuedToken, ServiceAccount, Standalone, TokenCache, TokenRequest, TokenSource};

pub fn metric_families() -> impl Iterator<Item = &'static crate::metrics::Family> {
    provider::PROVIDER_FAMILIES.iter().copied()
}

/// A credential for a registry. `Debug` hides the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub kind: CredentialKind,
    /// The address of the registry, which CRI sends with every pull.
    pub server_address: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CredentialKind {
    Basic {
        username: String,
        password: Secret,
    },
    /// A refresh token, which the registry's token service exchanges for an access token.
    IdentityToken(Secret),
    /// A bearer token, sent to the registry unchanged.
    RegistryToken(Secret),
}

impl Credential {
    /// Returns a hint if the user name or the secret ends with a line break: registries reject such a credential.
    pub fn line_break_hint(&self) -> Option<&'static str> {
        let ends_badly = |text: &str| text.ends_with(['\n', '\r']);
        let is_broken = match &self.kind {
            CredentialKind::Basic { username, password } => ends_badly(username) || ends_badly(password.expose()),
            CredentialKind::IdentityToken(token) | CredentialKind::RegistryToken(token) => ends_badly(token.expose()),
        };
        is_broken.then_some(
            "the password ends with a line break, which is part of it: write it without one (`echo -n`, `printf '%s'`), and \
             encode it again",
        )
    }

    pub fn basic(server_address: impl Into<String>, username: impl Into<String>, password: Secret) -> Self {
        Self {
            kind: CredentialKind::Basic { username: username.into(), password },
            server_address: server_address.into(),
        }
    }
}
