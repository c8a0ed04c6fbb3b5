//! Sends one request to one origin: makes the connection, follows redirects, limits the time without a byte.

mod connector;
mod dial;
mod failure;
mod host_slots;
mod origin;
mod proxy;
mod reception;
mod settings;
mod stream;
mod tls;
mod transport;

use std::{error::Error, fmt, io, net::SocketAddr, time::Duration};

use http::StatusCode;
use hyper_util::client::legacy::Error as ClientError;

pub use self::proxy::{ProxyConfig, ProxyRule, ProxyRules};
#[cfg(test)]
pub(super) use self::reception::{AwaitedHead, awaits};
pub(super) use self::{
    host_slots::{HostSlots, Urgency},
    origin::{Origin, Target, listing_hint, may_send_on},
    proxy::{Proxies, Proxy, authorization, basic},
    reception::{HeadWait, Reception, Running, SharedClock, Silent},
    settings::{ConnectionSettings, Identity, TlsSettings},
    tls::Clients,
    transport::{BodyReader, ReadError, Request, RequestKind, Response, Transport, drain},
};

/// Why a connection to a host, or to its proxy, could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("the URL has no usable host")]
    BadHost,
    #[error("none of the connections to it became free within {} s", .0.as_secs_f32())]
    Busy(Duration),
    #[error("no address of `{host}` was found")]
    Unresolved { host: String, source: io::Error },
    #[error("{}", dial::listed(.0.iter().map(|(address, error)| format!("{address}: {error}")), "; ", " addresses"))]
    AllFailed(Vec<(SocketAddr, io::Error)>),
    #[error("no connection to `{host}` within {} s", .limit.as_secs_f32())]
    DialLate { host: String, limit: Duration },
    #[error("TLS failed")]
    Tls(#[source] io::Error),
    #[error("TLS was not set up within {} s", .0.as_secs_f32())]
    TlsLate(Duration),
    /// A rule of the configuration is invalid, so no proxy was asked.
    #[error("{0}")]
    BadProxy(String),
    #[error("{0}")]
    TunnelRefused(String),
    #[error("proxy `{proxy}` cannot be reached")]
    ProxyAway { proxy: String, source: Box<ConnectError> },
    #[error("proxy `{proxy}` does not connect to `{host}`")]
    Tunnel { proxy: String, host: String, source: Box<ConnectError> },
    #[error("it answers {0}")]
    ProxyRefused(StatusCode),
    #[error("it answers `CONNECT` with no valid HTTP")]
    ProxyBroken(#[source] HttpError),
    #[error("it did not connect to `{host}` within {} s", proxy::TUNNEL_TIMEOUT.as_secs())]
    TunnelLate { host: String },
}

/// An error of the HTTP client, displayed without wrappers of the library, such as `client error (Connect)`.
#[derive(Debug)]
pub(crate) struct HttpError(Box<dyn Error + Send + Sync>);

impl HttpError {
    pub(crate) fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }

    pub(crate) fn get_ref(&self) -> &(dyn Error + 'static) {
        &*self.0
    }

    fn informative(&self) -> &(dyn Error + 'static) {
        let mut error = self.get_ref();
        while let Some(cause) = error.source().filter(|_| is_layer(error)) {
            error = cause;
        }
        error
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.informative(), f)
    }
}

impl Error for HttpError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.informative().source()
    }
}

/// Whether the error is of hyper. If it has a cause, only the cause explains the failure.
fn is_layer(error: &(dyn Error + 'static)) -> bool {
    error.is::<ClientError>() || error.is::<hyper::Error>()
}
