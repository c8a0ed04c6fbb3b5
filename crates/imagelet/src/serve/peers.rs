//! Who connects to the socket: access to it is all the authentication there is, so it is on record who used it.

use std::{collections::BTreeSet, time::Duration};

use tokio::{
    net::{UnixStream, unix::UCred},
    time::Instant,
};

use crate::connections::LineLimit;

/// Most lines in this time; a client that connects for each call must not fill a disk.
const LINES_MAX: u32 = 20;
const LINES_OVER: Duration = Duration::from_secs(10);
/// Most users remembered.
const USERS_MAX: usize = 256;

/// Logs each connection once: the first of a user for all to read, others for who looks closely.
#[derive(Debug)]
pub(super) struct Peers {
    users: BTreeSet<(u32, u32)>,
    lines: LineLimit,
}

impl Peers {
    pub(super) fn new() -> Self {
        Self { users: BTreeSet::new(), lines: LineLimit::new(LINES_MAX, LINES_OVER) }
    }

    pub(super) fn met(&mut self, stream: &UnixStream) {
        match stream.peer_cred() {
            Ok(peer) => self.tell(peer),
            Err(error) => tracing::warn!(%error, "who connects cannot be told"),
        }
    }

    fn tell(&mut self, peer: UCred) {
        let Some(silent) = self.lines.take(Instant::now()) else { return };
        let (pid, uid, gid) = (peer.pid(), peer.uid(), peer.gid());
        let is_new = self.users.len() < USERS_MAX && self.users.insert((uid, gid));
        let silent = (silent > 0).then_some(silent);
        if is_new {
            tracing::info!(pid, uid, gid, silent, "a user connects for the first time");
        } else {
            tracing::debug!(pid, uid, gid, silent, "connected");
        }
    }
}
