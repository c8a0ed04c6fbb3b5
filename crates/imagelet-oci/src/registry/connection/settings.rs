//! How a host is connected to: its TLS settings and its own deadline.

use std::{fmt, sync::Arc, time::Duration};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionSettings {
    pub(crate) tls: TlsSettings,
    /// `None`: the deadline of the registry client.
    pub(crate) dial_timeout: Option<Duration>,
    /// A loopback host for which no scheme is configured: plain HTTP, or TLS.
    pub(crate) may_be_tls: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TlsSettings {
    /// Added to the system's authorities, in PEM.
    pub(crate) authorities: Vec<Arc<[u8]>>,
    pub(crate) identity: Option<Identity>,
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

    /// Without the client certificate, which is a credential of its host.
    pub(crate) fn without_identity(mut self) -> Self {
        self.tls.identity = None;
        self
    }
}
