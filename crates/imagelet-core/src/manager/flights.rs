//! One pull for all who ask the same: who asks, who joins, and what becomes of a pull that nobody asks for any more.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    progress::{Broadcast, Listening},
    puller::{Outcome, Pulled, Work},
    queue::{Gate, Ticket},
    request::Compatibility,
};
use crate::{
    image::{ImageSpec, Platform},
    runtime::Progress,
};

pub(super) type Flight = Shared<BoxFuture<'static, Outcome>>;

/// Two pulls with the same key differ in nothing the registry or the store could tell, so one is enough.
///
/// The credentials are in it, by their hashes: nobody ever shares a pull that somebody else's right made possible, and
/// two secrets with the same content share one, each put on record for itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct FlightKey {
    image: ImageSpec,
    platform: Option<Platform>,
    credentials: Vec<String>,
    /// Set where the runtime is told all of the pod: it may let one namespace have what it refuses another.
    namespace: Option<Arc<str>>,
    /// Set where each asker has its own pull, as with the kubelet.
    alone: Option<u64>,
}

/// The pulls under way.
pub(super) struct Flights {
    board: Mutex<Board>,
    /// How long a pull that nobody asks for any more goes on.
    grace: Duration,
}

#[derive(Default)]
struct Board {
    by_key: HashMap<FlightKey, InFlight>,
    next: u64,
    /// Those who keep pulls on in their grace.
    keepers: JoinSet<()>,
}

struct InFlight {
    /// Tells this flight from a later one under the same key.
    number: u64,
    /// The askers own the flight; with the last of them it ends, or after a grace.
    future: WeakShared<BoxFuture<'static, Outcome>>,
    progress: Broadcast,
    askers: usize,
    priority: i32,
    gate: Gate,
    since: Instant,
    ticket: Ticket,
    is_running: bool,
}

/// A flight as it is told to others.
pub(super) struct FlightStatus {
    pub(super) image: String,
    pub(super) askers: usize,
    pub(super) priority: i32,
    /// Since when it waits, or runs.
    pub(super) since: Instant,
    pub(super) ticket: Ticket,
}

/// A new flight, about to begin.
pub(super) struct Departure {
    pub(super) number: u64,
    pub(super) progress: Broadcast,
}

impl Flights {
    pub(super) fn new(grace: Duration) -> Self {
        Self { board: Mutex::default(), grace }
    }

    /// Whether such a pull is under way, so that another asker costs the registry nothing.
    pub(super) fn has(&self, key: &FlightKey) -> bool {
        self.lock().by_key.get(key).is_some_and(|flight| flight.future.upgrade().is_some())
    }

    /// Under which key a pull goes.
    pub(super) fn key(&self, work: &Work, compatibility: Compatibility) -> FlightKey {
        let is_told = work.sandbox.as_ref().is_some_and(|sandbox| sandbox.encoded.is_some());
        FlightKey {
            image: work.image.clone(),
            platform: work.platform.clone(),
            credentials: work.credentials.iter().map(|tracked| tracked.hash.clone()).collect(),
            namespace: is_told.then(|| Arc::clone(&work.tenant)),
            alone: (compatibility.is_kubelet() && !work.caller.is_client()).then(|| self.lock().number()),
        }
    }

    /// Joins the pull under this key, or begins one. `raise` is told of a joiner that outranks all before it, or that is
    /// the first with a wider gate.
    ///
    /// # Errors
    /// Those of `begin`.
    pub(super) fn join<T: Send + 'static, E>(
        self: &Arc<Self>,
        key: FlightKey,
        (priority, gate): (i32, Gate),
        keepsake: Keepsake<T>,
        raise: impl FnOnce(Ticket, i32, Gate),
        begin: impl FnOnce(Departure) -> Result<(Flight, Ticket), E>,
    ) -> Result<Asking<T>, E> {
        let mut board = self.lock();
        let joined = board.by_key.get_mut(&key).and_then(|flight| {
            let future = flight.future.upgrade()?;
            flight.askers += 1;
            let outranks = priority > flight.priority || gate > flight.gate;
            (flight.priority, flight.gate) = (flight.priority.max(priority), flight.gate.max(gate));
            Some((future, flight.progress.clone(), flight.number, outranks.then_some(flight.ticket)))
        });
        if let Some((future, progress, number, outranked)) = joined {
            drop(board);
            if let Some(ticket) = outranked {
                raise(ticket, priority, gate);
            }
            return Ok(self.asking(key, number, future, progress, keepsake));
        }
        let number = board.number();
        let progress = Broadcast::default();
        let (future, ticket) = begin(Departure { number, progress: progress.clone() })?;
        let flight = InFlight {
            number,
            future: future.downgrade().expect("a future that was not polled is not done"),
            progress: progress.clone(),
            askers: 1,
            priority,
            gate,
            since: Instant::now(),
            ticket,
            is_running: false,
        };
        board.by_key.insert(key.clone(), flight);
        drop(board);
        Ok(self.asking(key, number, future, progress, keepsake))
    }

    fn asking<T: Send + 'static>(
        self: &Arc<Self>,
        key: FlightKey,
        number: u64,
        flight: Flight,
        progress: Broadcast,
        keepsake: Keepsake<T>,
    ) -> Asking<T> {
        Asking { flights: Arc::clone(self), key, number, flight: Some(flight), progress, keepsake: Some(keepsake) }
    }

    /// The flight has its turn.
    pub(super) fn take_off(&self, key: &FlightKey, number: u64) {
        if let Some(flight) = self.lock().by_key.get_mut(key)
            && flight.number == number
        {
            flight.is_running = true;
            flight.since = Instant::now();
        }
    }

    /// The flight is over. What is over is not joined: the next asker wants to know how things are then.
    pub(super) fn forget(&self, key: &FlightKey, number: u64) {
        let mut board = self.lock();
        if board.by_key.get(key).is_some_and(|flight| flight.number == number) {
            board.by_key.remove(key);
        }
    }

    /// The pulls under way, those first that have been where they are for longest.
    pub(super) fn status(&self) -> Vec<FlightStatus> {
        let board = self.lock();
        let mut flights: Vec<FlightStatus> = board
            .by_key
            .iter()
            .map(|(key, flight)| FlightStatus {
                image: key.image.image.clone(),
                askers: flight.askers,
                priority: flight.priority,
                since: flight.since,
                ticket: flight.ticket,
            })
            .collect();
        flights.sort_by_key(|flight| (flight.since, flight.ticket));
        flights
    }

    /// An asker went. Answers whether the pull shall be kept on for a while, for nobody.
    fn leave(&self, key: &FlightKey, number: u64) -> bool {
        let mut board = self.lock();
        let Some(flight) = board.by_key.get_mut(key).filter(|flight| flight.number == number) else { return false };
        flight.askers = flight.askers.saturating_sub(1);
        if flight.askers > 0 {
            return false;
        }
        // Who only waits has nothing to lose, and frees its place at once.
        let is_kept = flight.is_running && !self.grace.is_zero();
        if !is_kept {
            board.by_key.remove(key);
        }
        is_kept
    }

    /// The grace is over: without a newcomer so is the pull.
    fn give_up(&self, key: &FlightKey, number: u64) {
        let mut board = self.lock();
        if board.by_key.get(key).is_some_and(|flight| flight.number == number && flight.askers == 0) {
            board.by_key.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Board {
    /// One that no flight had.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// What an asker must see done when its pull succeeds, even if it went away meanwhile. Dropped, it is taken back.
pub(super) struct Keepsake<T> {
    pub(super) kept: T,
    pub(super) conclude: fn(T, Pulled) -> BoxFuture<'static, ()>,
}

/// One asker of a flight. Dropped before the end, it leaves the pull to the others; the last to leave ends it, after
/// the grace if it runs.
pub(super) struct Asking<T: Send + 'static> {
    flights: Arc<Flights>,
    key: FlightKey,
    number: u64,
    /// `None` once it is over.
    flight: Option<Flight>,
    progress: Broadcast,
    keepsake: Option<Keepsake<T>>,
}

impl<T: Send + 'static> Asking<T> {
    /// Waits for the end, and hears of the way there.
    pub(super) async fn outcome(mut self, progress: &Progress) -> (Outcome, T) {
        let _listening: Listening = self.progress.listen(progress);
        // A clone, so that who is dropped here can still hand the flight over.
        let flight = self.flight.clone().expect("it is there until this is over");
        let outcome = flight.await;
        self.flight = None;
        let keepsake = self.keepsake.take().expect("it is there until this is over");
        (outcome, keepsake.kept)
    }
}

impl<T: Send + 'static> Drop for Asking<T> {
    fn drop(&mut self) {
        let Some(flight) = self.flight.take() else { return };
        if !self.flights.leave(&self.key, self.number) {
            return;
        }
        let (Ok(handle), Some(keepsake)) = (Handle::try_current(), self.keepsake.take()) else {
            self.flights.give_up(&self.key, self.number);
            return;
        };
        let (flights, key, number, grace) =
            (Arc::clone(&self.flights), self.key.clone(), self.number, self.flights.grace);
        let keep = async move {
            let ended = timeout(grace, flight).await;
            // Whoever came meanwhile owns the flight now; else it ended above, with the last clone of it.
            flights.give_up(&key, number);
            if let Ok(Ok(pulled)) = ended {
                (keepsake.conclude)(keepsake.kept, pulled).await;
            }
        };
        let mut board = self.flights.lock();
        while board.keepers.try_join_next().is_some() {}
        board.keepers.spawn_on(keep, &handle);
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").field("under_way", &self.lock().by_key.len()).finish_non_exhaustive()
    }
}
