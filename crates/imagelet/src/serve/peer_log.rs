//! Logs which users connect to the socket: access to it is all the authentication there is.

use std::{collections::BTreeSet, time::Duration};

use tokio::{net::UnixStream, time::Instant};

use crate::connections::LineLimit;

/// Lines per [`LINES_OVER`]: a client that connects for each call must not fill a disk.
const LINES_MAX: u32 = 20;
const LINES_OVER: Duration = Duration::from_secs(10);
const USERS_MAX: usize = 256;

/// Logs the first connection of each user at info level, later ones at debug level.
#[derive(Debug)]
pub(super) struct PeerLog {
    users: BTreeSet<(u32, u32)>,
    lines: LineLimit,
}

impl PeerLog {
    pub(super) fn new() -> Self {
        Self { users: BTreeSet::new(), lines: LineLimit::new(LINES_MAX, LINES_OVER) }
    }

    pub(super) fn log(&mut self, stream: &UnixStream) {
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
