//! TLS servers with wrong certificates.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use tokio_rustls::TlsAcceptor;

use super::fault::Certificate;

/// A server's side of TLS, and the authority by which its certificate would be trusted.
pub(super) fn acceptor(certificate: Certificate) -> (TlsAcceptor, Option<String>) {
    let name = if certificate == Certificate::OtherName { "other.example" } else { "127.0.0.1" };
    let mut parameters = CertificateParams::new([name.to_owned()]).expect("a name");
    if certificate == Certificate::Expired {
        (parameters.not_before, parameters.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    }
    let key = KeyPair::generate().expect("a key");
    let own = parameters.self_signed(&key).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    // By TLS 1.3 a client hears after its handshake that it has to show a certificate.
    let versions = match certificate {
        Certificate::ClientWanted => vec![&rustls::version::TLS12],
        _ => rustls::ALL_VERSIONS.to_vec(),
    };
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)
        .expect("protocol versions");
    let config = if certificate == Certificate::ClientWanted {
        let mut roots = RootCertStore::empty();
        roots.add(own.der().clone()).expect("a certificate");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        config.with_client_cert_verifier(verifier.expect("a verifier"))
    } else {
        config.with_no_client_auth()
    };
    let private = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = config.with_single_cert(vec![own.der().clone()], private).expect("a server configuration");
    let authority = (certificate != Certificate::Unknown).then(|| own.pem());
    (TlsAcceptor::from(Arc::new(config)), authority)
}
