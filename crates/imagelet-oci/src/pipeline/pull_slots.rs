//! Places for layers: how many layers are fetched at once, and which waiting layer gets a free place.
//!
//! Each pull has its own bound, but a hundred pulls may run, and each layer uses connections, inflate windows and
//! files. Half of the places are for the first layer of a pull, so that every pull can start. No registry and no tenant
//! has more than three quarters of either half. A free place is granted to the tenant, then the registry, then the pull
//! with the fewest places.
//!
//! A layer with a slow registry gives its place to a waiting layer. After a wait of ten seconds, the slowest of the
//! layers that lose no bytes also gives its place, at any rate. That layer resumes by `Range` with its next place.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    hold::{CHECK_PERIOD, GRACE, HoldPolicy, SharedThing, WAIT_FAIR},
    lock::locked,
    ports::Progress,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::pace::{LayerPace, reported};
use crate::{manifest::Descriptor, scarce::DescriptorShare, tenant::Tenant};

/// Places for the first layers of pulls, and the same number for other layers. Fewer places already saturate any link.
const PLACES_MAX: usize = 24;
const SHARE_MAX: usize = 18;
/// A layer that gave its place away fails after this wait.
const AGAIN_MAX: Duration = Duration::from_mins(5);

#[derive(Clone, Debug)]
pub(crate) struct SlotRequest {
    pub(crate) registry: String,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) pull: u64,
    pub(crate) image: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Half {
    First,
    Further,
}

#[derive(Debug)]
struct Waiting {
    claim: SlotRequest,
    pace: Arc<LayerPace>,
    since: Instant,
    gave_way: bool,
}

#[derive(Debug)]
struct HeldPlace {
    claim: SlotRequest,
    pace: Arc<LayerPace>,
    half: Half,
    checked: Instant,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    held: HashMap<u64, HeldPlace>,
    /// The waiting layers by ticket, in the order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    share: DescriptorShare,
}

impl Line {
    fn arrive(&mut self, claim: SlotRequest, pace: Arc<LayerPace>, now: Instant) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, Waiting { claim, pace, since: now, gave_way: false });
        self.next
    }

    fn leave(&mut self, ticket: u64) {
        self.held.remove(&ticket);
        self.waiting.remove(&ticket);
    }

    fn start(&mut self, now: Instant) -> Option<u64> {
        let (ticket, half) = self.next_claim()?;
        let Waiting { claim, pace, .. } = self.waiting.remove(&ticket)?;
        pace.restart(now);
        self.held.insert(ticket, HeldPlace { claim, pace, half, checked: now });
        Some(ticket)
    }

    fn next_claim(&self) -> Option<(u64, Half)> {
        let candidates = self.waiting.iter().filter_map(|(ticket, Waiting { claim, gave_way, .. })| {
            let half = self.half(claim)?;
            let tenant = self.count(|held| held.claim.tenant == claim.tenant);
            let registry = self.count(|held| held.claim.registry == claim.registry);
            let pull = self.count(|held| held.claim.pull == claim.pull);
            Some((*gave_way, half, tenant, registry, pull, *ticket))
        });
        candidates.min().map(|(_, half, .., ticket)| (ticket, half))
    }

    fn half(&self, claim: &SlotRequest) -> Option<Half> {
        let has_first = self.count(|held| held.claim.pull == claim.pull && held.half == Half::First) > 0;
        let halves = if has_first { &[Half::Further][..] } else { &[Half::First, Half::Further] };
        halves.iter().copied().find(|wanted| {
            let count = |counts: fn(&SlotRequest, &SlotRequest) -> bool| {
                self.count(|held| held.half == *wanted && counts(&held.claim, claim))
            };
            count(|_, _| true) < self.share.of(PLACES_MAX)
                && count(|held, claim| held.registry == claim.registry) < self.share.of(SHARE_MAX)
                && count(|held, claim| held.tenant == claim.tenant) < self.share.of(SHARE_MAX)
        })
    }

    fn count(&self, counts: impl Fn(&HeldPlace) -> bool) -> usize {
        self.held.values().filter(|held| counts(held)).count()
    }

    fn successor(&mut self, ticket: u64) -> Option<u64> {
        let own = self.held.remove(&ticket)?;
        let next = self.next_claim();
        self.held.insert(ticket, own);
        next.map(|(ticket, _)| ticket)
    }

    /// Whether this layer gives its place to a waiting layer now. A lossy layer would begin again at its first byte, so
    /// it gives way only below the minimum rate.
    fn gives_way(&mut self, ticket: u64, policy: HoldPolicy, is_lossy: bool, now: Instant) -> bool {
        if let Some(own) = self.held.get_mut(&ticket).filter(|_| !is_lossy) {
            own.checked = now;
        }
        if self.waiting.is_empty() {
            return false;
        }
        let Some(successor) = self.successor(ticket) else { return false };
        let (own, waits) = (&self.held[&ticket], &self.waiting[&successor]);
        // Slow layers take turns. The turns are long, because each turn connects again.
        let turn = if waits.gave_way { 6 * GRACE } else { GRACE };
        if policy.gives_up(&own.pace.network, now) && own.pace.wall.held_for(now) >= turn {
            return true;
        }
        let is_fair = !is_lossy && !waits.gave_way && now.saturating_duration_since(waits.since) >= WAIT_FAIR;
        if !is_fair || own.pace.wall.held_for(now) < GRACE {
            return false;
        }
        let rate = own.pace.wall.rate(now);
        let slower = |(other, held): (&u64, &HeldPlace)| {
            // A layer that does not check cannot give way.
            let checks = now.saturating_duration_since(held.checked) < 4 * CHECK_PERIOD;
            let is_due = *other != ticket && checks && held.pace.wall.held_for(now) >= GRACE;
            (is_due && (held.pace.wall.rate(now), *other) < (rate, ticket)).then_some(*other)
        };
        let slower: Vec<u64> = self.held.iter().filter_map(slower).collect();
        !slower.into_iter().any(|other| self.successor(other).is_some())
    }

    /// Moves a layer from its place into the queue, behind all layers that never had a place.
    fn give_way(&mut self, ticket: u64, now: Instant) {
        if let Some(HeldPlace { claim, pace, .. }) = self.held.remove(&ticket) {
            self.waiting.insert(ticket, Waiting { claim, pace, since: now, gave_way: true });
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct PullSlots {
    line: Mutex<Line>,
    granted: Notify,
}

#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<PullSlots>,
    ticket: u64,
    pub(crate) pace: Arc<LayerPace>,
}

impl PullSlots {
    pub(crate) async fn place(self: &Arc<Self>, claim: SlotRequest, layer: &Descriptor, progress: &Progress) -> Place {
        let now = Instant::now();
        let pace = Arc::new(LayerPace::new(layer.size, now));
        let ticket = self.change(|line| line.arrive(claim, Arc::clone(&pace), now));
        // Created before the wait, so that a cancellation removes the layer from the queue.
        let place = Place { places: Arc::clone(self), ticket, pace };
        place.turn(layer, progress).await;
        place
    }

    fn slowest(&self) -> Option<String> {
        let now = Instant::now();
        let line = locked(&self.line);
        let slowest = line.held.values().min_by_key(|held| held.pace.wall.rate(now));
        slowest.map(|held| held.claim.image.to_string())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Line) -> T) -> T {
        let now = Instant::now();
        let mut line = locked(&self.line);
        let changed = change(&mut line);
        let grants = std::iter::from_fn(|| line.start(now)).count();
        drop(line);
        if grants > 0 {
            self.granted.notify_waiters();
        }
        changed
    }
}

impl Place {
    /// Gives the place to a waiting layer if this layer is due, and returns whether it is. The attempt then ends, and
    /// the layer continues from the bytes on the disk after [`Place::again`].
    pub(crate) fn gives_way(&self, policy: HoldPolicy, is_lossy: bool, now: Instant) -> bool {
        let is_due = locked(&self.places.line).gives_way(self.ticket, policy, is_lossy, now);
        if is_due {
            self.leave(now);
        }
        is_due
    }

    pub(crate) fn leave(&self, now: Instant) {
        self.places.change(|line| line.give_way(self.ticket, now));
    }

    pub(crate) async fn again(&self, layer: &Descriptor, progress: &Progress) -> Result<(), RuntimeError> {
        timeout(AGAIN_MAX, self.turn(layer, progress)).await.map_err(|_| {
            let minutes = AGAIN_MAX.as_secs() / 60;
            let message = format!("the pull is slow, and other layers had all places for {minutes} min");
            let fault = Fault::new(ErrorClass::TimedOut, Stage::Queue);
            RuntimeError::new(RuntimeErrorKind::TimedOut, message).with_fault(fault)
        })
    }

    async fn turn(&self, layer: &Descriptor, progress: &Progress) {
        let turn = async {
            loop {
                // The future is created before the check, so that it receives every later notification.
                let granted = self.places.granted.notified();
                if locked(&self.places.line).held.contains_key(&self.ticket) {
                    return;
                }
                granted.await;
            }
        };
        reported((SharedThing::Place, &layer.digest, progress), || self.places.slowest(), turn).await;
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
    use imagelet_core::ports::no_progress;

    use super::*;

    fn claim(registry: &str, namespace: &str, pull: u64) -> SlotRequest {
        let tenant = Arc::new(Tenant { namespace: namespace.into(), credential: None });
        SlotRequest { registry: registry.into(), tenant, pull, image: "image".into() }
    }

    type Of = fn(u64) -> SlotRequest;

    fn arrive(line: &mut Line, claim: SlotRequest) -> u64 {
        let now = Instant::now();
        line.arrive(claim, Arc::new(LayerPace::new(0, now)), now)
    }

    fn start(line: &mut Line) -> Option<u64> {
        line.start(Instant::now())
    }

    /// Starts this many pulls with this many layers each, as far as places are free.
    fn flood(line: &mut Line, pulls: u64, layers: usize, of: impl Fn(u64) -> SlotRequest) {
        for pull in 0..pulls {
            for _ in 0..layers {
                arrive(line, of(pull));
            }
            while start(line).is_some() {}
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
                    let ticket = arrive(&mut line, claim(registry, tenant, 99));
                    assert_eq!(
                        start(&mut line),
                        Some(ticket),
                        "{what}, {layers} layers each, then {tenant} at {registry}"
                    );
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
            assert!(start(&mut line).is_some(), "{what}: what is given back is used");
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
        let (many, few) = (arrive(&mut line, claim("r.io", "busy", 1)), arrive(&mut line, claim("q.io", "new", 999)));
        let held = |line: &Line, tenant: &str| line.count(|held| held.claim.tenant.namespace == tenant);
        let rest = 2 * (PLACES_MAX - SHARE_MAX);
        assert_eq!((held(&line, "busy"), held(&line, "other")), (2 * SHARE_MAX, rest), "the rest is the other's");
        let gone = *line.held.iter().find(|(_, held)| held.claim.pull == 1 && held.half == Half::First).unwrap().0;
        line.leave(gone);
        assert_eq!(start(&mut line), Some(few), "not {many}");
    }

    #[test]
    fn a_place_is_given_away_only_where_another_can_use_it_and_taken_up_behind_those_that_never_had_one() {
        let mut line = Line::default();
        let slow = arrive(&mut line, claim("r.io", "a", 0));
        start(&mut line).expect("all are free");
        assert_eq!(line.successor(slow), None, "nothing waits");
        flood(&mut line, 60, 1, |pull| claim("r.io", "a", 1 + pull));
        assert!(line.successor(slow).is_some());
        line.give_way(slow, Instant::now());
        let next = start(&mut line).expect("the place is free");
        assert_ne!(next, slow);
        let later = arrive(&mut line, claim("r.io", "a", 99));
        let order: Vec<u64> = std::iter::from_fn(|| {
            let running = *line.held.keys().next()?;
            line.leave(running);
            start(&mut line)
        })
        .collect();
        let place = |ticket| order.iter().position(|other| *other == ticket).expect("it gets a place in the end");
        assert!(place(later) < place(slow), "{order:?}");
    }

    #[tokio::test]
    async fn a_layer_that_stops_waiting_leaves_the_line() {
        let places = Arc::new(PullSlots::default());
        let layer = serde_json::json!({"digest": format!("sha256:{:064}", 0)});
        let layer: Descriptor = serde_json::from_value(layer).unwrap();
        let mut held = Vec::new();
        for pull in 0..100 {
            // Without the cooperative budget, which delays tasks that do not pause.
            let progress = no_progress();
            let place = places.place(claim("r.io", "a", pull), &layer, &progress);
            let Some(place) = tokio::task::unconstrained(place).now_or_never() else { break };
            held.push(place);
        }
        assert_eq!(held.len(), 2 * SHARE_MAX);
        assert!(locked(&places.line).waiting.is_empty(), "the one that gave up");
        drop(held);
        assert!(locked(&places.line).held.is_empty());
    }

    const MIB: u64 = 1 << 20;

    /// A line whose places are all held by layers of these rates, for a minute, and one that waits.
    fn full_line(waited: Duration, rate: impl Fn(u64) -> u64) -> (Line, Vec<u64>, Instant) {
        let (mut line, began) = (Line::default(), Instant::now());
        let now = began + Duration::from_mins(1);
        let mut held = Vec::new();
        for number in 0..2 * PLACES_MAX as u64 {
            let pace = Arc::new(LayerPace::new(0, began));
            let ticket = line.arrive(claim(&format!("r{number}.io"), &format!("t{number}"), number), pace, began);
            held.extend(line.start(began));
            line.held[&ticket].pace.received(60 * rate(number));
        }
        line.arrive(claim("new.io", "new", 999), Arc::new(LayerPace::new(0, now)), now - waited);
        assert_eq!(line.start(now), None, "all places are held");
        (line, held, now)
    }

    fn giving(line: &mut Line, held: &[u64], now: Instant) -> Vec<u64> {
        // Each checks before one decides.
        for held in line.held.values_mut() {
            held.checked = now;
        }
        let gives = |ticket: &u64| line.gives_way(*ticket, HoldPolicy::default(), false, now);
        held.iter().copied().filter(gives).collect()
    }

    #[test]
    fn a_slow_layer_gives_its_place_to_a_waiting_one_at_once_and_a_good_one_keeps_it() {
        let (mut line, held, now) = full_line(Duration::ZERO, |number| if number == 7 { 20 << 10 } else { MIB });
        assert_eq!(giving(&mut line, &held, now), [held[7]]);
        let waiting = *line.waiting.keys().next().unwrap();
        line.leave(waiting);
        assert_eq!(giving(&mut line, &held, now), [0_u64; 0], "nothing waits");
    }

    #[test]
    fn the_slowest_of_good_layers_gives_way_once_a_layer_has_waited_ten_seconds() {
        for (waited, expected) in [(Duration::from_secs(9), None), (WAIT_FAIR, Some(7))] {
            let (mut line, held, now) = full_line(waited, |number| if number == 7 { MIB } else { (2 + number) * MIB });
            let expected: Vec<u64> = expected.into_iter().map(|number: usize| held[number]).collect();
            assert_eq!(giving(&mut line, &held, now), expected, "{waited:?}");
        }
    }

    #[test]
    fn a_slowest_layer_that_does_not_check_keeps_no_other_from_giving_way() {
        let (mut line, held, now) = full_line(WAIT_FAIR, |number| (2 + number) * MIB);
        for ticket in &held[1..] {
            line.held.get_mut(ticket).unwrap().checked = now;
        }
        assert!(
            !line.gives_way(held[2], HoldPolicy::default(), false, now),
            "it is not the slowest of those that check"
        );
        assert!(line.gives_way(held[1], HoldPolicy::default(), false, now));
    }

    #[test]
    fn a_layer_that_would_begin_anew_keeps_its_place_unless_its_registry_is_slow() {
        for (slowest, expected) in [(MIB, false), (20 << 10, true)] {
            let (mut line, held, now) =
                full_line(WAIT_FAIR, |number| if number == 7 { slowest } else { (2 + number) * MIB });
            for ticket in held.iter().filter(|ticket| **ticket != held[7]) {
                line.held.get_mut(ticket).unwrap().checked = now;
            }
            assert_eq!(line.gives_way(held[7], HoldPolicy::default(), true, now), expected, "{slowest}");
            assert!(line.gives_way(held[0], HoldPolicy::default(), false, now), "the slowest that resumes");
        }
    }
}
