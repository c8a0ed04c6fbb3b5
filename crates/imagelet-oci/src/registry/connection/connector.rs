//! Makes one connection for the HTTP client: TCP, a proxy's tunnel, then TLS. Each step has its own deadline.

use std::{sync::Arc, time::Duration};

use http::Uri;
use hyper_util::rt::TokioIo;
use imagelet_core::error::Stage;
use rustls::{ClientConfig, ProtocolVersion, pki_types::ServerName};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::{
    ConnectError,
    dial::dial,
    host_slots::HostPermits,
    origin::{Origin, Target},
    proxy::{Proxy, tunnel, without_brackets},
    stream::RegistryConnection,
    tls::client_certificate::watched,
};
use crate::registry::path_check::steps::record;

#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) dial_timeout: Duration,
    pub(crate) tls_timeout: Duration,
    pub(crate) proxy: Option<Arc<Proxy>>,
    pub(crate) proxy_tls: Option<Arc<ClientConfig>>,
    /// Limits connections to a host. The wait for a permit is short, because each request has a slot at the host.
    pub(crate) permits: Arc<HostPermits>,
}

impl Connector {
    pub(crate) async fn connect(self, uri: Uri) -> Result<TokioIo<RegistryConnection>, ConnectError> {
        let origin = Target::parse(&uri.to_string()).map_err(|_| ConnectError::BadHost)?.origin;
        let host = without_brackets(origin.host());
        let permit = timeout(self.dial_timeout, self.permits.acquire(&origin)).await;
        let permit = permit.map_err(|_| ConnectError::Busy(self.dial_timeout))?;
        let proxy = self.proxy.as_deref();
        let mut connection = match proxy {
            None => RegistryConnection::over(dial(host, origin.port, self.dial_timeout).await?),
            Some(proxy) => self.by_proxy(proxy, &origin).await?,
        };
        if let Some(tls) = &self.tls {
            connection = self.encrypted(tls, host, connection).await?;
        }
        connection.is_forwarded = proxy.is_some_and(|proxy| proxy.forwards(origin.is_https));
        connection.permit = Some(permit);
        Ok(TokioIo::new(connection))
    }

    async fn by_proxy(&self, proxy: &Proxy, origin: &Origin) -> Result<RegistryConnection, ConnectError> {
        let to_proxy = async {
            let connection = RegistryConnection::over(dial(proxy.host(), proxy.port(), self.dial_timeout).await?);
            match &self.proxy_tls {
                Some(tls) => self.encrypted(tls, proxy.host(), connection).await,
                None => Ok(connection),
            }
        };
        let began = Instant::now();
        let away = |error| ConnectError::ProxyAway { proxy: proxy.to_string(), source: Box::new(error) };
        let stream = to_proxy.await.map_err(away)?;
        if proxy.forwards(origin.is_https) {
            record(Stage::Proxy, began, proxy, "forwards requests".to_owned());
            return Ok(stream);
        }
        let host = format!("{}:{}", origin.host(), origin.port);
        let refused =
            |error| ConnectError::Tunnel { proxy: proxy.to_string(), host: host.clone(), source: Box::new(error) };
        let stream = tunnel(proxy, stream, &host).await.map_err(refused)?;
        record(Stage::Proxy, began, proxy, format!("connects to {host}"));
        Ok(stream)
    }

    async fn encrypted(
        &self,
        config: &Arc<ClientConfig>,
        host: &str,
        connection: RegistryConnection,
    ) -> Result<RegistryConnection, ConnectError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| ConnectError::BadHost)?;
        let began = Instant::now();
        let handshake = TlsConnector::from(Arc::clone(config)).connect(name, connection);
        let (stream, request) = watched(timeout(self.tls_timeout, handshake)).await;
        let stream = stream.map_err(|_| ConnectError::TlsLate(self.tls_timeout))?.map_err(ConnectError::Tls)?;
        let version = stream.get_ref().1.protocol_version();
        record(Stage::Tls, began, &host, version.map_or_else(String::new, |it| format!("{it:?}")));
        // Only TLS 1.3 leaves the check undecided: older servers check the client certificate during the handshake.
        let mut connection = RegistryConnection::over(stream);
        connection.undecided = request.filter(|_| version == Some(ProtocolVersion::TLSv1_3));
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;

    use super::*;

    #[tokio::test]
    async fn a_server_that_accepts_and_never_answers_a_handshake_costs_the_deadline_of_tls() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("https://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = Arc::new(tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
        let (dial_timeout, tls_timeout) = (Duration::from_mins(5), Duration::from_secs(1));
        let permits = Arc::new(HostPermits::new(1));
        let connector = Connector { tls: Some(tls), dial_timeout, tls_timeout, proxy: None, proxy_tls: None, permits };
        let error = connector.connect(uri).await.map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::TlsLate(limit) if limit == tls_timeout), "{error}");
    }
}
