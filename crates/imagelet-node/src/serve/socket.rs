//! Accepts connections at the CRI socket within their limits and serves their calls.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::middleware::from_fn;
use futures_util::stream;
use tokio::{
    net::{UnixListener, UnixStream},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::connection_limits::{LimitedConnection, Peer, limit_call};
use crate::connections::{
    AcceptFailures, ConnectionTable, LineLimit, SpareDescriptors, is_out_of_descriptors, open_files_max, socket_limits,
};

/// Lines per [`LINES_OVER`]: a client that connects for each call must not fill a disk.
const LINES_MAX: u32 = 20;
const LINES_OVER: Duration = Duration::from_secs(10);
const USERS_MAX: usize = 256;

/// Serves until `stop` is cancelled and the running calls have ended.
pub(super) async fn serve(listener: UnixListener, mut routes: Routes, stop: CancellationToken) {
    let table = ConnectionTable::new(socket_limits(open_files_max()));
    let acceptor = Acceptor {
        listener,
        table: Arc::clone(&table),
        users: BTreeSet::new(),
        lines: LineLimit::new(LINES_MAX, LINES_OVER),
        failures: AcceptFailures::new("socket"),
        spare: Arc::new(SpareDescriptors::new()),
    };
    let router = std::mem::take(routes.axum_router_mut()).layer(from_fn(limit_call));
    *routes.axum_router_mut() = router;
    let connections = stream::unfold(acceptor, |mut acceptor| async move {
        let accepted = acceptor.accept().await;
        Some((accepted, acceptor))
    });
    let stopped = async {
        stop.cancelled().await;
        table.close_every_silent();
    };
    tokio::join!(imagelet_runtime::cri::serve(connections, routes, stop.clone()), stopped);
}

struct Acceptor {
    listener: UnixListener,
    table: Arc<ConnectionTable<Peer>>,
    /// User and group of each connection so far.
    users: BTreeSet<(u32, u32)>,
    lines: LineLimit,
    failures: AcceptFailures,
    spare: Arc<SpareDescriptors>,
}

impl Acceptor {
    async fn accept(&mut self) -> LimitedConnection {
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    let pause = self.failures.report(&error);
                    if !(is_out_of_descriptors(&error) && (self.spare.spend() || self.table.close_silent().await)) {
                        tokio::time::sleep(pause).await;
                    }
                    continue;
                }
            };
            self.failures.clear();
            self.spare.restore();
            self.log(&stream);
            let peer = stream.peer_cred().map_or((None, u32::MAX), |peer| (peer.pid(), peer.uid()));
            match self.table.enter(peer).await {
                Some(open) => return LimitedConnection::new(stream, open, &self.spare),
                None => {
                    tracing::debug!(pid = peer.0, uid = peer.1, "too many connections are busy; this one is refused");
                }
            }
        }
    }

    /// Logs which users connect, as access to the socket is all the authentication there is: the first connection of each
    /// user at info level, later ones at debug level.
    fn log(&mut self, stream: &UnixStream) {
        let peer = match stream.peer_cred() {
            Ok(peer) => peer,
            Err(error) => return tracing::warn!(%error, "could not find out which process connects"),
        };
        let Some(suppressed) = self.lines.take(Instant::now()) else { return };
        let (pid, uid, gid) = (peer.pid(), peer.uid(), peer.gid());
        if self.users.len() < USERS_MAX && self.users.insert((uid, gid)) {
            tracing::info!(pid, uid, gid, suppressed, "a user connects for the first time");
        } else {
            tracing::debug!(pid, uid, gid, suppressed, "connected");
        }
    }
}
