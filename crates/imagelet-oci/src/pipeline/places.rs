//! Places for layers: how many are fetched at once, and which layer that waits gets a place that is free.
//!
//! A pull has a bound of its own, but a hundred pulls may be under way, and what each layer holds (connections, windows to
//! inflate into, files) adds up. Half of the places are for the first layer of a pull, so that a pull begins however many
//! layers of others are on their way; no registry and no tenant has more than three quarters of either half. A free place
//! goes to the tenant, then the registry, then the pull that has the fewest.
//!
//! A layer of a pull that trickles gives its place to one that waits, and goes on by `Range` when a place is free again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use imagelet_core::{
    credentials::Credential,
    runtime::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use crate::unpack::LAYERS_MAX;

/// Places for the first layer of a pull, and as many for its others. The memory of unpacking is shared out for so many
/// layers, and for those that gave their place away; any link is full long before.
const PLACES_MAX: usize = 24;
const SHARE_MAX: usize = 18;
/// Most layers that have given their place away and wait for another. Each keeps two threads and its staging folder.
const PARKED_MAX: usize = LAYERS_MAX - 2 * PLACES_MAX;
/// A layer that got no place again after this long is given up, with what it holds.
const PARKED_FOR_MAX: Duration = Duration::from_mins(5);

/// The side that asks for images: pods of a namespace with a credential, or a caller with one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) namespace: String,
    pub(crate) credential: Option<Credential>,
}

/// For what a place is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) registry: String,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) pull: u64,
}

/// Which half of the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Half {
    First,
    Further,
}

/// The decisions.
#[derive(Debug, Default)]
struct Line {
    next: u64,
    held: HashMap<u64, (Claim, Half)>,
    /// In the order of asking; with each whether it had a place and gave it away.
    waiting: BTreeMap<u64, (Claim, bool)>,
}

impl Line {
    fn arrive(&mut self, claim: Claim) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.waiting.insert(ticket, (claim, false));
        ticket
    }

    fn leave(&mut self, ticket: u64) {
        self.held.remove(&ticket);
        self.waiting.remove(&ticket);
    }

    /// Gives the next free place to the layer whose turn it is.
    fn start(&mut self) -> Option<u64> {
        let (ticket, half) = self.next_claim()?;
        let (claim, _) = self.waiting.remove(&ticket)?;
        self.held.insert(ticket, (claim, half));
        Some(ticket)
    }

    fn next_claim(&self) -> Option<(u64, Half)> {
        let candidates = self.waiting.iter().filter_map(|(ticket, (claim, is_parked))| {
            let half = self.half(claim)?;
            let held = |same: &dyn Fn(&Claim) -> bool| self.count(|held, _| same(held));
            let tenant = held(&|other| other.tenant == claim.tenant);
            let registry = held(&|other| other.registry == claim.registry);
            let pull = held(&|other| other.pull == claim.pull);
            Some(((*is_parked, half, tenant, registry, pull, *ticket), half))
        });
        candidates.min_by_key(|(rank, _)| *rank).map(|((.., ticket), half)| (ticket, half))
    }

    fn half(&self, claim: &Claim) -> Option<Half> {
        let has_first = self.count(|held, half| held.pull == claim.pull && half == Half::First) > 0;
        let halves = if has_first { &[Half::Further][..] } else { &[Half::First, Half::Further] };
        halves.iter().copied().find(|wanted| {
            self.count(|_, half| half == *wanted) < PLACES_MAX
                && self.count(|held, half| half == *wanted && held.registry == claim.registry) < SHARE_MAX
                && self.count(|held, half| half == *wanted && held.tenant == claim.tenant) < SHARE_MAX
        })
    }

    fn count(&self, counts: impl Fn(&Claim, Half) -> bool) -> usize {
        self.held.values().filter(|(claim, half)| counts(claim, *half)).count()
    }

    /// Whether a layer that waits would get a place if this one gave its own away.
    fn is_wanted(&mut self, ticket: u64) -> bool {
        let Some(own) = self.held.remove(&ticket) else { return false };
        let is_wanted = self.next_claim().is_some();
        self.held.insert(ticket, own);
        is_wanted
    }

    /// Takes the place from a layer, which waits behind all that never had one. `false`: too many do.
    fn park(&mut self, ticket: u64) -> bool {
        if self.waiting.values().filter(|(_, is_parked)| *is_parked).count() >= PARKED_MAX {
            return false;
        }
        let Some((claim, _)) = self.held.remove(&ticket) else { return false };
        self.waiting.insert(ticket, (claim, true));
        true
    }
}

/// All places of an engine.
#[derive(Debug, Default)]
pub(crate) struct Places {
    state: Mutex<PlacesState>,
}

#[derive(Debug, Default)]
struct PlacesState {
    line: Line,
    wakers: HashMap<u64, Arc<Notify>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    ticket: u64,
    wake: Arc<Notify>,
    since: Mutex<Instant>,
}

impl Places {
    pub(crate) async fn place(self: &Arc<Self>, claim: Claim) -> Place {
        let wake = Arc::new(Notify::new());
        let ticket = {
            let mut state = self.lock();
            let ticket = state.line.arrive(claim);
            state.wakers.insert(ticket, Arc::clone(&wake));
            state.pump();
            ticket
        };
        // Made before the wait: dropped in it, it leaves the line.
        let place = Place { places: Arc::clone(self), ticket, wake, since: Mutex::new(Instant::now()) };
        place.turn().await;
        place
    }

    fn lock(&self) -> MutexGuard<'_, PlacesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlacesState {
    fn pump(&mut self) {
        while let Some(ticket) = self.line.start() {
            if let Some(wake) = self.wakers.get(&ticket) {
                wake.notify_one();
            }
        }
    }
}

impl Place {
    pub(crate) fn held_for(&self) -> Duration {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Gives the place to another layer, where one waits for it. The layer then waits for its next one in
    /// [`Place::again`].
    pub(crate) fn yields(&self) -> bool {
        let mut state = self.places.lock();
        let gone = state.line.is_wanted(self.ticket) && state.line.park(self.ticket);
        if gone {
            state.pump();
        }
        gone
    }

    /// Waits for the next place after [`Place::yields`].
    pub(crate) async fn again(&self) -> Result<(), RuntimeError> {
        timeout(PARKED_FOR_MAX, self.turn()).await.map_err(|_| {
            let minutes = PARKED_FOR_MAX.as_secs() / 60;
            let message = format!("the pull trickles, and other layers had all places for {minutes} min");
            let fault = Fault::new(ErrorClass::TimedOut, Stage::Queue);
            RuntimeError::new(RuntimeErrorKind::TimedOut, message).with_fault(fault)
        })
    }

    /// Waits until the layer has its place.
    async fn turn(&self) {
        while !self.places.lock().line.held.contains_key(&self.ticket) {
            self.wake.notified().await;
        }
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        state.wakers.remove(&self.ticket);
        state.line.leave(self.ticket);
        state.pump();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn claim(registry: &str, namespace: &str, pull: u64) -> Claim {
        let tenant = Arc::new(Tenant { namespace: namespace.into(), credential: None });
        Claim { registry: registry.into(), tenant, pull }
    }

    type Of = fn(u64) -> Claim;

    /// So many pulls that each want so many places; all that may begin do.
    fn flood(line: &mut Line, pulls: u64, layers: usize, of: impl Fn(u64) -> Claim) {
        for pull in 0..pulls {
            for _ in 0..layers {
                line.arrive(of(pull));
            }
            while line.start().is_some() {}
        }
    }

    #[test]
    fn sixteen_pulls_that_hold_all_they_can_do_not_keep_another_from_beginning() {
        let floods: [(&str, Of); 4] = [
            ("one tenant, one registry", |pull| claim("r.io", "a", pull)),
            ("a tenant each", |pull| claim("r.io", &format!("t{pull}"), pull)),
            ("a registry each", |pull| claim(&format!("r{pull}.io"), "a", pull)),
            ("all different", |pull| claim(&format!("r{pull}.io"), &format!("t{pull}"), pull)),
        ];
        for (what, of) in floods {
            for layers in [1, 4, 64] {
                for (registry, tenant) in [("r.io", "a"), ("r.io", "b"), ("s.io", "a"), ("s.io", "b")] {
                    let mut line = Line::default();
                    flood(&mut line, 16, layers, of);
                    let ticket = line.arrive(claim(registry, tenant, 99));
                    assert_eq!(line.start(), Some(ticket), "{what}, {layers} layers each, then {tenant} at {registry}");
                }
            }
        }
    }

    #[test]
    fn no_registry_and_no_tenant_has_all_places_and_all_together_keep_to_the_bound() {
        let cases: [(&str, Of, usize); 4] = [
            ("one pull", |_| claim("r.io", "a", 1), 1 + SHARE_MAX),
            ("one of each", |pull| claim("r.io", "a", pull), 2 * SHARE_MAX),
            ("one registry", |pull| claim("r.io", &format!("t{pull}"), pull), 2 * SHARE_MAX),
            ("all different", |pull| claim(&format!("r{pull}.io"), &format!("t{pull}"), pull), 2 * PLACES_MAX),
        ];
        for (what, of, bound) in cases {
            let mut line = Line::default();
            flood(&mut line, 200, 4, of);
            assert_eq!(line.held.len(), bound, "{what}");
            let held: Vec<u64> = line.held.keys().copied().collect();
            for ticket in held {
                line.leave(ticket);
            }
            assert!(line.start().is_some(), "{what}: what is given back is used");
        }
    }

    #[test]
    fn a_free_place_goes_to_the_tenant_then_the_registry_then_the_pull_that_has_fewest() {
        let mut line = Line::default();
        flood(&mut line, 40, 4, |pull| claim("r.io", "busy", pull));
        flood(&mut line, 40, 4, |pull| claim("s.io", "other", 100 + pull));
        let (many, few) = (line.arrive(claim("r.io", "busy", 1)), line.arrive(claim("q.io", "new", 999)));
        let held = |line: &Line, tenant: &str| line.count(|claim, _| claim.tenant.namespace == tenant);
        let rest = 2 * (PLACES_MAX - SHARE_MAX);
        assert_eq!((held(&line, "busy"), held(&line, "other")), (2 * SHARE_MAX, rest), "the rest is the other's");
        let gone = *line.held.iter().find(|(_, (claim, half))| claim.pull == 1 && *half == Half::First).unwrap().0;
        line.leave(gone);
        assert_eq!(line.start(), Some(few), "not {many}");
    }

    #[test]
    fn a_place_is_given_away_only_where_another_can_use_it_and_taken_up_behind_those_that_never_had_one() {
        let mut line = Line::default();
        let slow = line.arrive(claim("r.io", "a", 0));
        line.start().expect("all are free");
        assert!(!line.is_wanted(slow), "nothing waits");
        flood(&mut line, 60, 1, |pull| claim("r.io", "a", 1 + pull));
        assert!(line.is_wanted(slow));
        assert!(line.park(slow));
        let next = line.start().expect("the place is free");
        assert_ne!(next, slow);
        let later = line.arrive(claim("r.io", "a", 99));
        let order: Vec<u64> = std::iter::from_fn(|| {
            let running = *line.held.keys().next()?;
            line.leave(running);
            line.start()
        })
        .collect();
        let place = |ticket| order.iter().position(|other| *other == ticket).expect("it gets a place in the end");
        assert!(place(later) < place(slow), "{order:?}");
    }

    #[test]
    fn no_more_layers_are_parked_than_their_threads_allow() {
        let mut line = Line::default();
        let mut parked = 0;
        for number in 0..200 {
            let ticket = line.arrive(claim("r.io", &format!("t{number}"), number));
            while line.start().is_some() {}
            parked += usize::from(line.park(ticket));
        }
        // Those that found no other place in the meantime.
        let waiting = line.waiting.values().filter(|(_, is_parked)| *is_parked).count();
        assert!(waiting <= PARKED_MAX && parked > 0, "{waiting} of {parked}");
    }

    // Without a runtime: in one, a task that does not pause is soon made to wait for anything.
    #[test]
    fn a_layer_that_stops_waiting_leaves_the_line() {
        let places = Arc::new(Places::default());
        let of = |pull| claim("r.io", "a", pull);
        let held: Vec<Place> = (0..100).map_while(|pull| places.place(of(pull)).now_or_never()).collect();
        assert_eq!(held.len(), 2 * SHARE_MAX);
        assert!(places.lock().line.waiting.is_empty(), "the one that gave up");
        drop(held);
        assert!(places.lock().line.held.is_empty() && places.lock().wakers.is_empty());
    }
}
