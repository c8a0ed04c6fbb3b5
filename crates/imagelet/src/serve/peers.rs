//! Who connects to the socket: access to it is all the authentication there is, so it is on record who used it.

use std::{collections::BTreeSet, time::Duration};

use tokio::{
    net::{UnixStream, unix::UCred},
    time::Instant,
};

/// Most lines in this time; a client that connects for each call must not fill a disk.
const LINES_MAX: u32 = 20;
const LINES_OVER: Duration = Duration::from_secs(10);
/// Most users remembered.
const USERS_MAX: usize = 256;

/// Logs each connection once: the first of a user for all to read, others for who looks closely.
#[derive(Debug, Default)]
pub(super) struct Peers {
    users: BTreeSet<(u32, u32)>,
    bound: Bound,
}

impl Peers {
    pub(super) fn met(&mut self, stream: &UnixStream) {
        match stream.peer_cred() {
            Ok(peer) => self.tell(peer),
            Err(error) => tracing::warn!(%error, "who connects cannot be told"),
        }
    }

    fn tell(&mut self, peer: UCred) {
        let Some(silent) = self.bound.take(Instant::now()) else { return };
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

/// So many in a time, and the others counted.
#[derive(Debug, Default)]
struct Bound {
    since: Option<Instant>,
    taken: u32,
    silent: u64,
}

impl Bound {
    /// How many were not told since the last one; `None`: this one is not either.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now >= since + LINES_OVER) {
            (self.since, self.taken) = (Some(now), 0);
        }
        if self.taken == LINES_MAX {
            self.silent += 1;
            return None;
        }
        self.taken += 1;
        Some(std::mem::take(&mut self.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_connections_is_counted_and_not_told() {
        let (mut bound, now) = (Bound::default(), Instant::now());
        let told = (0..1000).filter(|_| bound.take(now).is_some()).count();
        assert_eq!(told, LINES_MAX as usize);
        assert_eq!(bound.take(now + LINES_OVER), Some(1000 - u64::from(LINES_MAX)));
        assert_eq!(bound.take(now + LINES_OVER), Some(0));
    }
}
