//! Chooses the client certificate for a server.

use std::{cell::Cell, future::Future, sync::Arc};

use rustls::{
    DistinguishedName, SignatureScheme,
    client::ResolvesClientCert,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use crate::registry::connection::settings::Identity;

#[derive(Debug)]
pub(crate) struct ClientCertificates(Vec<ClientCertificate>);

#[derive(Debug)]
struct ClientCertificate {
    key: Arc<CertifiedKey>,
    issuers: Vec<DistinguishedName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateRequest {
    Unanswered,
    Answered,
}

tokio::task_local! {
    static REQUEST: Cell<Option<CertificateRequest>>;
}

/// Runs a handshake. Also returns the server's request for a client certificate, if it sent one.
pub(crate) async fn watched<F: Future>(handshake: F) -> (F::Output, Option<CertificateRequest>) {
    let recorded = async {
        let output = handshake.await;
        (output, REQUEST.with(Cell::get))
    };
    REQUEST.scope(Cell::default(), recorded).await
}

impl ClientCertificates {
    /// Reads client certificates. The error names the unusable part, without the cause, which could quote the key.
    pub(crate) fn read(identities: &[Identity], provider: &CryptoProvider) -> Result<Self, &'static str> {
        let read = |identity: &Identity| {
            let chain = CertificateDer::pem_slice_iter(&identity.chain).collect::<Result<Vec<_>, _>>();
            let chain = chain.map_err(|_| "`client` certificate")?;
            let key = PrivateKeyDer::from_pem_slice(&identity.key).map_err(|_| "`client` key")?;
            let issuer = |certificate| {
                Some(DistinguishedName::in_sequence(webpki::EndEntityCert::try_from(certificate).ok()?.issuer()))
            };
            let issuers = chain.iter().filter_map(issuer).collect();
            let key = CertifiedKey::from_der(chain, key, provider).map_err(|_| "`client` certificate and key")?;
            Ok(ClientCertificate { key: Arc::new(key), issuers })
        };
        identities.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// A certificate that the server's authorities signed, else any: its rejection says more than its absence.
    fn choose(&self, authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<&ClientCertificate> {
        let usable = || self.0.iter().filter(|certificate| certificate.key.key.choose_scheme(schemes).is_some());
        let is_named = |certificate: &&ClientCertificate| {
            certificate.issuers.iter().any(|issuer| authorities.contains(&issuer.as_ref()))
        };
        usable().find(is_named).or_else(|| usable().next())
    }
}

impl ResolvesClientCert for ClientCertificates {
    fn resolve(&self, authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let chosen = self.choose(authorities, schemes).map(|certificate| Arc::clone(&certificate.key));
        let request = if chosen.is_some() { CertificateRequest::Answered } else { CertificateRequest::Unanswered };
        // Outside of a watched handshake, the request is not recorded.
        let _ = REQUEST.try_with(|cell| cell.set(Some(request)));
        chosen
    }

    fn has_certs(&self) -> bool {
        !self.0.is_empty()
    }
}
