//! One host that serves a registry's content, and what a configuration says of it.

use http::HeaderMap;
use imagelet_core::{
    credentials::Credential,
    image::{DOCKER_HUB, DOCKER_HUB_HOST},
};

use crate::registry::connection::{
    origin::{Origin, Target},
    settings::ConnectionSettings,
};

#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is said of a host by itself")]
pub(crate) struct Host {
    pub(crate) origin: Origin,
    /// The path before the repository: `/v2` unless overridden, without a final slash.
    pub(crate) base_path: String,
    /// The repository at this host, where it has another name there.
    pub(crate) repository: Option<String>,
    /// A mirror receives no credential of the registry.
    pub(crate) is_mirror: bool,
    /// Requests name the registry in the query `ns`: the mirror may serve many.
    pub(crate) names_registry: bool,
    pub(crate) can_pull: bool,
    pub(crate) can_resolve: bool,
    pub(crate) connection: ConnectionSettings,
    pub(crate) headers: HeaderMap,
    /// What the configuration gives for this host; a credential of the pull goes before.
    pub(crate) credential: Option<Credential>,
}

impl Host {
    pub(crate) fn new(origin: Origin, base_path: String) -> Self {
        let (connection, headers) = (ConnectionSettings::default(), HeaderMap::new());
        Self {
            origin,
            base_path,
            repository: None,
            is_mirror: false,
            names_registry: false,
            can_pull: true,
            can_resolve: true,
            connection,
            headers,
            credential: None,
        }
    }

    /// The registry itself, without configuration.
    pub(crate) fn own(registry: &str) -> Result<Self, String> {
        let name = if registry == DOCKER_HUB { DOCKER_HUB_HOST } else { registry };
        let scheme = if Origin::is_loopback_authority(name) { "http" } else { "https" };
        let mut host = Self::new(Target::parse(&format!("{scheme}://{name}/v2"))?.origin, "/v2".to_owned());
        host.connection.may_be_tls = scheme == "http" && host.origin.port() != 80;
        Ok(host)
    }
}
