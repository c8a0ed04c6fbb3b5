//! Lets pulls begin in turn, as many at once and as often as is set.

mod line;
#[cfg(test)]
mod line_tests;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use self::line::Line;
pub(crate) use self::line::{Gate, Manner, Newcomer, Size, Ticket};
use super::{meters::QueueMeters, throttle::Throttle};

/// Most pulls that wait. A node has some hundred pods; past this something asks in a loop.
const WAITING_MAX: usize = 10_000;
/// Positions are foreseen exactly this far.
const POSITIONS_EXACT_MAX: usize = 128;

/// Where pulls wait for their turn.
pub(crate) struct Queue {
    state: Mutex<State>,
    meters: QueueMeters,
}

struct State {
    line: Line,
    /// Waited at; `None`: nobody waits for a rate here.
    throttle: Option<Throttle>,
    /// Whether the last look found the head waiting for a token alone.
    lacks_token: bool,
    waiters: HashMap<Ticket, Waiter>,
    /// Who looks again at that time, and only that one: with hundreds waiting, not all shall wake for each token.
    alarm: Option<(Ticket, Instant)>,
}

struct Waiter {
    wake: Arc<Notify>,
    since: Instant,
}

/// There is no room to wait.
#[derive(Debug, thiserror::Error)]
#[error("{WAITING_MAX} pulls wait already")]
pub(crate) struct Full;

/// Where a pull stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It waits, as the so manieth from one on, and whether for a token alone.
    Waiting { position: usize, for_rate: bool },
    /// It has its turn.
    Running,
}

/// A pull's place, from the moment it comes until it is over. Dropped, it is free for the next.
pub(crate) struct Place {
    queue: Arc<Queue>,
    ticket: Ticket,
    wake: Arc<Notify>,
}

impl Queue {
    pub(crate) fn new(manner: Manner, slots: Option<usize>, throttle: Option<Throttle>, meters: QueueMeters) -> Self {
        let state = State {
            line: Line::new(manner, slots),
            throttle,
            lacks_token: false,
            waiters: HashMap::new(),
            alarm: None,
        };
        Self { state: Mutex::new(state), meters }
    }

    /// Stands in line; where a place is free, the turn has come already.
    pub(crate) fn enter(self: &Arc<Self>, newcomer: Newcomer) -> Result<Arc<Place>, Full> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.line.counts().0 >= WAITING_MAX {
            return Err(Full);
        }
        let ticket = state.line.arrive(newcomer, now);
        let wake = Arc::new(Notify::new());
        state.waiters.insert(ticket, Waiter { wake: Arc::clone(&wake), since: now });
        self.pump(&mut state, now);
        Ok(Arc::new(Place { queue: Arc::clone(self), ticket, wake }))
    }

    /// How all stand, by ticket.
    pub(crate) fn standings(&self) -> HashMap<Ticket, Standing> {
        let now = Instant::now();
        let state = self.lock();
        let order = state.line.order(now, POSITIONS_EXACT_MAX);
        let waiting = order.into_iter().enumerate().map(|(index, ticket)| {
            let for_rate = state.lacks_token && !state.line.is_free(ticket) && state.line.head(now).is_some();
            (ticket, Standing::Waiting { position: index + 1, for_rate })
        });
        let mut standings: HashMap<Ticket, Standing> = waiting.collect();
        standings.extend(state.line.running().map(|ticket| (ticket, Standing::Running)));
        standings
    }

    /// Raises the rank of a pull that waits, or widens its gate.
    pub(crate) fn raise(&self, ticket: Ticket, priority: i32, gate: Gate) {
        let mut state = self.lock();
        state.line.raise(ticket, priority, gate);
        self.pump(&mut state, Instant::now());
    }

    /// Lets all begin who may, and sees to it that somebody looks again when that changes by itself.
    fn pump(&self, state: &mut State, now: Instant) {
        state.lacks_token = false;
        let mut token_at = None;
        while let Some(ticket) = state.line.start_free(now) {
            self.let_go(state, ticket, now);
        }
        while state.line.head(now).is_some() {
            if let Some(throttle) = &mut state.throttle
                && !throttle.try_take(now)
            {
                token_at = throttle.ready_at(now);
                state.lacks_token = true;
                break;
            }
            let Some(ticket) = state.line.start(now) else { break };
            self.let_go(state, ticket, now);
        }
        let (waiting, running) = state.line.counts();
        self.meters.stand(waiting, running);
        let changes = [token_at, state.line.changes_at(now)].into_iter().flatten().min();
        let alarm = changes.and_then(|at| state.line.oldest().map(|ticket| (ticket, at)));
        if alarm != state.alarm {
            state.alarm = alarm;
            if let Some(waiter) = alarm.and_then(|(ticket, _)| state.waiters.get(&ticket)) {
                waiter.wake.notify_one();
            }
        }
    }

    /// Wakes one whose turn has come.
    fn let_go(&self, state: &mut State, ticket: Ticket, now: Instant) {
        if let Some(waiter) = state.waiters.remove(&ticket) {
            self.meters.waited(now.saturating_duration_since(waiter.since));
            waiter.wake.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whether slots and rate are none of its concern.
    pub(crate) fn is_free(&self) -> bool {
        self.queue.lock().line.is_free(self.ticket)
    }

    /// Whether its turn has come.
    pub(crate) fn has_turn(&self) -> bool {
        self.queue.lock().line.is_running(self.ticket)
    }

    /// Waits until its turn has come.
    pub(crate) async fn turn(&self) {
        loop {
            let now = Instant::now();
            let alarm = {
                let mut state = self.queue.lock();
                if state.alarm.is_some_and(|(_, at)| at <= now) {
                    self.queue.pump(&mut state, now);
                }
                if state.line.is_running(self.ticket) {
                    return;
                }
                state.alarm.filter(|(ticket, _)| *ticket == self.ticket).map(|(_, at)| at)
            };
            match alarm {
                Some(at) => {
                    tokio::select! {
                        () = self.wake.notified() => {}
                        () = sleep_until(at) => {}
                    }
                }
                None => self.wake.notified().await,
            }
        }
    }

    /// Leaves its slot to the next: the pull trickles.
    pub(crate) fn set_aside(&self) {
        let mut state = self.queue.lock();
        state.line.set_aside(self.ticket);
        self.queue.pump(&mut state, Instant::now());
    }

    /// Tells what is to be fetched, or what is left of it.
    pub(crate) fn resize(&self, size: Size) {
        let mut state = self.queue.lock();
        state.line.resize(self.ticket, size);
        self.queue.pump(&mut state, Instant::now());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.waiters.remove(&self.ticket);
        state.line.leave(self.ticket);
        self.queue.pump(&mut state, Instant::now());
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, running) = self.lock().line.counts();
        f.debug_struct("Queue").field("waiting", &waiting).field("running", &running).finish_non_exhaustive()
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
