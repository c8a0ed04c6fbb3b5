//! How a host is connected to: its TLS settings and its own deadline.

use std::{fmt, sync::Arc, time::Duration};

use super::proxy::Proxy;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionSettings {
    pub(crate) tls: TlsSettings,
    /// `None`: the deadline of the registry client.
    pub(crate) dial_timeout: Option<Duration>,
    /// The host's own proxy, before the rules for proxies and the variables of the environment; in the key of a client
    /// the proxy that was chosen.
    pub(crate) proxy: Option<Arc<Proxy>>,
    /// A loopback host for which no scheme is configured: plain HTTP, or TLS.
    pub(crate) may_be_tls: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TlsSettings {
    /// Added to the system's authorities, in PEM.
    pub(crate) authorities: Vec<Arc<[u8]>>,
    /// A server gets the first that it may accept.
    pub(crate) identities: Vec<Identity>,
    pub(crate) skip_verify: bool,
}

/// A certificate and its key, in PEM; does not print.
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
    /// For a loopback host that speaks TLS: its certificate is verified where settings say against what.
    pub(crate) fn for_loopback_tls(mut self) -> Self {
        self.tls.skip_verify |= self.tls == TlsSettings::default();
        self
    }

    /// For another origin than the host's: its TLS settings alone. A client certificate is a credential of the host, and
    /// its proxy is that of the host.
    pub(crate) fn for_other_origin(self) -> Self {
        Self { proxy: None, ..self.without_identities() }
    }

    /// Without client certificates, which are credentials of their host.
    pub(crate) fn without_identities(mut self) -> Self {
        self.tls.identities.clear();
        self
    }
}
