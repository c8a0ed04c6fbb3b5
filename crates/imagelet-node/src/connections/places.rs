//! The places of a listener: how many connections and calls all peers and each peer may have, and which connections close
//! for the next one.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use imagelet_runtime::MESSAGE_BYTES_MAX;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{Notify, oneshot};

use super::{LINES_MAX, LineLimit, Peer};

/// How long a connection waits for the one that closes in its favor. Closing needs no act of a client.
const DISPLACED_WITHIN: Duration = Duration::from_millis(400);
/// The longest body over HTTP: a pin or a collection.
pub(super) const HTTP_BODY_BYTES_MAX: usize = 64 << 10;
/// Connections at the CRI socket; a kubelet needs one or two.
const SOCKET_MAX: usize = 512;
/// Divisor of the open files limit for the CRI socket; pulls keep the larger part.
const SOCKET_PART: usize = 4;
/// Concurrent calls at the socket; a kubelet of 110 pods stays well below a quarter of them.
const CALLS_MAX: usize = 2048;
/// Connections over HTTP; a scraper and a probe need one each.
const HTTP_MAX: usize = 32;
/// Divisor of the open files limit for HTTP.
const HTTP_PART: usize = 8;
const LISTENER_MIN: usize = 4;
/// Descriptors that are closed when an accept at the socket finds no free one: a kubelet's connections and a few commands.
pub(super) const SPARE: usize = 8;

/// How many of a kind all peers, and each peer, may have.
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
    /// HTTP/1 with one request a connection, whose answer is due within [`ANSWER_WITHIN`].
    pub(super) is_http: bool,
}

impl Limits {
    /// Limits of the CRI socket. One process may have half of all connections.
    pub(crate) fn of_socket() -> Self {
        Self::of_socket_with(open_files_max())
    }

    pub(super) fn of_socket_with(files_max: usize) -> Self {
        let all = (files_max / SOCKET_PART).clamp(LISTENER_MIN, SOCKET_MAX);
        Self {
            connections: Share { all, each: all / 2 },
            calls: Share { all: CALLS_MAX, each: CALLS_MAX / 4 },
            body_bytes: MESSAGE_BYTES_MAX + 64,
            spare: SPARE,
            is_http: false,
        }
    }

    /// Limits of HTTP. One address may have half of all connections: the rest answers probes of other addresses while its
    /// requests run. Clients behind one NAT address share that half.
    pub(crate) fn of_http() -> Self {
        Self::of_http_with(open_files_max())
    }

    pub(super) fn of_http_with(files_max: usize) -> Self {
        let all = (files_max / HTTP_PART).clamp(LISTENER_MIN, HTTP_MAX);
        let share = Share { all, each: all / 2 };
        Self { connections: share, calls: share, body_bytes: HTTP_BODY_BYTES_MAX, spare: 0, is_http: true }
    }
}

fn open_files_max() -> usize {
    getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Activity of a connection; those that close first come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    /// No call so far.
    Silent,
    /// All its calls have ended.
    Idle,
    /// A call runs, or the connection closes for another one already.
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Enter,
    InPlaceOf(u64),
    /// The share is used up, and every connection that could close is busy.
    Refuse,
}

/// Decides on one more connection of a peer; the open ones are in order of age, the oldest first.
pub(super) fn decide(open: &[(u64, Peer, Activity)], peer: Peer, share: Share) -> Decision {
    let is_peer_full = open.iter().filter(|(_, of, _)| *of == peer).count() >= share.each;
    if !is_peer_full && open.len() < share.all {
        return Decision::Enter;
    }
    first_to_close(open, |of, activity| activity != Activity::Busy && (!is_peer_full || of == peer))
        .map_or(Decision::Refuse, Decision::InPlaceOf)
}

/// The candidate that closes first: of the peer with the most connections, silent before idle, then the oldest.
fn first_to_close(open: &[(u64, Peer, Activity)], is_candidate: impl Fn(Peer, Activity) -> bool) -> Option<u64> {
    let mut counts = BTreeMap::<Peer, usize>::new();
    for (_, peer, _) in open {
        *counts.entry(*peer).or_default() += 1;
    }
    let candidates = open.iter().filter(|(_, peer, activity)| is_candidate(*peer, *activity));
    let first = candidates.min_by_key(|(number, peer, activity)| (Reverse(counts[peer]), *activity, *number));
    first.map(|(number, ..)| *number)
}

#[derive(Debug)]
struct Open {
    peer: Peer,
    calls: usize,
    was_called: bool,
    /// Wakes the connection where it has to close.
    close: Arc<Notify>,
    /// Dropped when the connection has closed, or has a call after all.
    closing: Option<oneshot::Sender<()>>,
}

impl Open {
    fn activity(&self) -> Activity {
        match (self.calls, self.was_called) {
            (0, _) if self.closing.is_some() => Activity::Busy,
            (0, false) => Activity::Silent,
            (0, true) => Activity::Idle,
            _ => Activity::Busy,
        }
    }
}

/// The open connections by number, and the next number.
type Table = (u64, BTreeMap<u64, Open>);

#[derive(Debug)]
pub(super) struct Places {
    pub(super) limits: Limits,
    open: Mutex<Table>,
    /// A connection has closed, and its descriptor is free.
    pub(super) freed: Notify,
    refused: Mutex<LineLimit>,
}

/// The place of an open connection, free again when this is dropped. Drop it after the stream.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) peer: Peer,
    pub(super) places: Arc<Places>,
    number: u64,
    close: Arc<Notify>,
}

#[derive(Debug)]
pub(super) enum Admission {
    Enter(Place),
    /// Decided again when another connection has closed.
    After(oneshot::Receiver<()>),
    Refuse,
}

impl Places {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, open: Mutex::default(), freed: Notify::new(), refused: Mutex::new(LineLimit::new(LINES_MAX)) }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits one more connection. Where a share is used up, exactly one other connection without a running call closes first,
    /// so that no more connections wait than are open.
    pub(super) fn admit(self: &Arc<Self>, peer: Peer) -> Admission {
        let (next, open) = &mut *self.lock();
        match decide(&listed(open), peer, self.limits.connections) {
            Decision::Enter => {
                let (number, close) = (*next, Arc::new(Notify::new()));
                *next += 1;
                let entry = Open { peer, calls: 0, was_called: false, close: Arc::clone(&close), closing: None };
                open.insert(number, entry);
                Admission::Enter(Place { peer, places: Arc::clone(self), number, close })
            }
            Decision::InPlaceOf(number) => close(open, number).map_or(Admission::Refuse, Admission::After),
            Decision::Refuse => Admission::Refuse,
        }
    }

    /// The place of an admission. `None`: refused.
    pub(super) async fn wait_for_place(self: &Arc<Self>, peer: Peer, mut admission: Admission) -> Option<Place> {
        let waited = async {
            loop {
                match admission {
                    Admission::Enter(place) => return Some(place),
                    Admission::After(closed) => {
                        drop(closed.await);
                        admission = self.admit(peer);
                    }
                    Admission::Refuse => return None,
                }
            }
        };
        tokio::time::timeout(DISPLACED_WITHIN, waited).await.ok().flatten()
    }

    /// Closes one connection without a call so far.
    pub(super) fn free_descriptor(&self) {
        let open = &mut self.lock().1;
        if let Some(number) = first_to_close(&listed(open), |_, activity| activity == Activity::Silent) {
            close(open, number);
        }
    }

    pub(super) fn log_refusal(&self, listener: &str, peer: Peer) {
        let Some(suppressed) = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let Share { all, each } = self.limits.connections;
        tracing::warn!(
            listener,
            ?peer,
            all,
            each,
            suppressed,
            "every connection, or each of this peer, is busy; one is refused"
        );
    }
}

fn listed(open: &BTreeMap<u64, Open>) -> Vec<(u64, Peer, Activity)> {
    open.iter().map(|(number, open)| (*number, open.peer, open.activity())).collect()
}

/// Asks a connection to close; the receiver completes when it has closed, or has a call after all.
fn close(open: &mut BTreeMap<u64, Open>, number: u64) -> Option<oneshot::Receiver<()>> {
    let entry = open.get_mut(&number)?;
    let (closing, closed) = oneshot::channel();
    entry.closing = Some(closing);
    entry.close.notify_one();
    Some(closed)
}

impl Place {
    /// Completes when the connection has to close for another one.
    pub(super) async fn displaced(&self) {
        loop {
            self.close.notified().await;
            // A call may have begun since.
            if self.places.lock().1.get(&self.number).is_some_and(|open| open.closing.is_some()) {
                return;
            }
        }
    }

    pub(super) fn was_called(&self) -> bool {
        self.places.lock().1.get(&self.number).is_some_and(|open| open.was_called)
    }

    /// Begins a call. `false`: as many run as the peer, or all peers, may have.
    pub(super) fn begin_call(&self) -> bool {
        let open = &mut self.places.lock().1;
        let Share { all, each } = self.places.limits.calls;
        let running = open.values().map(|open| open.calls).sum::<usize>();
        let own = open.values().filter(|open| open.peer == self.peer).map(|open| open.calls).sum::<usize>();
        let Some(entry) = open.get_mut(&self.number) else { return false };
        entry.was_called = true;
        if running >= all || own >= each {
            return false;
        }
        entry.calls += 1;
        entry.closing = None;
        true
    }

    pub(super) fn end_call(&self) {
        if let Some(open) = self.places.lock().1.get_mut(&self.number) {
            open.calls -= 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().1.remove(&self.number);
        self.places.freed.notify_one();
    }
}
