//! Lets peers in, and none of them take more than its share: of connections, of calls at once, of time to say what it
//! wants.
//!
//! Only the owner and the group of the socket come this far. Still a program among them that has gone wild must not
//! keep the kubelet out, or fill the memory of the node.

use std::{
    collections::HashMap,
    error::Error,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use imagelet_cri::{Answer, Calls};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    time::Sleep,
};
use tonic::Status;

use crate::connections::{CallCounter, CallUnderWay, ConnectionLimits, ConnectionTable, OpenConnection};

/// How long a peer may take to begin to speak. A client connects when it has something to say.
const FIRST_WORD_WITHIN: Duration = Duration::from_secs(10);
/// The opening of HTTP/2, the same for every client.
const OPENING_BYTES: usize = 24;
/// How long a call may take to bring its request, which is one message.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// Calls of one process at once; a kubelet of 110 pods stays well below.
const CALLS_PER_PEER_MAX: usize = 512;
/// Calls of all processes at once.
const CALLS_MAX: usize = 2048;

/// A process, as far as the kernel says; all of another namespace are one.
type Peer = (Option<i32>, u32);

/// How many of something each peer holds.
#[derive(Debug)]
struct Shares {
    held: Mutex<HashMap<Peer, usize>>,
    each_max: usize,
    all_max: usize,
}

/// One of them, until it is dropped.
#[derive(Debug)]
struct Share {
    of: Arc<Shares>,
    peer: Peer,
}

impl Shares {
    fn new(each_max: usize, all_max: usize) -> Arc<Self> {
        Arc::new(Self { held: Mutex::default(), each_max, all_max })
    }

    fn take(self: &Arc<Self>, peer: Peer) -> Option<Share> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = held.values().sum();
        let own = held.get(&peer).copied().unwrap_or_default();
        if all >= self.all_max || own >= self.each_max {
            return None;
        }
        held.insert(peer, own + 1);
        Some(Share { of: Arc::clone(self), peer })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.of.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = held.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.peer);
            }
        }
    }
}

/// Admits connections, and the calls on them.
#[derive(Debug)]
pub(super) struct Doorman {
    connections: Arc<ConnectionTable<Peer>>,
    calls: Arc<Shares>,
}

impl Doorman {
    /// For one socket.
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self { connections: ConnectionTable::new(limits), calls: Shares::new(CALLS_PER_PEER_MAX, CALLS_MAX) }
    }

    /// Lets a connection in, with what bounds its calls; where there are too many, an idle one is closed for it. `None`:
    /// all have calls under way, and this one is refused.
    pub(super) async fn admit(&self, stream: UnixStream) -> Option<(Visitor, Guard, OpenConnection<Peer>)> {
        let peer = stream.peer_cred().map_or((None, u32::MAX), |peer| (peer.pid(), peer.uid()));
        let Some(connection) = self.connections.enter(peer).await else {
            tracing::debug!(pid = peer.0, uid = peer.1, "too many connections are busy; this one is refused");
            return None;
        };
        let guard = Guard { peer, shares: Arc::clone(&self.calls), calls: connection.calls() };
        Some((Visitor::new(stream), guard, connection))
    }

    /// Closes all connections that have made no call yet, as no more calls are taken.
    pub(super) fn close_every_silent(&self) {
        self.connections.close_every_silent();
    }

    /// Closes a connection that has made no call yet, so that its descriptor is free. `false`: all have made one.
    pub(super) async fn close_silent(&self) -> bool {
        self.connections.close_silent().await
    }
}

/// A connection that is let in.
#[derive(Debug)]
pub(super) struct Visitor {
    stream: UnixStream,
    /// Until it has said the opening of the protocol; from then on the protocol itself asks who is silent.
    patience: Option<Pin<Box<Sleep>>>,
    heard: usize,
}

impl Visitor {
    fn new(stream: UnixStream) -> Self {
        Self { stream, patience: Some(Box::pin(tokio::time::sleep(FIRST_WORD_WITHIN))), heard: 0 }
    }
}

impl AsyncRead for Visitor {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.patience.is_some() {
            self.heard += buf.filled().len() - before;
            if self.heard >= OPENING_BYTES {
                self.patience = None;
            }
        }
        if let (Poll::Pending, Some(patience)) = (&read, &mut self.patience)
            && patience.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Visitor {
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

/// Gives each process its share of calls, and each call its time to bring its request.
#[derive(Debug)]
pub(super) struct Guard {
    peer: Peer,
    shares: Arc<Shares>,
    /// Says that the connection is in use while a call is under way.
    calls: Arc<CallCounter>,
}

impl Guard {
    /// Has a call answered, unless its process has too many under way.
    pub(super) fn answer<B>(
        &self,
        request: Request<B>,
        calls: Arc<Calls>,
    ) -> impl Future<Output = Response<Held<Answer>>> + use<B>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>> + Send,
    {
        let (share, call) = (self.shares.take(self.peer), self.calls.begin());
        async move {
            if share.is_none() {
                let refusal = Status::resource_exhausted("this process has too many calls under way");
                return refusal.into_http::<Answer>().map(|body| Held { body, _share: share, _call: call });
            }
            let answer = calls.answer(request.map(InTime::new)).await;
            // The call lasts until its answer is read.
            answer.map(|body| Held { body, _share: share, _call: call })
        }
    }
}

/// The body of an answer, and the share of the call that it ends.
#[derive(Debug)]
pub(super) struct Held<B> {
    body: B,
    _share: Option<Share>,
    _call: CallUnderWay,
}

impl<B: Body + Unpin> Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The same body, which fails where it does not come in time.
struct InTime<B> {
    body: B,
    /// From when it was first waited for: most are there at once.
    patience: Option<Pin<Box<Sleep>>>,
}

impl<B> InTime<B> {
    fn new(body: B) -> Self {
        Self { body, patience: None }
    }
}

impl<B> Body for InTime<B>
where
    B: Body + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = B::Data;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| Status::from_error(error.into()))));
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(REQUEST_WITHIN)));
        ready!(patience.as_mut().poll(cx));
        Poll::Ready(Some(Err(Status::deadline_exceeded("the request did not come in time"))))
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    #[test]
    fn nobody_takes_the_share_of_others() {
        let shares = Shares::new(2, 3);
        let (wild, other): (Peer, Peer) = ((Some(1), 0), (Some(2), 0));
        let first = shares.take(wild);
        let second = shares.take(wild);
        assert!(first.is_some() && second.is_some() && shares.take(wild).is_none());
        let its = shares.take(other);
        assert!(its.is_some() && shares.take(other).is_none(), "all are taken");
        drop(first);
        assert!(shares.take(other).is_some());
        drop((second, its));
        assert!(shares.held.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_come_fails_and_one_that_comes_passes() {
        let silent = InTime::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, Status>>()));
        let failure = silent.collect().await.map(|_| ()).unwrap_err();
        assert_eq!(failure.code(), tonic::Code::DeadlineExceeded);
        let prompt = InTime::new("request".to_owned());
        assert_eq!(prompt.collect().await.unwrap().to_bytes(), "request");
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_cut_off_and_who_has_spoken_is_not() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (_silent, ours) = UnixStream::pair().unwrap();
        let mut visitor = Visitor::new(ours);
        assert_eq!(visitor.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (mut slow, ours) = UnixStream::pair().unwrap();
        let mut visitor = Visitor::new(ours);
        slow.write_all(b"PRI").await.unwrap();
        assert_eq!(visitor.read_exact(&mut [0; 4]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (mut peer, ours) = UnixStream::pair().unwrap();
        let mut visitor = Visitor::new(ours);
        peer.write_all(&[7; OPENING_BYTES]).await.unwrap();
        visitor.read_exact(&mut [0; OPENING_BYTES]).await.unwrap();
        let late = tokio::time::timeout(FIRST_WORD_WITHIN * 3, visitor.read_u8()).await;
        assert!(late.is_err(), "it may think for as long as it likes");
    }
}
