//! Lets callers in at the socket and has their calls answered, until no more are taken.

use std::{sync::Arc, time::Duration};

use imagelet_cri::{Calls, ConnectionLimits, Connections};
use tokio::net::UnixListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{doorman::Doorman, peers::Peers};
use crate::connections::{AcceptFailures, SpareDescriptors, is_out_of_descriptors, open_files_max, socket_limits};

const LIMITS: ConnectionLimits = ConnectionLimits {
    streams_max: 256,
    silent_max: Duration::from_secs(30),
    // Tokens and traces fit.
    headers_bytes_max: 16 << 10,
};

/// Serves until `stop` is cancelled and the calls under way have ended.
pub(super) async fn serve(listener: UnixListener, calls: Calls, stop: CancellationToken) {
    let (calls, connections) = (Arc::new(calls), Connections::new(LIMITS));
    let doorman = Doorman::new(socket_limits(open_files_max()));
    let (mut peers, mut failures, open) = (Peers::new(), AcceptFailures::new("socket"), TaskTracker::new());
    let spare = Arc::new(SpareDescriptors::new());
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                let pause = failures.report(&error);
                if !(is_out_of_descriptors(&error) && (spare.spend() || doorman.close_silent().await)) {
                    tokio::time::sleep(pause).await;
                }
                continue;
            }
        };
        failures.clear();
        spare.restore();
        peers.met(&stream);
        let Some((visitor, guard, connection)) = doorman.admit(stream).await else { continue };
        let (calls, connections, stopped) = (Arc::clone(&calls), connections.clone(), stop.child_token());
        let spare = Arc::clone(&spare);
        open.spawn(async move {
            let answer = |request| guard.answer(request, Arc::clone(&calls));
            tokio::select! {
                () = connections.serve(imagelet_cri::lenient(visitor), answer, stopped.cancelled()) => {}
                () = connection.displaced() => tracing::debug!("an idle connection is closed for another one"),
            }
            drop(connection);
            spare.restore();
        });
    }
    // Who comes now is refused, not kept waiting.
    drop(listener);
    doorman.close_every_silent();
    open.close();
    open.wait().await;
}
