//! Accepts connections at the CRI socket within their limits and serves their calls.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::middleware::from_fn;
use futures_util::stream;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Error, Server},
};

use super::{
    connection_limits::{LimitedConnection, Peer, limit_call},
    peer_log::PeerLog,
};
use crate::connections::{
    AcceptFailures, ConnectionTable, SpareDescriptors, is_out_of_descriptors, open_files_max, socket_limits,
};

const STREAMS_MAX: u32 = 256;
/// A client that is silent for this long is pinged.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The longest headers of a call; tokens and trace headers fit.
const HEADERS_BYTES_MAX: u32 = 16 << 10;

/// Serves until `stop` is cancelled and the running calls have ended.
pub(super) async fn serve(listener: UnixListener, mut routes: Routes, stop: CancellationToken) -> Result<(), Error> {
    let acceptor = Acceptor::new(listener);
    let table = Arc::clone(&acceptor.table);
    let router = std::mem::take(routes.axum_router_mut()).layer(from_fn(limit_call));
    *routes.axum_router_mut() = router;
    let connections = stream::unfold(acceptor, |mut acceptor| async move {
        let accepted = acceptor.accept().await;
        Some((Ok::<_, Infallible>(accepted), acceptor))
    });
    let stopped = async move {
        stop.cancelled().await;
        table.close_every_silent();
    };
    Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(SILENCE_MAX))
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
        .add_routes(routes.prepare())
        .serve_with_incoming_shutdown(connections, stopped)
        .await
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
