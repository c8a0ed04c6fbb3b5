//! Makes one connection for the HTTP client: TCP, then TLS, each with a deadline of its own.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::dial::{DialError, dial};

#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) dial_timeout: Duration,
    pub(crate) tls_timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("the URL has no usable host")]
    BadHost,
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("TLS failed")]
    Tls(#[source] io::Error),
    #[error("TLS was not set up within {} s", .0.as_secs_f32())]
    TlsLate(Duration),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(crate) struct RegistryConnection {
    io: TokioIo<Box<dyn Stream>>,
}

impl Connector {
    async fn connect(self, uri: Uri) -> Result<RegistryConnection, ConnectError> {
        let is_https = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
        let host = uri.host().ok_or(ConnectError::BadHost)?.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let stream: Box<dyn Stream> = Box::new(dial(host, port, self.dial_timeout).await?);
        let stream = if is_https { self.encrypted(host, stream).await? } else { stream };
        Ok(RegistryConnection { io: TokioIo::new(stream) })
    }

    async fn encrypted(&self, host: &str, stream: Box<dyn Stream>) -> Result<Box<dyn Stream>, ConnectError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| ConnectError::BadHost)?;
        let handshake = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream);
        let stream = timeout(self.tls_timeout, handshake).await.map_err(|_| ConnectError::TlsLate(self.tls_timeout))?;
        Ok(Box::new(stream.map_err(ConnectError::Tls)?))
    }
}

impl Service<Uri> for Connector {
    type Response = RegistryConnection;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<RegistryConnection, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

impl Connection for RegistryConnection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for RegistryConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for RegistryConnection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
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
        let error = Connector { tls, dial_timeout, tls_timeout }.connect(uri).await.map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::TlsLate(limit) if limit == tls_timeout), "{error}");
    }
}
