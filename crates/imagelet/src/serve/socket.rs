//! Lets callers in at the socket and has their calls answered, until no more are taken.

use std::{sync::Arc, time::Duration};

use imagelet_cri::{Calls, ConnectionLimits, Connections};
use tokio::net::UnixListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{doorman::Doorman, peers::Peers};

const LIMITS: ConnectionLimits = ConnectionLimits {
    streams_max: 256,
    silent_max: Duration::from_secs(30),
    // Tokens and traces fit.
    headers_bytes_max: 16 << 10,
};
/// After a connection that could not be accepted: there are too many open files, and the next one fails as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is cancelled and the calls under way have ended.
pub(super) async fn serve(listener: UnixListener, calls: Calls, stop: CancellationToken) {
    let (calls, doorman, connections) = (Arc::new(calls), Doorman::new(), Connections::new(LIMITS));
    let (mut peers, open) = (Peers::default(), TaskTracker::new());
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        peers.met(&stream);
        let Some((visitor, guard)) = doorman.admit(stream) else { continue };
        let (calls, connections, stopped) = (Arc::clone(&calls), connections.clone(), stop.child_token());
        open.spawn(async move {
            let answer = |request| guard.answer(request, Arc::clone(&calls));
            connections.serve(imagelet_cri::lenient(visitor), answer, stopped.cancelled()).await;
        });
    }
    // Who comes now is refused, not kept waiting.
    drop(listener);
    open.close();
    open.wait().await;
}
