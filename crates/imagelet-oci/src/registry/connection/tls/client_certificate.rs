//! Client certificates: which one a server gets, and what it does without the right one.
//!
//! In TLS 1.3 the server judges the certificate after the client's part of the handshake: its alert arrives with the first
//! read, or not at all where the server closes the connection while a request is on the way.

use std::{
    cell::Cell,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustls::{
    DistinguishedName, SignatureScheme,
    client::ResolvesClientCert,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::registry::connection::settings::Identity;

/// The configured client certificates, in their order.
#[derive(Debug)]
pub(crate) struct ClientCertificates(Vec<ClientCertificate>);

#[derive(Debug)]
struct ClientCertificate {
    key: Arc<CertifiedKey>,
    /// The authorities that signed the certificate or one of its chain.
    issuers: Vec<DistinguishedName>,
}

/// A server's request for a client certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateRequest {
    /// No certificate was there to send.
    Unanswered,
    Answered,
}

tokio::task_local! {
    static REQUEST: Cell<Option<CertificateRequest>>;
}

/// Runs a handshake, and returns the server's request for a client certificate in it.
pub(crate) async fn watched<F: Future>(handshake: F) -> (F::Output, Option<CertificateRequest>) {
    let recorded = async {
        let output = handshake.await;
        (output, REQUEST.with(Cell::get))
    };
    REQUEST.scope(Cell::default(), recorded).await
}

impl ClientCertificates {
    /// The error names the part that cannot be used; its cause is dropped, it could quote the key.
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

    /// The first certificate that one of the server's authorities signed; the first of all where the server names none,
    /// or none fits: the server's own refusal says more than a missing certificate.
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
        // Outside of a watched handshake the request is not of interest.
        let _ = REQUEST.try_with(|cell| cell.set(Some(request)));
        chosen
    }

    fn has_certs(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The server closed the connection instead of its first answer.
#[derive(Debug, thiserror::Error)]
#[error("{}", match .0 {
    CertificateRequest::Unanswered => "the server requires a client certificate: it requested one, and closed the connection without it",
    CertificateRequest::Answered => "the server rejects the client certificate: it closed the connection after it",
})]
pub(crate) struct Rejected(CertificateRequest, #[source] Option<io::Error>);

/// A stream over TLS 1.3 whose server requested a client certificate: an end before its first byte is a refusal.
pub(crate) struct JudgedStream<S> {
    stream: S,
    /// `None`: the server has sent data.
    undecided: Option<CertificateRequest>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> JudgedStream<S> {
    pub(crate) fn new(stream: S, request: CertificateRequest) -> Self {
        Self { stream, undecided: Some(request) }
    }

    /// The refusal that a failed write stands for: the alert, if it has arrived.
    fn refusal_of_write(&mut self, context: &mut Context<'_>, error: io::Error) -> io::Error {
        let Some(request) = self.undecided else { return error };
        let mut byte = [0];
        match Pin::new(&mut self.stream).poll_read(context, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Err(read)) if is_alert(&read) => read,
            _ => refusal(request, Some(error)),
        }
    }
}

fn is_alert(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

fn refusal(request: CertificateRequest, error: Option<io::Error>) -> io::Error {
    let kind = error.as_ref().map_or(io::ErrorKind::UnexpectedEof, io::Error::kind);
    io::Error::new(kind, Rejected(request, error))
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for JudgedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        let Some(request) = self.undecided else { return Poll::Ready(read) };
        Poll::Ready(match read {
            Ok(()) if buffer.filled().len() > before || buffer.remaining() == 0 => {
                self.undecided = None;
                Ok(())
            }
            Ok(()) => Err(refusal(request, None)),
            Err(error) if is_alert(&error) => Err(error),
            Err(error) => Err(refusal(request, Some(error))),
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for JudgedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.refusal_of_write(context, error)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        Poll::Ready(flushed.map_err(|error| self.refusal_of_write(context, error)))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A connection that is reset: writes fail, and this is left to read.
    struct Reset(Option<io::Result<u8>>);

    impl AsyncRead for Reset {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            match self.0.take() {
                None => Poll::Pending,
                Some(read) => Poll::Ready(read.map(|byte| buffer.put_slice(&[byte]))),
            }
        }
    }

    impl AsyncWrite for Reset {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn kind_of(error: &io::Error) -> &'static str {
        match error.get_ref() {
            Some(error) if error.is::<rustls::Error>() => "alert",
            Some(error) if error.is::<Rejected>() => "rejected",
            _ => "other",
        }
    }

    #[tokio::test]
    async fn a_failed_write_before_the_first_answer_is_the_alert_that_has_arrived_or_a_refusal() {
        let alert = || {
            let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
            Some(Err(io::Error::new(io::ErrorKind::InvalidData, alert)))
        };
        let judged = |left| JudgedStream::new(Reset(left), CertificateRequest::Unanswered);
        let reset = || Some(Err(io::ErrorKind::ConnectionReset.into()));
        for (left, written) in
            [(alert(), "alert"), (None, "rejected"), (reset(), "rejected"), (Some(Ok(1)), "rejected")]
        {
            let error = judged(left).write(b"GET").await.unwrap_err();
            assert_eq!(kind_of(&error), written);
        }
        for (left, read) in [(alert(), "alert"), (reset(), "rejected")] {
            assert_eq!(kind_of(&judged(left).read_u8().await.unwrap_err()), read);
        }
        let mut answered = judged(Some(Ok(7)));
        assert_eq!(answered.read_u8().await.unwrap(), 7);
        assert_eq!(kind_of(&answered.write(b"GET").await.unwrap_err()), "other", "after an answer");
    }
}
