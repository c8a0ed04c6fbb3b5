//! The open connections of one listener: how many each peer has, which of them is closed for the next one, and how many
//! calls run on them.
//!
//! A connection with a running call is never closed for another. Of the others the peer with the most connections loses
//! one first, a connection that never made a call before one that did, the oldest first.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub all: usize,
    pub each: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub open: Limit,
    pub calls: Limit,
}

/// Activity of a connection; the variants that are closed first come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Activity {
    /// No complete call yet.
    Silent,
    /// All its calls have ended.
    Idle,
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Enter,
    InPlaceOf(u64),
    /// The limit is reached, and every connection has a running call.
    Refuse,
}

/// Decides on one more connection of `peer`; `open` is in order of age, the oldest first.
fn admission<P: Copy + Eq>(open: &[(u64, P, Activity)], peer: P, limit: Limit) -> Admission {
    let number_of = |peer: P| open.iter().filter(|(_, of, _)| *of == peer).count();
    let is_peer_full = number_of(peer) >= limit.each;
    if !is_peer_full && open.len() < limit.all {
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

#[derive(Debug)]
struct Connection<P> {
    peer: P,
    calls: AtomicUsize,
    was_called: AtomicBool,
    close: CancellationToken,
    closed: CancellationToken,
}

impl<P> Connection<P> {
    fn activity(&self) -> Activity {
        match (self.calls.load(Ordering::Relaxed), self.was_called.load(Ordering::Relaxed)) {
            (1.., _) => Activity::Busy,
            (0, true) => Activity::Idle,
            (0, false) => Activity::Silent,
        }
    }
}

type Open<P> = BTreeMap<u64, Arc<Connection<P>>>;

#[derive(Debug)]
pub(crate) struct ConnectionTable<P> {
    open: Mutex<(u64, Open<P>)>,
    limits: ConnectionLimits,
}

impl<P: Copy + Eq> ConnectionTable<P> {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { open: Mutex::new((0, BTreeMap::new())), limits })
    }

    /// Adds a connection; at the limit another one closes first. `None`: every other one is busy.
    pub(crate) async fn enter(self: &Arc<Self>, peer: P) -> Option<OpenConnection<P>> {
        loop {
            let closed = {
                let (next, open) = &mut *self.lock();
                match admission(&listed(open), peer, self.limits.open) {
                    Admission::Enter => {
                        let number = *next;
                        *next += 1;
                        let connection = Arc::new(Connection {
                            peer,
                            calls: AtomicUsize::new(0),
                            was_called: AtomicBool::new(false),
                            close: CancellationToken::new(),
                            closed: CancellationToken::new(),
                        });
                        open.insert(number, Arc::clone(&connection));
                        let calls = Calls { table: Arc::clone(self), connection };
                        return Some(OpenConnection { number, calls });
                    }
                    Admission::InPlaceOf(number) => close(open, number),
                    Admission::Refuse => return None,
                }
            };
            closed?.cancelled().await;
        }
    }

    /// Closes a connection without a call yet, and waits until its descriptor is free. `false` without one.
    pub(crate) async fn close_silent(&self) -> bool {
        let closed = {
            let open = &self.lock().1;
            let listed = listed(open);
            let number_of = |peer: P| listed.iter().filter(|(_, of, _)| *of == peer).count();
            let silent = listed.iter().filter(|(_, _, activity)| *activity == Activity::Silent);
            first_to_close(silent, number_of).and_then(|number| close(open, number))
        };
        let Some(closed) = closed else { return false };
        closed.cancelled().await;
        true
    }
}

impl<P> ConnectionTable<P> {
    /// Closes every connection without a call yet, because no more calls are accepted.
    pub(crate) fn close_every_silent(&self) {
        let silent = |connection: &&Arc<Connection<P>>| connection.activity() == Activity::Silent;
        self.lock().1.values().filter(silent).for_each(|connection| connection.close.cancel());
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Open<P>)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn listed<P: Copy>(open: &Open<P>) -> Vec<(u64, P, Activity)> {
    open.iter().map(|(number, connection)| (*number, connection.peer, connection.activity())).collect()
}

/// Closes a connection; the returned token is cancelled once it is closed.
fn close<P>(open: &Open<P>, number: u64) -> Option<CancellationToken> {
    let connection = open.get(&number)?;
    connection.close.cancel();
    Some(connection.closed.clone())
}

/// An open connection. Drop it after the stream: that removes it from the table.
#[derive(Debug)]
pub(crate) struct OpenConnection<P> {
    number: u64,
    calls: Calls<P>,
}

impl<P> OpenConnection<P> {
    pub(crate) fn calls(&self) -> Calls<P> {
        self.calls.clone()
    }

    /// Completes when the connection must close for another one.
    pub(crate) fn displaced(&self) -> impl Future<Output = ()> + Send + use<P> {
        self.calls.connection.close.clone().cancelled_owned()
    }
}

impl<P> Drop for OpenConnection<P> {
    fn drop(&mut self) {
        self.calls.table.lock().1.remove(&self.number);
        self.calls.connection.closed.cancel();
    }
}

#[derive(Debug)]
pub(crate) struct Calls<P> {
    table: Arc<ConnectionTable<P>>,
    connection: Arc<Connection<P>>,
}

impl<P> Clone for Calls<P> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), connection: Arc::clone(&self.connection) }
    }
}

impl<P: Copy + Eq> Calls<P> {
    /// Starts a call, which runs until the returned value is dropped. `None`: its peer or the listener is at the limit.
    pub(crate) fn begin(&self) -> Option<RunningCall<P>> {
        let (open, limit) = (self.table.lock(), self.table.limits.calls);
        let (mut all, mut own) = (0, 0);
        for connection in open.1.values() {
            let calls = connection.calls.load(Ordering::Relaxed);
            all += calls;
            own += if connection.peer == self.connection.peer { calls } else { 0 };
        }
        self.connection.was_called.store(true, Ordering::Relaxed);
        if all >= limit.all || own >= limit.each {
            return None;
        }
        self.connection.calls.fetch_add(1, Ordering::Relaxed);
        Some(RunningCall(Arc::clone(&self.connection)))
    }
}

/// A call, until its response is read.
#[derive(Debug)]
pub(crate) struct RunningCall<P>(Arc<Connection<P>>);

impl<P: Send + Sync + 'static> RunningCall<P> {
    /// Ends the call with the body of the response.
    pub(crate) fn until_read<B: Body>(self, body: B) -> impl Body<Data = B::Data, Error = B::Error> {
        body.map_frame(move |frame| {
            let _ = &self;
            frame
        })
    }
}

impl<P> Drop for RunningCall<P> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Activity::{Busy, Idle, Silent},
        Admission::{Enter, InPlaceOf, Refuse},
        *,
    };

    const LIMITS: ConnectionLimits =
        ConnectionLimits { open: Limit { all: 4, each: 3 }, calls: Limit { all: 3, each: 2 } };

    /// Open connections, the new peer, the decision.
    type Case = (&'static [(u64, char, Activity)], char, Admission);

    #[test]
    fn the_peer_with_the_most_connections_makes_room_and_no_call_under_way_is_cut() {
        let cases: [Case; 11] = [
            (&[], 'k', Enter),
            (&[(1, 'w', Silent), (2, 'w', Busy), (3, 'k', Idle)], 'k', Enter),
            // At the limit the largest peer loses one.
            (&[(1, 'k', Silent), (2, 'w', Idle), (3, 'w', Idle), (4, 'w', Idle)], 'k', InPlaceOf(2)),
            (&[(1, 'k', Idle), (2, 'w', Idle), (3, 'w', Idle), (4, 'w', Silent)], 'n', InPlaceOf(4)),
            (&[(1, 'k', Idle), (2, 'w', Busy), (3, 'w', Busy), (4, 'w', Silent)], 'n', InPlaceOf(4)),
            // With equal peers, silent before idle, then by age.
            (&[(1, 'a', Idle), (2, 'b', Silent), (3, 'c', Silent), (4, 'd', Idle)], 'n', InPlaceOf(2)),
            (&[(1, 'a', Idle), (2, 'b', Idle), (3, 'c', Busy), (4, 'd', Idle)], 'n', InPlaceOf(1)),
            // A peer at its own limit closes one of its own, although others have more.
            (&[(1, 'o', Silent), (2, 'w', Idle), (3, 'w', Silent), (4, 'w', Busy)], 'w', InPlaceOf(3)),
            (&[(1, 'w', Busy), (2, 'w', Busy), (3, 'w', Busy)], 'w', Refuse),
            (&[(1, 'o', Silent), (2, 'w', Busy), (3, 'w', Busy), (4, 'w', Busy)], 'w', Refuse),
            (&[(1, 'o', Busy), (2, 'w', Busy), (3, 'w', Busy), (4, 'o', Busy)], 'n', Refuse),
        ];
        for (open, peer, wanted) in cases {
            assert_eq!(admission(open, peer, LIMITS.open), wanted, "{peer} beside {open:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_enters_only_when_the_one_it_displaces_has_closed() {
        let table = ConnectionTable::new(ConnectionLimits { open: Limit { all: 2, each: 2 }, ..LIMITS });
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
        let connections = [&busy, &kubelet].map(|open| &open.calls.connection);
        assert!(connections.iter().all(|open| !open.close.is_cancelled()), "both have made a call");
        assert_eq!(connections[0].activity(), Idle);
        drop((busy, kubelet));
        assert!(table.lock().1.is_empty());
    }

    #[tokio::test]
    async fn no_peer_takes_the_calls_of_others() {
        let table = ConnectionTable::new(LIMITS);
        let (one, two) = (table.enter('w').await.unwrap().calls(), table.enter('w').await.unwrap());
        drop(one.begin());
        let (third, wild) = (table.enter('w').await.unwrap(), two.calls());
        let running = [wild.begin().unwrap(), wild.begin().unwrap()];
        assert!(wild.begin().is_none() && third.calls().begin().is_none(), "the peer has all it may have");
        let other = table.enter('k').await.unwrap();
        let its = other.calls().begin();
        assert!(its.is_some() && other.calls().begin().is_none(), "all are taken");
        drop(running);
        assert!(wild.begin().is_some());
    }
}
