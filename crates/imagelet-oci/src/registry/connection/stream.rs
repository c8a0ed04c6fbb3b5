//! The byte stream of one connection (TCP, TLS or a tunnel), as the HTTP client uses it.
//!
//! In TLS 1.3, a server checks a client certificate after the client's part of the handshake. The server's alert
//! arrives with the first read, or is lost if the server closes the connection while a request is on the way.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
};

use super::tls::client_certificate::CertificateRequest;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(crate) struct RegistryConnection {
    stream: Box<dyn Stream>,
    /// The server's request for a client certificate, until the server sends data. If the stream ends before, the
    /// server has rejected the client.
    pub(super) undecided: Option<CertificateRequest>,
    pub(super) is_forwarded: bool,
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, thiserror::Error)]
#[error("{}", match .0 {
    CertificateRequest::Unanswered => "the server requires a client certificate: it requested one, and closed the connection without it",
    CertificateRequest::Answered => "the server rejects the client certificate: it closed the connection after it",
})]
pub(crate) struct Rejected(CertificateRequest, #[source] Option<io::Error>);

impl RegistryConnection {
    pub(super) fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self { stream: Box::new(stream), undecided: None, is_forwarded: false, permit: None }
    }

    /// The reason of a failed write: the server's alert if it has arrived, else a rejection of the client certificate.
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

impl AsyncRead for RegistryConnection {
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

impl AsyncWrite for RegistryConnection {
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

impl Connection for RegistryConnection {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.is_forwarded)
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
        let undecided = Some(CertificateRequest::Unanswered);
        let judged = |left| RegistryConnection { undecided, ..RegistryConnection::over(Reset(left)) };
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
