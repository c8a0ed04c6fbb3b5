//! HTTP clients, one per set of TLS settings.

pub(super) mod client_certificate;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use imagelet_core::error::RuntimeError;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use tokio::sync::OnceCell;
use tower::{service_fn, util::BoxCloneSyncService};

use self::client_certificate::ClientCertificates;
use super::{
    ConnectError,
    connector::Connector,
    host_slots::HostPermits,
    proxy::{Proxies, TUNNEL_TIMEOUT},
    settings::{ConnectionSettings, TlsSettings},
    stream::RegistryConnection,
};
use crate::registry::locked;

/// Bounds the cache of clients. A full cache is cleared: only a configuration that changes often fills it.
const CLIENTS_MAX: usize = 64;
/// Maximum number of bytes that a connection reads ahead. It also bounds the response head.
const READ_AHEAD_MAX: usize = 128 << 10;
/// Maximum number of idle connections to one host: about the number of layers that are fetched at once.
const IDLE_MAX: usize = 8;
const TLS_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) type HttpClient = Client<BoxCloneSyncService<Uri, TokioIo<RegistryConnection>, ConnectError>, Full<Bytes>>;

pub(crate) struct Clients {
    provider: Arc<CryptoProvider>,
    /// Loaded at the first use of TLS. Loopback registries and offline commands do not need the roots.
    roots: OnceCell<RootCertStore>,
    dial_timeout: Duration,
    connections_per_host: usize,
    pub(crate) proxies: Proxies,
    made: Mutex<HashMap<ClientKey, HttpClient>>,
}

/// Whether the client uses TLS, and the settings of its connections.
type ClientKey = (bool, ConnectionSettings);

impl Clients {
    pub(crate) fn new(dial_timeout: Duration, connections_per_host: usize, proxies: Proxies) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let (roots, made) = (OnceCell::new(), Mutex::default());
        Self { provider, roots, dial_timeout, connections_per_host, proxies, made }
    }

    /// The client for `settings` with the chosen proxy. If the system has no authorities, TLS needs a configured `ca`.
    pub(crate) async fn client(
        &self,
        is_https: bool,
        settings: &ConnectionSettings,
    ) -> Result<HttpClient, RuntimeError> {
        let key = (is_https, settings.clone());
        if let Some(client) = locked(&self.made).get(&key) {
            return Ok(client.clone());
        }
        let tls = if is_https { Some(self.tls_config(&settings.tls).await?) } else { None };
        // A proxy gets no client certificate. Its certificate is verified even if `skip_verify` is set for the host.
        let of_proxy = TlsSettings { authorities: settings.tls.authorities.clone(), ..TlsSettings::default() };
        let is_encrypted = settings.proxy.as_ref().is_some_and(|proxy| proxy.is_encrypted());
        let proxy_tls = if is_encrypted { Some(self.tls_config(&of_proxy).await?) } else { None };
        let connector = Connector {
            tls,
            dial_timeout: self.dial_timeout(settings),
            tls_timeout: TLS_TIMEOUT,
            proxy: settings.proxy.clone(),
            proxy_tls,
            permits: Arc::new(HostPermits::new(self.connections_per_host)),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_MAX)
            .http1_max_buf_size(READ_AHEAD_MAX)
            .build(BoxCloneSyncService::new(service_fn(move |uri| connector.clone().connect(uri))));
        let mut made = locked(&self.made);
        if made.len() >= CLIENTS_MAX {
            made.clear();
        }
        Ok(made.entry(key).or_insert(client).clone())
    }

    /// The sum of the deadlines of a connection, including those of the proxy and of the wait for a permit.
    pub(crate) fn connect_max(&self, settings: &ConnectionSettings) -> Duration {
        2 * self.dial_timeout(settings) + TLS_TIMEOUT + TUNNEL_TIMEOUT + TLS_TIMEOUT
    }

    fn dial_timeout(&self, settings: &ConnectionSettings) -> Duration {
        settings.dial_timeout.unwrap_or(self.dial_timeout)
    }

    async fn tls_config(&self, settings: &TlsSettings) -> Result<Arc<ClientConfig>, RuntimeError> {
        let mut roots = self.roots.get_or_try_init(|| tokio::task::spawn_blocking(system_roots)).await?.clone();
        let unusable =
            |what: &str| RuntimeError::other(format!("the {what} in the registry configuration cannot be used"));
        let mut named = Vec::new();
        for pem in &settings.authorities {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| unusable("`ca`").caused_by(error))?;
                roots.add(certificate.clone()).map_err(|error| unusable("`ca`").caused_by(error))?;
                named.push(certificate);
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| RuntimeError::other("TLS cannot be set up").caused_by(error))?;
        // Without any authority, the custom verifier cannot be built.
        let builder = if !settings.skip_verify && roots.is_empty() {
            builder.with_root_certificates(roots)
        } else {
            let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider));
            let webpki = (!settings.skip_verify).then(|| webpki.build()).transpose();
            let webpki = webpki.map_err(|error| unusable("`ca`").caused_by(error))?;
            let verifier = ConfiguredTrust { provider: Arc::clone(&self.provider), webpki, named };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        };
        let certificates = ClientCertificates::read(&settings.identities, &self.provider).map_err(unusable)?;
        Ok(Arc::new(builder.with_client_cert_resolver(Arc::new(certificates))))
    }
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!("the system has no certificate authorities; registries cannot be reached over HTTPS");
    }
    roots
}

#[derive(Debug)]
struct ConfiguredTrust {
    provider: Arc<CryptoProvider>,
    /// The verifier of certificates. `None` for `skip_verify`: a server then needs only the key of its certificate.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    /// The certificates in `ca`. A self-signed certificate of a server is often an authority's, which webpki rejects
    /// for a server. If `ca` contains that certificate, its names are checked instead.
    named: Vec<CertificateDer<'static>>,
}

/// Whether the only problem is that the server's certificate is an authority's. Webpki has checked its dates before.
fn is_authority_as_server(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl ServerCertVerifier for ConfiguredTrust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(webpki) = &self.webpki else { return Ok(ServerCertVerified::assertion()) };
        match webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(error) if is_authority_as_server(&error) && self.named.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
