//! The open connections of one listener: how many each peer has, and which of them is closed for the next one.
//!
//! A connection with a call under way is never closed for another. Of the others the peer with the most connections
//! loses one first, a connection that never made a call before one that did, the oldest first.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

/// How many connections a listener keeps open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Of all peers together.
    pub(crate) all_max: usize,
    /// Of one peer.
    pub(crate) each_max: usize,
}

/// What a connection does at the moment; those that are closed first stand first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Activity {
    /// It has not made a whole call yet.
    Silent,
    /// It made calls, and all of them have ended.
    Idle,
    /// A call is under way.
    Busy,
}

/// What becomes of one more connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Enter,
    /// The connection with this number is closed for it.
    InPlaceOf(u64),
    /// The limit is reached and every connection has a call under way.
    Refuse,
}

/// Decides about one more connection of `peer`, where these are open, the oldest first.
fn admission<P: Copy + Eq>(open: &[(u64, P, Activity)], peer: P, limits: ConnectionLimits) -> Admission {
    let number_of = |peer: P| open.iter().filter(|(_, of, _)| *of == peer).count();
    let is_peer_full = number_of(peer) >= limits.each_max;
    if !is_peer_full && open.len() < limits.all_max {
        return Admission::Enter;
    }
    let candidates = open.iter().filter(|(_, of, _)| !is_peer_full || *of == peer);
    first_to_close(candidates, number_of).map_or(Admission::Refuse, Admission::InPlaceOf)
}

fn first_to_close<'a, P: Copy + 'a>(
    candidates: impl Iterator<Item = &'a (u64, P, Activity)>,
    number_of: impl Fn(P) -> usize,
) -> Option<u64> {
    candidates
        .filter(|(_, _, activity)| *activity != Activity::Busy)
        .min_by_key(|(number, peer, activity)| (Reverse(number_of(*peer)), *activity, *number))
        .map(|(number, ..)| *number)
}

/// One open connection, as the table sees it.
#[derive(Debug)]
struct Connection<P> {
    peer: P,
    calls: Arc<CallCounter>,
    /// Cancelled when it shall close.
    close: CancellationToken,
    /// Cancelled when it has closed.
    closed: CancellationToken,
}

/// The open connections of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionTable<P> {
    open: Mutex<(u64, BTreeMap<u64, Connection<P>>)>,
    limits: ConnectionLimits,
}

impl<P: Copy + Eq> ConnectionTable<P> {
    /// An empty one.
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { open: Mutex::new((0, BTreeMap::new())), limits })
    }

    /// Takes one more connection in; where the limit is reached another one closes first. `None`: there is none that
    /// may close.
    pub(crate) async fn enter(self: &Arc<Self>, peer: P) -> Option<OpenConnection<P>> {
        loop {
            let closed = {
                let mut open = self.lock();
                match admission(&listed(&open.1), peer, self.limits) {
                    Admission::Enter => {
                        let number = open.0;
                        open.0 += 1;
                        let connection = Connection {
                            peer,
                            calls: Arc::default(),
                            close: CancellationToken::new(),
                            closed: CancellationToken::new(),
                        };
                        let (calls, close) = (Arc::clone(&connection.calls), connection.close.clone());
                        open.1.insert(number, connection);
                        return Some(OpenConnection { table: Arc::clone(self), number, calls, close });
                    }
                    Admission::InPlaceOf(number) => close(&open.1, number),
                    Admission::Refuse => return None,
                }
            };
            closed?.cancelled().await;
        }
    }

    /// Closes a connection that has not made a call yet, and waits until its descriptor is free. `false`: all have.
    pub(crate) async fn close_silent(&self) -> bool {
        let closed = {
            let open = self.lock();
            let listed = listed(&open.1);
            let number_of = |peer: P| listed.iter().filter(|(_, of, _)| *of == peer).count();
            let silent = listed.iter().filter(|(_, _, activity)| *activity == Activity::Silent);
            first_to_close(silent, number_of).and_then(|number| close(&open.1, number))
        };
        match closed {
            Some(closed) => {
                closed.cancelled().await;
                true
            }
            None => false,
        }
    }
}

impl<P> ConnectionTable<P> {
    /// Has every connection close that has not made a call yet, as no more calls are taken.
    pub(crate) fn close_every_silent(&self) {
        let silent = |connection: &&Connection<P>| connection.calls.activity() == Activity::Silent;
        self.lock().1.values().filter(silent).for_each(|connection| connection.close.cancel());
    }

    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Connection<P>>)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn listed<P: Copy>(open: &BTreeMap<u64, Connection<P>>) -> Vec<(u64, P, Activity)> {
    open.iter().map(|(number, connection)| (*number, connection.peer, connection.calls.activity())).collect()
}

/// Has a connection close; what is returned is cancelled when it has.
fn close<P>(open: &BTreeMap<u64, Connection<P>>, number: u64) -> Option<CancellationToken> {
    let connection = open.get(&number)?;
    connection.close.cancel();
    Some(connection.closed.clone())
}

/// An open connection; it is dropped after the stream, and leaves the table then.
#[derive(Debug)]
pub(crate) struct OpenConnection<P> {
    table: Arc<ConnectionTable<P>>,
    number: u64,
    calls: Arc<CallCounter>,
    close: CancellationToken,
}

impl<P> OpenConnection<P> {
    /// Counts the calls of this connection.
    pub(crate) fn calls(&self) -> Arc<CallCounter> {
        Arc::clone(&self.calls)
    }

    /// Returns when the connection shall close for another one.
    pub(crate) fn displaced(&self) -> impl Future<Output = ()> + use<P> {
        self.close.clone().cancelled_owned()
    }
}

impl<P> Drop for OpenConnection<P> {
    fn drop(&mut self) {
        if let Some(connection) = self.table.lock().1.remove(&self.number) {
            connection.closed.cancel();
        }
    }
}

/// The calls of one connection.
#[derive(Debug, Default)]
pub(crate) struct CallCounter {
    under_way: AtomicUsize,
    was_called: AtomicBool,
}

impl CallCounter {
    /// A call is under way until what is returned is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> CallUnderWay {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.was_called.store(true, Ordering::Relaxed);
        CallUnderWay(Arc::clone(self))
    }

    fn activity(&self) -> Activity {
        match (self.under_way.load(Ordering::Relaxed), self.was_called.load(Ordering::Relaxed)) {
            (1.., _) => Activity::Busy,
            (0, true) => Activity::Idle,
            (0, false) => Activity::Silent,
        }
    }
}

/// A call, until its answer was read.
#[derive(Debug)]
pub(crate) struct CallUnderWay(Arc<CallCounter>);

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Activity::{Busy, Idle, Silent},
        Admission::{Enter, InPlaceOf, Refuse},
        *,
    };

    const LIMITS: ConnectionLimits = ConnectionLimits { all_max: 4, each_max: 3 };

    /// What is open, who comes, and what becomes of it.
    type Case = (&'static [(u64, char, Activity)], char, Admission);

    #[test]
    fn the_peer_with_the_most_connections_makes_room_and_no_call_under_way_is_cut() {
        let cases: [Case; 11] = [
            (&[], 'k', Enter),
            (&[(1, 'w', Silent), (2, 'w', Busy), (3, 'k', Idle)], 'k', Enter),
            // Full: the larger peer loses one.
            (&[(1, 'k', Silent), (2, 'w', Idle), (3, 'w', Idle), (4, 'w', Idle)], 'k', InPlaceOf(2)),
            (&[(1, 'k', Idle), (2, 'w', Idle), (3, 'w', Idle), (4, 'w', Silent)], 'n', InPlaceOf(4)),
            (&[(1, 'k', Idle), (2, 'w', Busy), (3, 'w', Busy), (4, 'w', Silent)], 'n', InPlaceOf(4)),
            // Where all have the same, silence goes before idleness, and age decides at last.
            (&[(1, 'a', Idle), (2, 'b', Silent), (3, 'c', Silent), (4, 'd', Idle)], 'n', InPlaceOf(2)),
            (&[(1, 'a', Idle), (2, 'b', Idle), (3, 'c', Busy), (4, 'd', Idle)], 'n', InPlaceOf(1)),
            // A peer at its own limit makes room itself, though others have more to give.
            (&[(1, 'o', Silent), (2, 'w', Idle), (3, 'w', Silent), (4, 'w', Busy)], 'w', InPlaceOf(3)),
            (&[(1, 'w', Busy), (2, 'w', Busy), (3, 'w', Busy)], 'w', Refuse),
            (&[(1, 'o', Silent), (2, 'w', Busy), (3, 'w', Busy), (4, 'w', Busy)], 'w', Refuse),
            (&[(1, 'o', Busy), (2, 'w', Busy), (3, 'w', Busy), (4, 'o', Busy)], 'n', Refuse),
        ];
        for (open, peer, wanted) in cases {
            assert_eq!(admission(open, peer, LIMITS), wanted, "{peer} beside {open:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_enters_only_when_the_one_it_displaces_has_closed() {
        let table = ConnectionTable::new(ConnectionLimits { all_max: 2, each_max: 2 });
        let busy = table.enter('w').await.unwrap();
        let call = busy.calls().begin();
        let silent = table.enter('w').await.unwrap();
        let displaced = silent.displaced();
        let entering = tokio::spawn({
            let table = Arc::clone(&table);
            async move { table.enter('k').await }
        });
        displaced.await;
        tokio::task::yield_now().await;
        assert!(!entering.is_finished(), "its descriptor is still open");
        drop(silent);
        let kubelet = entering.await.unwrap().unwrap();
        let calling = kubelet.calls().begin();
        assert!(table.enter('n').await.is_none(), "both have calls under way");
        assert!(!table.close_silent().await);
        drop((call, calling));
        table.close_every_silent();
        assert!(!busy.close.is_cancelled() && !kubelet.close.is_cancelled(), "both have made a call");
        assert_eq!(busy.calls.activity(), Idle);
        drop((busy, kubelet));
        assert!(table.lock().1.is_empty());
    }
}
