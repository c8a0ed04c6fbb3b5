//! The accept loop of the daemon's listeners: how many connections stay open, which connection closes for a new one,
//! and how long a request may take to arrive.
//!
//! Each peer has a share of the connections and calls. For a connection beyond a limit, the peer with the most
//! connections loses one that has no running call: first one that had no call, then the oldest. If all are busy, the
//! new one is rejected. So a runaway program cannot block a kubelet, and a silent client cannot block a scraper.
//!
//! **Invariant:** the limits of both listeners are together below that of open files, so that pulls find descriptors.

mod calls;
mod places;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, io, net::IpAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

use axum::Router;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use calls::StreamEnd;
use places::Places;
pub(crate) use places::{Limits, open_files_max};

/// Limit of the log lines of one kind in each [`LINES_OVER`]: clients that connect in a loop must not fill the disk.
const LINES_MAX: u32 = 2;
const LINES_OVER: Duration = Duration::from_secs(30);
const USERS_MAX: usize = 256;
/// How long the daemon waits for the close of a displaced connection. The close does not depend on the client.
const DISPLACED_WITHIN: Duration = Duration::from_millis(400);
/// The pause after a failed accept, if the next accept would fail for the same reason.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// A process at a unix socket. Processes outside this PID namespace have no id, so those of one user are one peer.
    Process {
        pid: Option<i32>,
        uid: u32,
        gid: u32,
    },
    Address(IpAddr),
}

pub(crate) trait Listener: Send + 'static {
    const NAME: &'static str;
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Listener for UnixListener {
    const NAME: &'static str = "socket";
    type Stream = tokio::net::UnixStream;

    async fn next(&self) -> io::Result<(Self::Stream, Peer)> {
        let (stream, _) = self.accept().await?;
        let peer = stream.peer_cred()?;
        Ok((stream, Peer::Process { pid: peer.pid(), uid: peer.uid(), gid: peer.gid() }))
    }
}

impl Listener for TcpListener {
    const NAME: &'static str = "http";
    type Stream = tokio::net::TcpStream;

    async fn next(&self) -> io::Result<(Self::Stream, Peer)> {
        let (stream, peer) = self.accept().await?;
        Ok((stream, Peer::Address(peer.ip())))
    }
}

/// Serves until `stop` is cancelled and the running calls have ended. Each request has its [`Peer`] as an extension.
pub(crate) async fn serve<L: Listener>(listener: L, router: Router, limits: Limits, stop: CancellationToken) {
    let open = TaskTracker::new();
    let places = Arc::new(Places::new(limits));
    let (mut acceptor, mut refused) = (Acceptor::new(listener, Arc::clone(&places)), LineLimit::default());
    while let Some((stream, peer)) = stop.run_until_cancelled(acceptor.accept()).await {
        let Some((place, displaced)) = places.admit(peer) else {
            if let Some(suppressed) = refused.take() {
                let places::Share { all, each } = limits.connections;
                let message = "every connection, or each of this peer, is busy; one is refused";
                tracing::warn!(listener = L::NAME, ?peer, all, each, suppressed, "{message}");
            }
            continue;
        };
        open.spawn(calls::serve(stream, place, router.clone(), stop.clone()));
        // The descriptor of the displaced connection must be free before the next accept.
        if let Some(closed) = displaced {
            drop(tokio::time::timeout(DISPLACED_WITHIN, closed.cancelled()).await);
        }
    }
    drop(acceptor);
    open.close();
    open.wait().await;
}

struct Acceptor<L> {
    listener: L,
    places: Arc<Places>,
    /// Descriptors in reserve. If an accept finds no free descriptor, one descriptor of the reserve is closed.
    spare: Vec<OwnedFd>,
    failed: LineLimit,
    users: BTreeSet<(u32, u32)>,
}

impl<L: Listener> Acceptor<L> {
    fn new(listener: L, places: Arc<Places>) -> Self {
        let failed = LineLimit::default();
        Self { listener, places, spare: Vec::new(), failed, users: BTreeSet::new() }
    }

    async fn accept(&mut self) -> (L::Stream, Peer) {
        self.refill();
        loop {
            let accepted = tokio::select! {
                biased;
                accepted = self.listener.next() => accepted,
                () = self.places.freed.notified(), if self.spare.len() < self.places.limits.spare => {
                    self.refill();
                    continue;
                }
            };
            let error = match accepted {
                Ok(accepted) => {
                    self.log_user(accepted.1);
                    return accepted;
                }
                Err(error) => error,
            };
            if let Some(suppressed) = self.failed.take() {
                tracing::warn!(listener = L::NAME, %error, suppressed, "could not accept a connection");
            }
            let has_no_descriptor = matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
            // The failure of one client does not affect the next client, so the next accept needs no pause.
            let is_of_client =
                matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset);
            if is_of_client || has_no_descriptor && self.spare.pop().is_some() {
                continue;
            }
            if has_no_descriptor {
                self.places.free_descriptor();
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn refill(&mut self) {
        while self.spare.len() < self.places.limits.spare
            && let Ok(opened) = rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        {
            self.spare.push(opened);
        }
    }

    /// Logs the first connection of each user, because access to the socket is the only authentication.
    fn log_user(&mut self, peer: Peer) {
        if let Peer::Process { pid, uid, gid } = peer
            && self.users.len() < USERS_MAX
            && self.users.insert((uid, gid))
        {
            tracing::info!(pid, uid, gid, "a user connects for the first time");
        }
    }
}

#[derive(Debug, Default)]
struct LineLimit {
    since: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl LineLimit {
    /// Returns how many lines were suppressed since the last written line. `None`: this line is suppressed too.
    fn take(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.since.is_none_or(|since| now >= since + LINES_OVER) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written == LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}
