//! Places for layers: how many are fetched at once, and which waiting layer gets a free place.
//!
//! Each pull has its own bound, but a hundred pulls may run, and each layer holds connections, inflate windows and
//! files. Half of the places are for the first layer of a pull, so that every pull can start. No registry and no tenant
//! has more than three quarters of either half. A free place is granted to the tenant, then the registry, then the pull
//! with the fewest places.
//!
//! A layer of a trickling pull yields its place to a waiting layer, and resumes by `Range` when a place is free
//! again.

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

use crate::{scarce::DescriptorShare, unpack::LAYERS_MAX};

/// Places for the first layers of pulls, and as many for other layers. The unpack memory is divided by this number
/// plus the parked layers. Fewer places already saturate any link.
const PLACES_MAX: usize = 24;
const SHARE_MAX: usize = 18;
/// Most layers that have yielded their place and wait for another. Each keeps two threads and its staging folder.
const PARKED_MAX: usize = LAYERS_MAX - 2 * PLACES_MAX;
/// A parked layer fails after this wait, and releases what it holds.
const PARKED_FOR_MAX: Duration = Duration::from_mins(5);

/// The tenant of a request: pods of a namespace with a credential, or a caller with one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) namespace: String,
    pub(crate) credential: Option<Credential>,
}

#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) registry: String,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) pull: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Half {
    First,
    Further,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    held: HashMap<u64, (Claim, Half)>,
    /// In the order of arrival; `true` for a layer that yielded its place.
    waiting: BTreeMap<u64, (Claim, bool)>,
    /// Of all bounds.
    share: DescriptorShare,
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

    fn start(&mut self) -> Option<u64> {
        let (ticket, half) = self.next_claim()?;
        let (claim, _) = self.waiting.remove(&ticket)?;
        self.held.insert(ticket, (claim, half));
        Some(ticket)
    }

    fn next_claim(&self) -> Option<(u64, Half)> {
        let candidates = self.waiting.iter().filter_map(|(ticket, (claim, is_parked))| {
            let half = self.half(claim)?;
            let tenant = self.count(|held, _| held.tenant == claim.tenant);
            let registry = self.count(|held, _| held.registry == claim.registry);
            let pull = self.count(|held, _| held.pull == claim.pull);
            Some(((*is_parked, half, tenant, registry, pull, *ticket), half))
        });
        candidates.min_by_key(|(rank, _)| *rank).map(|((.., ticket), half)| (ticket, half))
    }

    fn half(&self, claim: &Claim) -> Option<Half> {
        let has_first = self.count(|held, half| held.pull == claim.pull && half == Half::First) > 0;
        let halves = if has_first { &[Half::Further][..] } else { &[Half::First, Half::Further] };
        halves.iter().copied().find(|wanted| {
            self.count(|_, half| half == *wanted) < self.share.of(PLACES_MAX)
                && self.count(|held, half| half == *wanted && held.registry == claim.registry)
                    < self.share.of(SHARE_MAX)
                && self.count(|held, half| half == *wanted && held.tenant == claim.tenant) < self.share.of(SHARE_MAX)
        })
    }

    fn count(&self, counts: impl Fn(&Claim, Half) -> bool) -> usize {
        self.held.values().filter(|(claim, half)| counts(claim, *half)).count()
    }

    /// Whether a waiting layer would get the place of this one.
    fn is_wanted(&mut self, ticket: u64) -> bool {
        let Some(own) = self.held.remove(&ticket) else { return false };
        let is_wanted = self.next_claim().is_some();
        self.held.insert(ticket, own);
        is_wanted
    }

    /// Moves a layer behind all that never had a place. `false`: too many layers are parked.
    fn park(&mut self, ticket: u64) -> bool {
        if self.waiting.values().filter(|(_, is_parked)| *is_parked).count() >= self.share.of(PARKED_MAX) {
            return false;
        }
        let Some((claim, _)) = self.held.remove(&ticket) else { return false };
        self.waiting.insert(ticket, (claim, true));
        true
    }
}

#[derive(Debug, Default)]
pub(crate) struct Places {
    line: Mutex<Line>,
    granted: Notify,
}

#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    ticket: u64,
    since: Mutex<Instant>,
}

impl Places {
    pub(crate) async fn place(self: &Arc<Self>, claim: Claim) -> Place {
        let ticket = self.change(|line| line.arrive(claim));
        // Made before the wait, so that cancellation removes it from the queue.
        let place = Place { places: Arc::clone(self), ticket, since: Mutex::new(Instant::now()) };
        place.turn().await;
        place
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue, and grants the places that are then free.
    fn change<T>(&self, change: impl FnOnce(&mut Line) -> T) -> T {
        let mut line = self.lock();
        let changed = change(&mut line);
        let grants = std::iter::from_fn(|| line.start()).count();
        drop(line);
        if grants > 0 {
            self.granted.notify_waiters();
        }
        changed
    }
}

impl Place {
    pub(crate) fn held_for(&self) -> Duration {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Yields the place to a waiting layer, if there is one. The layer then waits in [`Place::again`].
    pub(crate) fn yields(&self) -> bool {
        self.places.change(|line| line.is_wanted(self.ticket) && line.park(self.ticket))
    }

    pub(crate) async fn again(&self) -> Result<(), RuntimeError> {
        timeout(PARKED_FOR_MAX, self.turn()).await.map_err(|_| {
            let minutes = PARKED_FOR_MAX.as_secs() / 60;
            let message = format!("the pull trickles, and other layers had all places for {minutes} min");
            let fault = Fault::new(ErrorClass::TimedOut, Stage::Queue);
            RuntimeError::new(RuntimeErrorKind::TimedOut, message).with_fault(fault)
        })
    }

    async fn turn(&self) {
        loop {
            // Made before the check: it sees every later notification.
            let granted = self.places.granted.notified();
            if self.places.lock().held.contains_key(&self.ticket) {
                break;
            }
            granted.await;
        }
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.change(|line| line.leave(self.ticket));
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

    /// Starts this many pulls with this many layers each, as far as places are free.
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
    fn with_few_descriptors_few_layers_have_places_and_the_others_wait() {
        for (files, bound) in [(1024, 2 * PLACES_MAX), (256, 6), (128, 2), (0, 2)] {
            let mut line = Line { share: DescriptorShare::of_limit(files), ..Line::default() };
            flood(&mut line, 200, 4, |pull| claim(&format!("r{pull}.io"), &format!("t{pull}"), pull));
            assert_eq!(line.held.len(), bound, "{files}");
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
        // Layers that found no other place in the meantime.
        let waiting = line.waiting.values().filter(|(_, is_parked)| *is_parked).count();
        assert!(waiting <= PARKED_MAX && parked > 0, "{waiting} of {parked}");
    }

    // Without a tokio runtime, whose cooperative budget delays tasks that do not pause.
    #[test]
    fn a_layer_that_stops_waiting_leaves_the_line() {
        let places = Arc::new(Places::default());
        let of = |pull| claim("r.io", "a", pull);
        let held: Vec<Place> = (0..100).map_while(|pull| places.place(of(pull)).now_or_never()).collect();
        assert_eq!(held.len(), 2 * SHARE_MAX);
        assert!(places.lock().waiting.is_empty(), "the one that gave up");
        drop(held);
        assert!(places.lock().held.is_empty());
    }
}
