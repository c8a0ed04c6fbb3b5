//! The places of a listener: how many connections and calls all peers and each peer may have, and which connections close
//! for the next one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use imagelet_runtime::MESSAGE_BYTES_MAX;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{LINES_MAX, LineLimit, Peer};

/// How long the connections that were asked to make room may take before others are asked.
const DISPLACED_WITHIN: Duration = Duration::from_millis(200);
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
const SPARE: usize = 8;

/// How many of a kind all peers, and each peer, may have.
#[derive(Clone, Copy, Debug)]
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
        let all = (open_files_max() / SOCKET_PART).clamp(LISTENER_MIN, SOCKET_MAX);
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
        let all = (open_files_max() / HTTP_PART).clamp(LISTENER_MIN, HTTP_MAX);
        let share = Share { all, each: all / 2 };
        Self { connections: share, calls: share, body_bytes: HTTP_BODY_BYTES_MAX, spare: 0, is_http: true }
    }
}

fn open_files_max() -> usize {
    getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// What all peers or one peer may still have.
#[derive(Debug)]
pub(super) struct Slots {
    connections: Arc<Semaphore>,
    pub(super) calls: Arc<Semaphore>,
}

impl Slots {
    fn new(connections: usize, calls: usize) -> Arc<Self> {
        let [connections, calls] = [connections, calls].map(|count| Arc::new(Semaphore::new(count)));
        Arc::new(Self { connections, calls })
    }
}

/// Which connections without a running call close for another one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Displaced {
    /// `None`: those of every peer.
    pub(super) peer: Option<Peer>,
    /// Those that made a call before, too.
    pub(super) also_called: bool,
}

#[derive(Debug)]
pub(super) struct Places {
    pub(super) limits: Limits,
    pub(super) all: Arc<Slots>,
    peers: Mutex<BTreeMap<Peer, Arc<Slots>>>,
    pub(super) displaced: watch::Sender<Displaced>,
    refused: Mutex<LineLimit>,
}

/// The place of an open connection, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) peer: Peer,
    pub(super) places: Arc<Places>,
    pub(super) own: Arc<Slots>,
    _connection: [OwnedSemaphorePermit; 2],
}

impl Places {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            all: Slots::new(limits.connections.all, limits.calls.all),
            peers: Mutex::default(),
            displaced: watch::Sender::default(),
            refused: Mutex::new(LineLimit::new(LINES_MAX)),
        }
    }

    /// A place for one more connection, where needed in place of others without a running call. `None`: all are busy.
    pub(super) async fn place(self: &Arc<Self>, peer: Peer) -> Option<Place> {
        let own = {
            let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
            peers.retain(|_, slots| Arc::strong_count(slots) > 1);
            let Limits { connections, calls, .. } = self.limits;
            Arc::clone(peers.entry(peer).or_insert_with(|| Slots::new(connections.each, calls.each)))
        };
        let connection =
            [self.slot(&own.connections, Some(peer)).await?, self.slot(&self.all.connections, None).await?];
        Some(Place { peer, places: Arc::clone(self), own, _connection: connection })
    }

    async fn slot(&self, slots: &Arc<Semaphore>, peer: Option<Peer>) -> Option<OwnedSemaphorePermit> {
        if let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
            return Some(slot);
        }
        for also_called in [false, true] {
            self.displaced.send_replace(Displaced { peer, also_called });
            let slot = tokio::time::timeout(DISPLACED_WITHIN, Arc::clone(slots).acquire_owned()).await;
            if let Ok(Ok(slot)) = slot {
                return Some(slot);
            }
        }
        None
    }

    /// Closes connections without a call so far.
    pub(super) fn free_descriptors(&self) {
        self.displaced.send_replace(Displaced::default());
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
