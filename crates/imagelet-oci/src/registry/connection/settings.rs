//! The settings of a connection to a host: TLS, the host's own deadline and proxy.

use std::{fmt, sync::Arc, time::Duration};

use super::proxy::Proxy;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionSettings {
    pub(crate) tls: TlsSettings,
    /// The deadline for a TCP connection. `None` for the deadline of the registry client.
    pub(crate) dial_timeout: Option<Duration>,
    /// The host's proxy, which overrides proxy rules and variables. In a client's key, it is the chosen proxy.
    pub(crate) proxy: Option<Arc<Proxy>>,
    /// Whether the host is a loopback host without a configured scheme, which may speak plain HTTP or TLS.
    pub(crate) may_be_tls: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TlsSettings {
    /// Certificate authorities in PEM, in addition to the system's authorities.
    pub(crate) authorities: Vec<Arc<[u8]>>,
    pub(crate) identities: Vec<Identity>,
    pub(crate) skip_verify: bool,
}

/// A certificate and its key, in PEM. `Debug` does not print them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) chain: Arc<[u8]>,
    pub(crate) key: Arc<[u8]>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

impl ConnectionSettings {
    /// The settings for TLS to a loopback host. Without configured TLS settings, its certificate is not verified.
    pub(crate) fn for_loopback_tls(mut self) -> Self {
        self.tls.skip_verify |= self.tls == TlsSettings::default();
        self
    }

    /// The settings for another origin: the host's TLS settings, without its client certificates and its proxy.
    pub(crate) fn for_other_origin(self) -> Self {
        Self { proxy: None, ..self.without_identities() }
    }

    /// Removes the client certificates, because they are credentials of their host.
    pub(crate) fn without_identities(mut self) -> Self {
        self.tls.identities.clear();
        self
    }
}
