//! The accept loop of the daemon's listeners: how many connections stay open, which of them makes room for the next one,
//! and how long a request may take to arrive.
//!
//! Of each kind of place a peer gets a share. A connection with a running call is never closed for another one; of the others
//! the peer with the most loses one, first one without a call so far. A peer whose share is used up by running calls is
//! refused at once. A runaway program at the socket so blocks no kubelet, and a client that sends nothing no scraper.
//!
//! **Invariant:** the limits of both listeners together stay below the limit of open files, so that clients which
//! connect and send nothing leave descriptors for pulls and for the next caller.

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

use calls::Connection;
pub(crate) use calls::StreamEnd;
pub(crate) use places::Limits;
use places::{Admission, Places};

/// Lines of one kind per [`LINES_OVER`]: clients that connect in a loop must not fill a disk.
const LINES_MAX: u32 = 2;
const CONNECTED_LINES_MAX: u32 = 20;
const LINES_OVER: Duration = Duration::from_secs(30);
/// Users whose first connection is logged.
const USERS_MAX: usize = 256;
/// The first pause after a failed accept that the next accept would share; the last is shorter than a client's deadline.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The client of a connection, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// At a unix socket; all processes of another PID namespace are one peer.
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

/// Serves until `stop` is cancelled and the running calls have ended. Handlers find the [`Peer`] among the extensions.
pub(crate) async fn serve<L: Listener>(listener: L, router: Router, limits: Limits, stop: CancellationToken) {
    let open = TaskTracker::new();
    let places = Arc::new(Places::new(limits));
    let mut acceptor = Acceptor::new(listener, Arc::clone(&places));
    while let Some(accepted) = stop.run_until_cancelled(acceptor.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(pause) => {
                stop.run_until_cancelled(tokio::time::sleep(pause)).await;
                continue;
            }
        };
        // Decided here: connections that are refused do not pile up.
        let admission = places.admit(peer);
        if matches!(admission, Admission::Refuse) {
            places.log_refusal(L::NAME, peer);
            continue;
        }
        let (places, router, stop) = (Arc::clone(&places), router.clone(), stop.clone());
        open.spawn(async move {
            match places.wait_for_place(peer, admission).await {
                Some(place) => Connection { place, router, stop }.serve(stream).await,
                None => places.log_refusal(L::NAME, peer),
            }
        });
    }
    drop(acceptor);
    open.close();
    open.wait().await;
}

struct Acceptor<L> {
    listener: L,
    places: Arc<Places>,
    /// Descriptors in reserve.
    spare: Vec<OwnedFd>,
    failures_in_a_row: u32,
    failed: LineLimit,
    connected: LineLimit,
    users: BTreeSet<(u32, u32)>,
}

impl<L: Listener> Acceptor<L> {
    fn new(listener: L, places: Arc<Places>) -> Self {
        Self {
            listener,
            places,
            spare: Vec::new(),
            failures_in_a_row: 0,
            failed: LineLimit::new(LINES_MAX),
            connected: LineLimit::new(CONNECTED_LINES_MAX),
            users: BTreeSet::new(),
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// The pause after a failure that the next accept would share: no failure ends a listener.
    async fn accept(&mut self) -> Result<(L::Stream, Peer), Duration> {
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
                    self.failures_in_a_row = 0;
                    self.log_user(accepted.1);
                    return Ok(accepted);
                }
                Err(error) => error,
            };
            if let Some(suppressed) = self.failed.take() {
                tracing::warn!(listener = L::NAME, %error, suppressed, "could not accept a connection");
            }
            let has_no_descriptor = matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
            if has_no_descriptor {
                if self.spare.pop().is_some() {
                    continue;
                }
                self.places.free_descriptor();
            }
            let pause = pause_after(&error, self.failures_in_a_row);
            self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
            if !pause.is_zero() {
                return Err(pause);
            }
        }
    }

    /// Refills the reserve as far as descriptors are free.
    fn refill(&mut self) {
        while self.spare.len() < self.places.limits.spare
            && let Ok(opened) = rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        {
            self.spare.push(opened);
        }
    }

    /// Logs which users connect, as access to the socket is all the authentication there is: the first connection of each
    /// user at info level, later ones at debug level.
    fn log_user(&mut self, peer: Peer) {
        let Peer::Process { pid, uid, gid } = peer else { return };
        let Some(suppressed) = self.connected.take() else { return };
        if self.users.len() < USERS_MAX && self.users.insert((uid, gid)) {
            tracing::info!(pid, uid, gid, suppressed, "a user connects for the first time");
        } else {
            tracing::debug!(pid, uid, gid, suppressed, "connected");
        }
    }
}

fn pause_after(error: &io::Error, before: u32) -> Duration {
    match Errno::from_io_error(error) {
        // Failures of one connection, whose client disconnected or is rejected; the next one is independent.
        Some(
            Errno::CONNABORTED
            | Errno::NOTCONN
            | Errno::PERM
            | Errno::PROTO
            | Errno::INTR
            | Errno::NETDOWN
            | Errno::HOSTUNREACH,
        ) => Duration::ZERO,
        _ => PAUSE_FIRST.saturating_mul(1 << before.min(16)).min(PAUSE_MAX),
    }
}

/// Limits how many lines of one kind reach the log, and counts the suppressed ones.
#[derive(Debug)]
struct LineLimit {
    lines_max: u32,
    since: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl LineLimit {
    /// At most `lines_max` lines in each [`LINES_OVER`].
    fn new(lines_max: u32) -> Self {
        Self { lines_max, since: None, written: 0, suppressed: 0 }
    }

    /// The number of lines suppressed since the last written one; `None`: suppress this line, too.
    fn take(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.since.is_none_or(|since| now >= since + LINES_OVER) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written == self.lines_max {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}
