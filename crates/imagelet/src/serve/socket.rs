//! Accepts connections at the CRI socket within their limits and serves their calls.

use std::sync::Arc;

use axum::middleware::from_fn;
use futures_util::stream;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::{
    connection_limits::{LimitedConnection, Peer, limit_call},
    peer_log::PeerLog,
};
use crate::connections::{
    AcceptFailures, ConnectionTable, SpareDescriptors, is_out_of_descriptors, open_files_max, socket_limits,
};

/// Serves until `stop` is cancelled and the running calls have ended.
pub(super) async fn serve(listener: UnixListener, mut routes: Routes, stop: CancellationToken) {
    let acceptor = Acceptor::new(listener);
    let table = Arc::clone(&acceptor.table);
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
    tokio::join!(imagelet_cri::serve(connections, routes, stop.clone()), stopped);
}

struct Acceptor {
    listener: UnixListener,
    table: Arc<ConnectionTable<Peer>>,
    peers: PeerLog,
    failures: AcceptFailures,
    spare: Arc<SpareDescriptors>,
}

impl Acceptor {
    fn new(listener: UnixListener) -> Self {
        Self {
            listener,
            table: ConnectionTable::new(socket_limits(open_files_max())),
            peers: PeerLog::new(),
            failures: AcceptFailures::new("socket"),
            spare: Arc::new(SpareDescriptors::new()),
        }
    }

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
            self.peers.log(&stream);
            let peer = stream.peer_cred().map_or((None, u32::MAX), |peer| (peer.pid(), peer.uid()));
            match self.table.enter(peer).await {
                Some(open) => return LimitedConnection::new(stream, open, &self.spare),
                None => {
                    tracing::debug!(pid = peer.0, uid = peer.1, "too many connections are busy; this one is refused");
                }
            }
        }
    }
}
