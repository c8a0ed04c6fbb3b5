//! TLS servers with certificates of any kind.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion,
    pki_types::CertificateDer,
    server::WebPkiClientVerifier,
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio_rustls::TlsAcceptor;

use super::fault::Certificate;

/// The certificates that clients may show.
#[derive(Debug)]
pub(crate) struct ClientCertificates {
    pub(crate) authority: CertificateDer<'static>,
    pub(crate) is_required: bool,
}

/// A server's side of TLS with a self-signed certificate, which is also returned in PEM.
pub(crate) fn self_signed(
    parameters: &CertificateParams,
    versions: &[&'static SupportedProtocolVersion],
    clients: Option<ClientCertificates>,
) -> (TlsAcceptor, String) {
    let key = KeyPair::generate().expect("a key");
    let own = parameters.self_signed(&key).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .expect("protocol versions");
    let config = match clients {
        Some(ClientCertificates { authority, is_required }) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority).expect("a certificate");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            let verifier = if is_required { verifier } else { verifier.allow_unauthenticated() };
            config.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
        None => config.with_no_client_auth(),
    };
    let private = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let private = provider.key_provider.load_private_key(private).expect("a key");
    // Not compared with its key: a certificate may be one that rustls does not read.
    let certified = CertifiedKey::new(vec![own.der().clone()], private);
    let mut config = config.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    // Each handshake is a whole one.
    config.send_tls13_tickets = 0;
    (TlsAcceptor::from(Arc::new(config)), own.pem())
}

/// A server with a wrong certificate, and the authority by which it would be trusted.
pub(super) fn acceptor(certificate: Certificate) -> (TlsAcceptor, Option<String>) {
    let name = if certificate == Certificate::OtherName { "other.example" } else { "127.0.0.1" };
    let mut parameters = CertificateParams::new([name.to_owned()]).expect("a name");
    if certificate == Certificate::Expired {
        (parameters.not_before, parameters.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    }
    let wanted = (certificate == Certificate::ClientWanted).then(|| {
        let authority = rcgen::generate_simple_self_signed(["clients".to_owned()]).expect("a certificate");
        ClientCertificates { authority: authority.cert.der().clone(), is_required: true }
    });
    // By TLS 1.3 a client hears after its handshake that it has to show a certificate.
    let versions = if wanted.is_some() { &[&rustls::version::TLS12][..] } else { rustls::ALL_VERSIONS };
    let (acceptor, pem) = self_signed(&parameters, versions, wanted);
    (acceptor, (certificate != Certificate::Unknown).then_some(pem))
}
