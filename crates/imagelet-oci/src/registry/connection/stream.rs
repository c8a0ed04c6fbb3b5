//! The byte stream of one connection, whatever it runs over, as the HTTP client uses it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::OwnedSemaphorePermit,
};

pub(crate) type BoxedStream = Box<dyn Stream>;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(crate) struct RegistryConnection {
    io: TokioIo<BoxedStream>,
    is_forwarded: bool,
    _permit: OwnedSemaphorePermit,
}

impl RegistryConnection {
    /// `is_forwarded`: a proxy receives the requests, in absolute form.
    pub(crate) fn new(stream: BoxedStream, is_forwarded: bool, permit: OwnedSemaphorePermit) -> Self {
        Self { io: TokioIo::new(stream), is_forwarded, _permit: permit }
    }
}

impl Connection for RegistryConnection {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.is_forwarded)
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
