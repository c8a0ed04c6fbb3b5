//! Decides which pull starts next: a bounded queue by priority, then by arrival.
//!
//! While all slots are taken and no pull in them is known to be small, up to [`SMALL_EXTRA_MAX`] pulls of at most
//! [`SMALL_MAX`] run in addition, so that a large image does not delay small images. The pulls of a client with its own
//! limits need neither a slot nor a token of the rate; at most [`UNLIMITED_MAX`] of them run at once. A FIFO queue
//! ignores priority and size, as the kubelet does.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::throttle::Throttle;
use crate::{
    image::ByteSize,
    lock::locked,
    manager::{
        meters,
        status::{PullState, PullTurn, QueuePlace},
    },
    metrics::Metrics,
    text::PlainError,
};

/// The maximum number of waiting pulls. Only a client that requests in a loop reaches it: a node has some hundred pods.
const WAITING_MAX: usize = 10_000;
/// The maximum number of waiting pulls per namespace, so that no client fills the queue.
const WAITING_OF_TENANT_MAX: usize = 1000;
/// The maximum number of small pulls above the slots. Beside one large pull, they get four fifths of the bandwidth.
const SMALL_EXTRA_MAX: usize = 4;
/// The maximum size of a small pull. Beside a large pull that takes half of 50 MB/s, such a pull takes 3 s.
const SMALL_MAX: ByteSize = ByteSize(64 << 20);
/// The maximum number of running pulls that need no slot. It delays no pull of a node with 110 pods, the usual maximum.
const UNLIMITED_MAX: usize = 128;

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) tenant: Arc<str>,
    pub(super) priority: i32,
    pub(super) is_limited: bool,
}

/// The number of a pull, from 1; never reused.
pub(super) type Ticket = u64;

type Rank = (Reverse<i32>, Ticket);

pub(super) struct Scheduler {
    state: Mutex<SchedulerState>,
    metrics: Arc<Metrics>,
}

struct SchedulerState {
    /// `None`: no limit.
    slots: Option<usize>,
    is_fifo: bool,
    throttle: Option<Throttle>,
    last: Ticket,
    waiting: BTreeMap<Rank, Waiting>,
    running: HashMap<Ticket, Running>,
    /// The pull at the head of the queue, and the time at which it gets its token. Only this pull wakes up then.
    alarm: Option<(Ticket, Instant)>,
}

struct Waiting {
    request: Request,
    is_small: bool,
    since: Instant,
    wake: Arc<Notify>,
}

struct Running {
    slot: Slot,
    is_small: bool,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Limited,
    SmallExtra,
    Unlimited,
}

/// The place of a pull in the queue or in a slot, from request to end. A drop frees the place.
pub(super) struct Place {
    scheduler: Arc<Scheduler>,
    pub(super) ticket: Ticket,
    wake: Arc<Notify>,
}

impl Scheduler {
    pub(super) fn new(slots: Option<usize>, is_fifo: bool, throttle: Option<Throttle>, metrics: Arc<Metrics>) -> Self {
        let (waiting, running) = (BTreeMap::new(), HashMap::new());
        let state = SchedulerState { slots, is_fifo, throttle, last: 0, waiting, running, alarm: None };
        Self { state: Mutex::new(state), metrics }
    }

    pub(super) fn enter(self: &Arc<Self>, request: Request) -> Result<Place, PlainError> {
        let mut state = locked(&self.state);
        if state.waiting.len() >= WAITING_MAX {
            return Err(PlainError(format!("{WAITING_MAX} pulls are waiting; the limit is {WAITING_MAX}")));
        }
        let of_tenant = state.waiting.values().filter(|waiting| waiting.request.tenant == request.tenant);
        if of_tenant.count() >= WAITING_OF_TENANT_MAX {
            let what = format!("{WAITING_OF_TENANT_MAX} pulls of the namespace are waiting");
            return Err(PlainError(format!("{what}; the limit is {WAITING_OF_TENANT_MAX}")));
        }
        state.last += 1;
        let ticket = state.last;
        let (now, wake) = (Instant::now(), Arc::new(Notify::new()));
        let rank = state.rank(request.priority, ticket);
        state.waiting.insert(rank, Waiting { request, is_small: false, since: now, wake: Arc::clone(&wake) });
        self.start_all(&mut state, now);
        Ok(Place { scheduler: Arc::clone(self), ticket, wake })
    }

    pub(super) fn states(&self) -> HashMap<Ticket, PullTurn> {
        let state = locked(&self.state);
        let running = |is_limited| move |it: &&Running| (it.slot != Slot::Unlimited) == is_limited;
        let mut ahead = [false, true].map(|is_limited| state.running.values().filter(running(is_limited)).count());
        let waiting = state.waiting.iter().enumerate().map(|(index, ((_, ticket), waiting))| {
            let for_rate = state.alarm.is_some() && waiting.request.is_limited;
            let why = if for_rate { PullState::WaitingForRate } else { PullState::WaitingForSlot };
            let ahead = &mut ahead[usize::from(waiting.request.is_limited)];
            let place = QueuePlace { position: index + 1, behind: *ahead };
            *ahead += 1;
            (*ticket, PullTurn { state: why, since: waiting.since, place: Some(place) })
        });
        let running = state.running.iter().map(|(ticket, running)| {
            (*ticket, PullTurn { state: PullState::Running, since: running.since, place: None })
        });
        waiting.chain(running).collect()
    }

    pub(super) fn is_running(&self, ticket: Ticket) -> bool {
        locked(&self.state).running.contains_key(&ticket)
    }

    /// Adapts a waiting pull to a request that joins: the higher priority counts, and limits only if both have them.
    pub(super) fn raise(&self, ticket: Ticket, priority: i32, is_limited: bool) {
        let mut state = locked(&self.state);
        let Some(rank) = state.rank_of(ticket) else { return };
        let Some(mut waiting) = state.waiting.remove(&rank) else { return };
        waiting.request.priority = waiting.request.priority.max(priority);
        waiting.request.is_limited &= is_limited;
        let rank = state.rank(waiting.request.priority, ticket);
        state.waiting.insert(rank, waiting);
        self.start_all(&mut state, Instant::now());
    }

    /// Starts all permitted pulls. If the next pull waits only for a token, sets its alarm.
    fn start_all(&self, state: &mut SchedulerState, now: Instant) {
        let mut alarm = None;
        while let Some((rank, slot)) = state.next_start() {
            if slot != Slot::Unlimited
                && let Some(throttle) = &mut state.throttle
                && !throttle.try_take(now)
            {
                alarm = throttle.ready_at(now).map(|at| (rank.1, at));
                break;
            }
            let Some(started) = state.waiting.remove(&rank) else { break };
            state.running.insert(rank.1, Running { slot, is_small: started.is_small, since: now });
            let waited = now.saturating_duration_since(started.since);
            self.metrics.observe(&meters::WAIT_SECONDS, &[], waited.as_secs_f64());
            started.wake.notify_one();
        }
        self.metrics.set(&meters::WAITING, &[], state.waiting.len() as f64);
        self.metrics.set(&meters::RUNNING, &[], state.running.len() as f64);
        if alarm != state.alarm {
            state.alarm = alarm;
            let head = alarm.and_then(|(ticket, _)| state.rank_of(ticket)).and_then(|rank| state.waiting.get(&rank));
            head.inspect(|head| head.wake.notify_one());
        }
    }
}

impl SchedulerState {
    fn rank(&self, priority: i32, ticket: Ticket) -> Rank {
        (Reverse(if self.is_fifo { 0 } else { priority }), ticket)
    }

    fn next_start(&self) -> Option<(Rank, Slot)> {
        let first = |suits: fn(&Waiting) -> bool| self.waiting.iter().find(|(_, it)| suits(it)).map(|(rank, _)| *rank);
        let running = |slot| self.running.values().filter(move |running| running.slot == slot);
        if running(Slot::Unlimited).count() < UNLIMITED_MAX
            && let Some(rank) = first(|waiting| !waiting.request.is_limited)
        {
            return Some((rank, Slot::Unlimited));
        }
        if self.slots.is_none_or(|slots| running(Slot::Limited).count() < slots) {
            return first(|waiting| waiting.request.is_limited).map(|rank| (rank, Slot::Limited));
        }
        let is_full = running(Slot::SmallExtra).count() >= SMALL_EXTRA_MAX;
        if self.is_fifo || is_full || running(Slot::Limited).any(|running| running.is_small) {
            return None;
        }
        first(|waiting| waiting.request.is_limited && waiting.is_small).map(|rank| (rank, Slot::SmallExtra))
    }

    fn rank_of(&self, ticket: Ticket) -> Option<Rank> {
        self.waiting.keys().find(|rank| rank.1 == ticket).copied()
    }
}

impl Place {
    pub(super) async fn turn(&self) {
        loop {
            let alarm = {
                let (mut state, now) = (locked(&self.scheduler.state), Instant::now());
                if state.alarm.is_some_and(|(_, at)| at <= now) {
                    self.scheduler.start_all(&mut state, now);
                }
                if state.running.contains_key(&self.ticket) {
                    return;
                }
                state.alarm.filter(|(ticket, _)| *ticket == self.ticket).map(|(_, at)| at)
            };
            let woken = self.wake.notified();
            match alarm {
                Some(at) => drop(timeout_at(at, woken).await),
                None => woken.await,
            }
        }
    }

    pub(super) fn set_size(&self, size: ByteSize) {
        let mut state = locked(&self.scheduler.state);
        if let Some(rank) = state.rank_of(self.ticket)
            && let Some(waiting) = state.waiting.get_mut(&rank)
        {
            waiting.is_small = size <= SMALL_MAX;
            self.scheduler.start_all(&mut state, Instant::now());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = locked(&self.scheduler.state);
        if state.running.remove(&self.ticket).is_none()
            && let Some(rank) = state.rank_of(self.ticket)
        {
            state.waiting.remove(&rank);
        }
        self.scheduler.start_all(&mut state, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_running(place: &Place) -> bool {
        place.scheduler.is_running(place.ticket)
    }

    fn scheduler(slots: usize, is_fifo: bool) -> Arc<Scheduler> {
        Arc::new(Scheduler::new(Some(slots), is_fifo, None, Arc::default()))
    }

    fn enter(scheduler: &Arc<Scheduler>, priority: i32) -> Place {
        scheduler.enter(Request { tenant: "a".into(), priority, is_limited: true }).expect("there is room")
    }

    /// The order in which a single slot serves them.
    fn served(scheduler: &Scheduler, mut places: Vec<(usize, Place)>) -> Vec<usize> {
        let mut order = Vec::new();
        while !places.is_empty() {
            assert_eq!(locked(&scheduler.state).running.len(), 1, "one slot is one pull");
            let at = places.iter().position(|(_, place)| is_running(place)).expect("one runs");
            order.push(places.remove(at).0);
        }
        order
    }

    #[test]
    fn turns_go_by_priority_then_arrival_and_by_arrival_alone_for_the_kubelet() {
        for (is_fifo, order) in [(false, [0, 2, 5, 1, 4, 3]), (true, [0, 1, 2, 3, 4, 5])] {
            let scheduler = scheduler(1, is_fifo);
            let places: Vec<_> =
                [0, 0, 5, -1, 0, 5].into_iter().map(|priority| enter(&scheduler, priority)).enumerate().collect();
            let states = scheduler.states();
            let mut positions: Vec<_> =
                places.iter().map(|(at, place)| (states[&place.ticket].place.map(|it| it.position), *at)).collect();
            positions.sort_unstable();
            assert_eq!(positions.iter().map(|(_, at)| *at).collect::<Vec<_>>(), order, "positions are kept");
            assert_eq!(served(&scheduler, places), order);
        }
    }

    #[test]
    fn small_pulls_start_beside_slots_that_are_taken_and_no_more_than_the_limit() {
        let scheduler = scheduler(1, false);
        let large = enter(&scheduler, 0);
        let places: Vec<Place> = (0..6).map(|_| enter(&scheduler, 0)).collect();
        places[0].set_size(ByteSize(SMALL_MAX.0 + 1));
        places[1..].iter().for_each(|place| place.set_size(SMALL_MAX));
        let running = |places: &[Place]| places.iter().map(is_running).collect::<Vec<_>>();
        assert_eq!(running(&places), [false, true, true, true, true, false]);
        drop(large);
        assert!(is_running(&places[0]), "the slot is the first one's");
        // The slot is taken by a small one now: what is small waits for it as all do.
        let mut places = places;
        drop(places.drain(..5));
        assert!(is_running(&places[0]));
        let next = enter(&scheduler, 0);
        next.set_size(ByteSize(1));
        assert!(!is_running(&next));
    }

    #[test]
    fn pulls_without_limits_take_no_slot_and_are_bounded() {
        let scheduler = scheduler(1, false);
        let unlimited = || Request { tenant: "a".into(), priority: 0, is_limited: false };
        let places: Vec<Place> = (0..=UNLIMITED_MAX).map(|_| scheduler.enter(unlimited()).expect("room")).collect();
        assert_eq!(places.iter().filter(|place| is_running(place)).count(), UNLIMITED_MAX);
        let limited = [(); 2].map(|()| enter(&scheduler, 0));
        assert!(is_running(&limited[0]));
        let states = scheduler.states();
        let behind = |place: &Place| states[&place.ticket].place.map(|it| it.behind);
        assert_eq!((behind(&places[UNLIMITED_MAX]), behind(&limited[1])), (Some(UNLIMITED_MAX), Some(1)));
    }

    #[test]
    fn one_namespace_does_not_fill_the_queue() {
        let scheduler = scheduler(1, false);
        let _places: Vec<Place> = (0..=WAITING_OF_TENANT_MAX).map(|_| enter(&scheduler, 0)).collect();
        let of = |tenant: &str| scheduler.enter(Request { tenant: tenant.into(), priority: 0, is_limited: true });
        let refused = of("a").err().expect("a thousand wait").to_string();
        assert_eq!(refused, "1000 pulls of the namespace are waiting; the limit is 1000");
        assert!(of("b").is_ok());
    }
}
