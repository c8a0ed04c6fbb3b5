//! The limits of a listener's connections and calls, and the choice of the connection that closes for the next one.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use imagelet_core::lock::locked;
use imagelet_runtime::MESSAGE_BYTES_MAX;
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Peer;

/// Limit of a request body over HTTP. The largest requests are pins and collections.
pub(super) const HTTP_BODY_BYTES_MAX: usize = 64 << 10;
/// Limit of the connections at the CRI socket. A kubelet needs one or two.
const SOCKET_MAX: usize = 512;
/// The CRI socket may use a quarter of the open files. Pulls get the larger part.
const SOCKET_PART: usize = 4;
/// Limit of concurrent calls at the socket. A kubelet with 110 pods needs far less than a quarter.
const CALLS_MAX: usize = 2048;
/// Limit of the connections over HTTP. A scraper and a probe need one each.
const HTTP_MAX: usize = 32;
const HTTP_PART: usize = 8;
const LISTENER_MIN: usize = 4;
/// Descriptors in reserve for connections to the socket: enough for a kubelet and a few commands.
pub(super) const SPARE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) all: usize,
    pub(crate) each: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: Share,
    pub(super) calls: Share,
    pub(super) body_bytes: usize,
    pub(super) spare: usize,
    /// Whether the listener serves HTTP/1, with one request for each connection and a deadline for reading the answer.
    pub(super) is_http: bool,
}

impl Limits {
    /// The limits of the socket. One process may have half of the connections.
    pub(crate) fn of_socket(files_max: usize) -> Self {
        let all = (files_max / SOCKET_PART).clamp(LISTENER_MIN, SOCKET_MAX);
        Self {
            connections: Share { all, each: all / 2 },
            calls: Share { all: CALLS_MAX, each: CALLS_MAX / 4 },
            body_bytes: MESSAGE_BYTES_MAX + 64,
            spare: SPARE,
            is_http: false,
        }
    }

    /// The limits over HTTP. One address may have half of the connections. All clients behind a NAT have one address.
    pub(crate) fn of_http(files_max: usize) -> Self {
        let all = (files_max / HTTP_PART).clamp(LISTENER_MIN, HTTP_MAX);
        let share = Share { all, each: all / 2 };
        Self { connections: share, calls: share, body_bytes: HTTP_BODY_BYTES_MAX, spare: 0, is_http: true }
    }
}

pub(crate) fn open_files_max() -> usize {
    getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Activity of a connection, in the order in which new connections displace older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    /// The connection has had no call.
    Silent,
    /// All calls of the connection have ended.
    Idle,
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Enter,
    InPlaceOf(u64),
    /// The limit is reached, and all connections that the peer may displace are busy.
    Refuse,
}

/// Decides whether a peer may open another connection. `open` starts with the oldest connection.
pub(super) fn decide(open: &[(u64, Peer, Activity)], peer: Peer, share: Share) -> Decision {
    let is_peer_full = open.iter().filter(|(_, of, _)| *of == peer).count() >= share.each;
    if !is_peer_full && open.len() < share.all {
        return Decision::Enter;
    }
    // The peer with the most connections loses one: a silent connection before an idle one, the oldest first.
    let mut counts = BTreeMap::<Peer, usize>::new();
    for (_, of, _) in open {
        *counts.entry(*of).or_default() += 1;
    }
    let may_close = |of, activity| activity != Activity::Busy && (!is_peer_full || of == peer);
    let candidates = open.iter().filter(|(_, of, activity)| may_close(*of, *activity));
    let first = candidates.min_by_key(|(number, of, activity)| (Reverse(counts[of]), *activity, *number));
    first.map_or(Decision::Refuse, |(number, ..)| Decision::InPlaceOf(*number))
}

#[derive(Debug)]
struct Open {
    peer: Peer,
    calls: usize,
    was_called: bool,
    close: CancellationToken,
    closed: CancellationToken,
}

/// The number of the next connection, and the open connections by their numbers.
type Table = (u64, BTreeMap<u64, Open>);

#[derive(Debug)]
pub(super) struct Places {
    pub(super) limits: Limits,
    open: Mutex<Table>,
    /// Notified when a connection has closed and its descriptor is free.
    pub(super) freed: Notify,
}

/// Counts an open connection until it is dropped. The stream is dropped first, so that its descriptor is already free.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) peer: Peer,
    pub(super) places: Arc<Places>,
    /// Cancelled when a new connection displaces this connection. Further calls are then rejected.
    pub(super) close: CancellationToken,
    number: u64,
    _closed: DropGuard,
}

impl Places {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, open: Mutex::default(), freed: Notify::new() }
    }

    /// Admits a connection. `None`: it is rejected. The token is cancelled once a displaced connection has closed.
    pub(super) fn admit(self: &Arc<Self>, peer: Peer) -> Option<(Place, Option<CancellationToken>)> {
        let (next, open) = &mut *locked(&self.open);
        let displaced = match decide(&listed(open), peer, self.limits.connections) {
            Decision::Enter => None,
            Decision::InPlaceOf(number) => open.remove(&number).map(|entry| {
                entry.close.cancel();
                entry.closed
            }),
            Decision::Refuse => return None,
        };
        let (number, close, closed) = (*next, CancellationToken::new(), CancellationToken::new());
        *next += 1;
        let place = Place {
            peer,
            places: Arc::clone(self),
            close: close.clone(),
            number,
            _closed: closed.clone().drop_guard(),
        };
        open.insert(number, Open { peer, calls: 0, was_called: false, close, closed });
        Some((place, displaced))
    }

    pub(super) fn free_descriptor(&self) {
        let open = &mut locked(&self.open).1;
        let silent = open.iter().find(|(_, open)| !open.was_called).map(|(number, _)| *number);
        if let Some(entry) = silent.and_then(|number| open.remove(&number)) {
            entry.close.cancel();
        }
    }
}

fn listed(open: &BTreeMap<u64, Open>) -> Vec<(u64, Peer, Activity)> {
    let activity = |open: &Open| match (open.calls, open.was_called) {
        (0, false) => Activity::Silent,
        (0, true) => Activity::Idle,
        _ => Activity::Busy,
    };
    open.iter().map(|(number, open)| (*number, open.peer, activity(open))).collect()
}

impl Place {
    pub(super) fn was_called(&self) -> bool {
        locked(&self.places.open).1.get(&self.number).is_some_and(|open| open.was_called)
    }

    /// Starts a call. `false`: the calls of the peer or of all peers are at their limit, or the connection is closing.
    pub(super) fn begin_call(&self) -> bool {
        let open = &mut locked(&self.places.open).1;
        let Share { all, each } = self.places.limits.calls;
        let running = open.values().map(|open| open.calls).sum::<usize>();
        let own = open.values().filter(|open| open.peer == self.peer).map(|open| open.calls).sum::<usize>();
        let Some(entry) = open.get_mut(&self.number) else { return false };
        entry.was_called = true;
        let begins = running < all && own < each;
        entry.calls += usize::from(begins);
        begins
    }

    pub(super) fn end_call(&self) {
        if let Some(open) = locked(&self.places.open).1.get_mut(&self.number) {
            open.calls -= 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.places.open).1.remove(&self.number);
        self.places.freed.notify_one();
    }
}
