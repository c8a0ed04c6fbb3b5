//! Whose turn it is: decides, and touches nothing.
//!
//! First come, first served is the kubelet's way. The fair way puts, in this order: the higher priority; the tenant
//! (namespace) that had the least so far; the smaller pull; the earlier one. Three things bend it:
//!
//! - **Aging.** Every fourth start in a slot belongs to whoever has waited longer than [`AGED`], the tenants in turn, each one's
//!   oldest first. Nobody waits for ever: after [`AGED`], an entry with `k` older ones of its own tenant before it
//!   begins within `4 * (k + 1) * tenants` starts in slots, however much others ask for and however high they rank.
//! - **The express lane.** While each slot is held by a slow pull, small ones begin beside them: [`EXPRESS_LANES`] at
//!   once. A pull is small when it fetches at most [`SMALL_MAX`]; a slot's pull is slow when it fetches more, or once
//!   it has run for [`SLOW_AFTER`]. One of the lanes is open to pulls of unknown size, so that a store that cannot
//!   estimate is not stuck behind one large image either.
//! - **Unknown sizes** count as [`UNKNOWN_SIZE`]: after what is small, before what is large.
//!
//! - **Aside.** A pull that trickles leaves its slot to the next that waits, and goes on beside it: [`ASIDE_MAX`] at once.
//!
//! Who is limited elsewhere passes by all that: up to [`FREE_MAX`] of them run beside the others, and take nobody's slot.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::image::ByteSize;

/// Who has waited this long has a claim on every fourth start.
pub(crate) const AGED: Duration = Duration::from_mins(1);
/// One start in so many goes to who has waited longest.
const AGED_SHARE: u64 = 4;
/// Pulls that may begin beside slow ones that hold every slot. With four, what is small has four fifths of the link
/// beside one large pull, and thirty images of 20 MB are done within 3 s of when they would be alone at 50 MB/s.
pub(crate) const EXPRESS_LANES: usize = 4;
/// How many of the lanes pulls of unknown size may take.
const EXPRESS_UNKNOWN: usize = 1;
/// What is small: at 50 MB/s, and half of it for a large pull beside, it is here within 3 s.
pub(crate) const SMALL_MAX: ByteSize = ByteSize(64 << 20);
/// A pull that has run this long is slow, whatever its size.
pub(crate) const SLOW_AFTER: Duration = Duration::from_secs(2);
/// What an unknown size counts as: about the middle of the images a node pulls.
const UNKNOWN_SIZE: ByteSize = ByteSize(256 << 20);
/// What one start costs a tenant at least and at most, so that neither tiny nor huge images tip the scales for long.
const CHARGE_MIN: u64 = 16 << 20;
const CHARGE_MAX: u64 = 1 << 30;
/// Most pulls at once of those that are limited elsewhere, so that no caller has any number of them here. A node of 110
/// pods has no more to fetch at once.
pub(crate) const FREE_MAX: usize = 128;
/// Most pulls that trickle beside those in the slots. Each holds a connection, which costs next to nothing at its rate.
pub(crate) const ASIDE_MAX: usize = 16;
/// Most tenants whose share is remembered while none of theirs waits. Forgetting one makes it a newcomer.
const TENANTS_MAX: usize = 1024;

/// In which manner turns are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// First come, first served.
    Fifo,
    /// See above.
    Fair,
}

/// A place in the line; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// Who comes to stand in line.
#[derive(Clone, Debug)]
pub(crate) struct Newcomer {
    pub(crate) tenant: Arc<str>,
    /// The higher goes first.
    pub(crate) priority: i32,
    /// What is to be fetched.
    pub(crate) size: Size,
    /// Whether it is limited here.
    pub(crate) gate: Gate,
}

/// Whether the limits here, slots and rate, hold for a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Gate {
    /// They do.
    Limited,
    /// Who asked for it has limits of its own.
    Free,
}

/// How much a pull fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Somebody is finding out.
    Asked,
    /// Nobody can tell.
    Unknown,
    /// So much.
    Known(ByteSize),
}

/// Who waits, and who runs.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    manner: Manner,
    /// `None`: all may run at once.
    slots: Option<usize>,
    next: u64,
    waiting: BTreeMap<Ticket, Waiting>,
    running: HashMap<Ticket, Running>,
    tenants: HashMap<Arc<str>, Tenant>,
    /// The fair clock: the share of the tenant served last.
    clock: u64,
    /// Starts in slots, and how many of them were an aged one's.
    starts_in_slots: u64,
    aged_starts: u64,
}

#[derive(Clone, Debug)]
struct Waiting {
    newcomer: Newcomer,
    since: Instant,
}

#[derive(Clone, Debug)]
struct Running {
    size: Size,
    since: Instant,
    lane: Lane,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Slot,
    Express,
    Free,
    Aside,
}

/// What a tenant had.
#[derive(Clone, Debug, Default)]
struct Tenant {
    /// Its share so far, on the fair clock.
    share: u64,
    /// The number of aged starts when it had its last, or when it came.
    aged: u64,
    waiting: usize,
}

impl Line {
    pub(crate) fn new(manner: Manner, slots: Option<usize>) -> Self {
        Self {
            manner,
            slots,
            next: 0,
            waiting: BTreeMap::new(),
            running: HashMap::new(),
            tenants: HashMap::new(),
            clock: 0,
            starts_in_slots: 0,
            aged_starts: 0,
        }
    }

    /// Takes a newcomer in, at the end.
    pub(crate) fn arrive(&mut self, newcomer: Newcomer, now: Instant) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        if !self.tenants.contains_key(&newcomer.tenant) {
            self.forget_tenants();
        }
        let tenant = self.tenants.entry(newcomer.tenant.clone()).or_default();
        if tenant.waiting == 0 {
            // Who was away has saved nothing up, and owes no more than it did.
            tenant.share = tenant.share.max(self.clock);
            tenant.aged = tenant.aged.max(self.aged_starts);
        }
        tenant.waiting += 1;
        self.waiting.insert(ticket, Waiting { newcomer, since: now });
        ticket
    }

    /// Lets somebody go, whether it waited or ran.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        if let Some(gone) = self.waiting.remove(&ticket) {
            self.left_waiting(&gone.newcomer.tenant);
        }
        self.running.remove(&ticket);
    }

    /// Its size is known now, or that nobody knows it.
    pub(crate) fn resize(&mut self, ticket: Ticket, size: Size) {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            waiting.newcomer.size = size;
        } else if let Some(running) = self.running.get_mut(&ticket) {
            running.size = size;
        }
    }

    /// Somebody of higher rank, or with a wider gate, waits for the same.
    pub(crate) fn raise(&mut self, ticket: Ticket, priority: i32, gate: Gate) {
        if let Some(Waiting { newcomer, .. }) = self.waiting.get_mut(&ticket) {
            (newcomer.priority, newcomer.gate) = (newcomer.priority.max(priority), newcomer.gate.max(gate));
        }
    }

    /// Who may begin now, if anybody may.
    pub(crate) fn head(&self, now: Instant) -> Option<Ticket> {
        self.choice(now).map(|(ticket, _)| ticket)
    }

    /// Lets one begin that is limited elsewhere.
    pub(crate) fn start_free(&mut self, now: Instant) -> Option<Ticket> {
        if self.count(Lane::Free) >= FREE_MAX {
            return None;
        }
        let ticket = self.choose(Lane::Free, |_| true, now)?;
        self.begin(ticket, Lane::Free, now);
        Some(ticket)
    }

    /// Lets the one at the head begin.
    pub(crate) fn start(&mut self, now: Instant) -> Option<Ticket> {
        let (ticket, lane) = self.choice(now)?;
        self.begin(ticket, lane, now);
        Some(ticket)
    }

    /// A pull that trickles leaves its slot, where pulls may begin beside others at all.
    pub(crate) fn set_aside(&mut self, ticket: Ticket) {
        if self.manner == Manner::Fifo || self.count(Lane::Aside) >= ASIDE_MAX {
            return;
        }
        if let Some(running) = self.running.get_mut(&ticket).filter(|running| running.lane == Lane::Slot) {
            running.lane = Lane::Aside;
        }
    }

    /// When the head may change without anybody coming or going. `None`: it will not.
    pub(crate) fn changes_at(&self, now: Instant) -> Option<Instant> {
        if self.manner == Manner::Fifo || self.has_slot() || self.waiting.is_empty() {
            return None;
        }
        let slots = self.running.values().filter(|running| running.lane == Lane::Slot && !running.is_slow(now));
        slots.map(|running| running.since + SLOW_AFTER).max()
    }

    /// Whether it passes by slots and rate, or did.
    pub(crate) fn is_free(&self, ticket: Ticket) -> bool {
        let waiting = self.waiting.get(&ticket).map(|waiting| waiting.newcomer.gate == Gate::Free);
        waiting.unwrap_or_else(|| self.running.get(&ticket).is_some_and(|running| running.lane == Lane::Free))
    }

    pub(crate) fn is_running(&self, ticket: Ticket) -> bool {
        self.running.contains_key(&ticket)
    }

    /// How many wait, and how many run.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Who runs, in no order.
    pub(crate) fn running(&self) -> impl Iterator<Item = Ticket> {
        self.running.keys().copied()
    }

    #[cfg(test)]
    pub(super) fn starts_in_slots(&self) -> u64 {
        self.starts_in_slots
    }

    #[cfg(test)]
    pub(super) fn tenants_known(&self) -> usize {
        self.tenants.len()
    }

    /// Who came first of all that wait.
    pub(crate) fn oldest(&self) -> Option<Ticket> {
        self.waiting.keys().next().copied()
    }

    /// Those who wait, in the order in which they would begin if nobody came and each slot came free in turn. Past the
    /// first so many, aging is left out of account.
    pub(crate) fn order(&self, now: Instant, exact_max: usize) -> Vec<Ticket> {
        if self.manner == Manner::Fifo {
            return self.waiting.keys().copied().collect();
        }
        let mut ahead = self.clone();
        let mut order = Vec::with_capacity(self.waiting.len());
        while order.len() < exact_max
            && let Some(ticket) = ahead.choose(Lane::Free, |_| true, now)
        {
            ahead.begin(ticket, Lane::Free, now);
            order.push(ticket);
        }
        while order.len() < exact_max
            && let Some(ticket) = ahead.choose(Lane::Slot, |_| true, now)
        {
            ahead.begin(ticket, Lane::Slot, now);
            order.push(ticket);
        }
        let mut rest: Vec<Ticket> = ahead.waiting.keys().copied().collect();
        rest.sort_by_cached_key(|ticket| ahead.rank(*ticket, &ahead.waiting[ticket]));
        order.extend(rest);
        order
    }

    fn choice(&self, now: Instant) -> Option<(Ticket, Lane)> {
        if self.has_slot() {
            return self.choose(Lane::Slot, |_| true, now).map(|ticket| (ticket, Lane::Slot));
        }
        if self.manner == Manner::Fifo || self.has_brisk_slot(now) {
            return None;
        }
        let express = || self.running.values().filter(|running| running.lane == Lane::Express);
        if self.count(Lane::Express) >= EXPRESS_LANES {
            return None;
        }
        let small = self.choose(Lane::Express, Size::is_small, now);
        let unknown = || {
            let taken = express().filter(|running| !running.size.is_small()).count();
            if taken < EXPRESS_UNKNOWN { self.choose(Lane::Express, |size| size == Size::Unknown, now) } else { None }
        };
        small.or_else(unknown).map(|ticket| (ticket, Lane::Express))
    }

    fn has_slot(&self) -> bool {
        self.slots.is_none_or(|slots| self.count(Lane::Slot) < slots)
    }

    fn count(&self, lane: Lane) -> usize {
        self.running.values().filter(|running| running.lane == lane).count()
    }

    /// Whether some slot's pull may be expected to end soon.
    fn has_brisk_slot(&self, now: Instant) -> bool {
        self.running.values().any(|running| running.lane == Lane::Slot && !running.is_slow(now))
    }

    fn choose(&self, lane: Lane, suits: impl Fn(Size) -> bool, now: Instant) -> Option<Ticket> {
        let gate = if lane == Lane::Free { Gate::Free } else { Gate::Limited };
        let is_meant = |waiting: &Waiting| waiting.newcomer.gate == gate && suits(waiting.newcomer.size);
        let mut candidates = self.waiting.iter().filter(|(_, waiting)| is_meant(waiting));
        if self.manner == Manner::Fifo {
            return candidates.next().map(|(ticket, _)| *ticket);
        }
        let is_agings_turn = self.is_agings_turn(lane);
        let aged = candidates
            .clone()
            .filter(|(_, waiting)| is_agings_turn && waiting.is_aged(now))
            .min_by_key(|(ticket, waiting)| (self.tenant(waiting).aged, **ticket));
        aged.or_else(|| candidates.min_by_key(|(ticket, waiting)| self.rank(**ticket, waiting)))
            .map(|(ticket, _)| *ticket)
    }

    /// The lanes have none: what they take in begins early as it is, and would cost its tenant the claim on a slot.
    fn is_agings_turn(&self, lane: Lane) -> bool {
        lane == Lane::Slot && self.starts_in_slots % AGED_SHARE == AGED_SHARE - 1
    }

    fn rank(&self, ticket: Ticket, waiting: &Waiting) -> (Reverse<i32>, u64, ByteSize, Ticket) {
        let newcomer = &waiting.newcomer;
        let share = self.tenant(waiting).share;
        (Reverse(newcomer.priority), share, newcomer.size.assumed(), ticket)
    }

    fn tenant(&self, waiting: &Waiting) -> &Tenant {
        self.tenants.get(&waiting.newcomer.tenant).expect("a tenant is kept while one of its pulls waits")
    }

    fn begin(&mut self, ticket: Ticket, lane: Lane, now: Instant) {
        let Some(Waiting { newcomer, since }) = self.waiting.remove(&ticket) else { return };
        let is_agings_turn = self.is_agings_turn(lane);
        if lane == Lane::Slot {
            self.starts_in_slots += 1;
        }
        if let Some(tenant) = self.tenants.get_mut(&newcomer.tenant) {
            if is_agings_turn && now.saturating_duration_since(since) >= AGED {
                self.aged_starts += 1;
                tenant.aged = self.aged_starts;
            }
            self.clock = self.clock.max(tenant.share);
            let charge = newcomer.size.assumed().0.clamp(CHARGE_MIN, CHARGE_MAX);
            tenant.share = tenant.share.saturating_add(charge);
        }
        self.left_waiting(&newcomer.tenant);
        self.running.insert(ticket, Running { size: newcomer.size, since: now, lane });
    }

    fn left_waiting(&mut self, tenant: &str) {
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.waiting = tenant.waiting.saturating_sub(1);
        }
    }

    /// Makes room for another tenant: who owes nothing is forgotten without loss, and past the bound the others go too.
    fn forget_tenants(&mut self) {
        let clock = self.clock;
        self.tenants.retain(|_, tenant| tenant.waiting > 0 || tenant.share > clock);
        if self.tenants.len() >= TENANTS_MAX {
            self.tenants.retain(|_, tenant| tenant.waiting > 0);
        }
    }
}

impl Size {
    fn is_small(self) -> bool {
        matches!(self, Self::Known(size) if size <= SMALL_MAX)
    }

    fn assumed(self) -> ByteSize {
        match self {
            Self::Known(size) => size,
            Self::Asked | Self::Unknown => UNKNOWN_SIZE,
        }
    }
}

impl Waiting {
    fn is_aged(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= AGED
    }
}

impl Running {
    fn is_slow(&self, now: Instant) -> bool {
        matches!(self.size, Size::Known(size) if size > SMALL_MAX)
            || now.saturating_duration_since(self.since) >= SLOW_AFTER
    }
}
