//! Limits of the CRI socket: connections and calls of one process, the time to open the protocol and to send a request.
//!
//! Only the socket's owner and group can connect. A runaway program among them must still not block the kubelet or fill
//! the node's memory.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension,
    body::{Body, to_bytes},
    extract::Request,
    middleware::Next,
    response::Response,
};
use imagelet_runtime::MESSAGE_BYTES_MAX;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    time::Sleep,
};
use tonic::{Status, transport::server::Connected};

use crate::connections::{Calls, OpenConnection, SpareDescriptors};

const OPENING_WITHIN: Duration = Duration::from_secs(10);
/// Length of the HTTP/2 connection preface.
const OPENING_BYTES: usize = 24;
/// How long a call may take to send its request, which is one message.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
const REQUEST_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 64;

/// PID and UID as the kernel reports them; all processes of another PID namespace are one peer.
pub(super) type Peer = (Option<i32>, u32);

/// An accepted connection. Reads fail once it must close for another one, or when the protocol is not opened in time.
pub(super) struct LimitedConnection {
    stream: UnixStream,
    displaced: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Set until the client has opened the protocol; afterwards pings detect a dead client.
    opening: Option<Pin<Box<Sleep>>>,
    received: usize,
    calls: Calls<Peer>,
    _open: OpenConnection<Peer>,
    /// Refilled from the stream's descriptor.
    _spare: RestoreOnDrop,
}

struct RestoreOnDrop(Arc<SpareDescriptors>);

impl Drop for RestoreOnDrop {
    fn drop(&mut self) {
        self.0.restore();
    }
}

impl LimitedConnection {
    pub(super) fn new(stream: UnixStream, open: OpenConnection<Peer>, spare: &Arc<SpareDescriptors>) -> Self {
        Self {
            stream,
            displaced: Box::pin(open.displaced()),
            opening: Some(Box::pin(tokio::time::sleep(OPENING_WITHIN))),
            received: 0,
            calls: open.calls(),
            _open: open,
            _spare: RestoreOnDrop(Arc::clone(spare)),
        }
    }
}

impl Connected for LimitedConnection {
    type ConnectInfo = Calls<Peer>;

    fn connect_info(&self) -> Calls<Peer> {
        self.calls.clone()
    }
}

impl AsyncRead for LimitedConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.displaced.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.received = self.received.saturating_add(buf.filled().len() - before);
        if self.received >= OPENING_BYTES {
            self.opening = None;
        }
        if let (Poll::Pending, Some(opening)) = (&read, &mut self.opening)
            && opening.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for LimitedConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Serves a call, unless its process has too many running or does not send the request in time.
pub(super) async fn limit_call(Extension(calls): Extension<Calls<Peer>>, request: Request, next: Next) -> Response {
    let Some(call) = calls.begin() else {
        return Status::resource_exhausted("this process has too many calls under way").into_http();
    };
    let (head, body) = request.into_parts();
    // Every request of the interface is one message, so reading it in pieces gains nothing.
    let body = match tokio::time::timeout(REQUEST_WITHIN, to_bytes(body, REQUEST_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            return Status::resource_exhausted(format!("the request cannot be read: {error}")).into_http();
        }
        Err(_) => return Status::deadline_exceeded("the request did not come in time").into_http(),
    };
    let response = next.run(Request::from_parts(head, Body::from(body))).await;
    response.map(|body| Body::new(call.until_read(body)))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::connections::{ConnectionTable, socket_limits};

    async fn connected() -> (UnixStream, LimitedConnection, Arc<ConnectionTable<Peer>>) {
        let (client, ours) = UnixStream::pair().unwrap();
        let table = ConnectionTable::new(socket_limits(0));
        let open = table.enter((None, 0)).await.unwrap();
        (client, LimitedConnection::new(ours, open, &Arc::new(SpareDescriptors::new())), table)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_open_the_protocol_is_cut_off() {
        let (_silent, mut limited, _) = connected().await;
        assert_eq!(limited.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (mut slow, mut limited, _) = connected().await;
        slow.write_all(b"PRI").await.unwrap();
        assert_eq!(limited.read_exact(&mut [0; 4]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (mut client, mut limited, _) = connected().await;
        client.write_all(&[7; OPENING_BYTES]).await.unwrap();
        limited.read_exact(&mut [0; OPENING_BYTES]).await.unwrap();
        let late = tokio::time::timeout(OPENING_WITHIN * 3, limited.read_u8()).await;
        assert!(late.is_err(), "an open connection may stay idle");
    }

    #[tokio::test]
    async fn a_displaced_connection_ends_and_leaves_the_table() {
        let (_client, mut limited, table) = connected().await;
        table.close_every_silent();
        assert_eq!(limited.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        let calls = limited.connect_info();
        drop(limited);
        assert!(calls.begin().is_some(), "a call of a closed connection does not count");
    }
}
