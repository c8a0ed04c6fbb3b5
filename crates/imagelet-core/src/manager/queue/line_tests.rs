//! Tables and properties of whose turn it is.

use std::collections::HashSet;

use proptest::prelude::*;

use super::line::*;
use super::*;
use crate::image::ByteSize;
use std::time::Duration;

const MEGABYTE: u64 = 1_000_000;

fn newcomer(tenant: &str, priority: i32, megabytes: Option<u64>) -> Newcomer {
    Newcomer {
        tenant: tenant.into(),
        priority,
        size: megabytes.map_or(Size::Unknown, |size| Size::Known(ByteSize(size * MEGABYTE))),
        gate: Gate::Limited,
    }
}

/// The order in which a single slot serves all who stand in line.
fn served(line: &mut Line, now: Instant) -> Vec<Ticket> {
    let mut order = Vec::new();
    while let Some(ticket) = line.start(now) {
        order.push(ticket);
        line.leave(ticket);
    }
    order
}

fn places(manner: Manner, newcomers: &[(&str, i32, Option<u64>)]) -> Vec<usize> {
    let now = Instant::now();
    let mut line = Line::new(manner, Some(1));
    let tickets: Vec<Ticket> =
        newcomers.iter().map(|(tenant, priority, size)| line.arrive(newcomer(tenant, *priority, *size), now)).collect();
    let foreseen = line.order(now, usize::MAX);
    let order = served(&mut line, now);
    assert_eq!(foreseen, order, "what is foreseen comes");
    order.iter().map(|ticket| tickets.iter().position(|other| other == ticket).expect("one of them")).collect()
}

#[test]
fn turns_go_by_priority_then_tenant_then_size_then_time() {
    for (what, newcomers, order) in [
        ("priority first", vec![("a", 0, Some(1)), ("a", 5, Some(9000)), ("a", -1, Some(1))], vec![1, 0, 2]),
        ("small before large", vec![("a", 0, Some(900)), ("a", 0, Some(20)), ("a", 0, Some(300))], vec![1, 2, 0]),
        ("unknown between", vec![("a", 0, Some(900)), ("a", 0, None), ("a", 0, Some(20))], vec![2, 1, 0]),
        ("equals as they came", vec![("a", 0, None), ("a", 0, None), ("a", 0, None)], vec![0, 1, 2]),
        (
            "tenants in turn",
            vec![("a", 0, None), ("a", 0, None), ("a", 0, None), ("b", 0, None), ("b", 0, None)],
            vec![0, 3, 1, 4, 2],
        ),
        (
            "by what they had, not how often",
            vec![
                ("a", 0, Some(1000)),
                ("a", 0, Some(1000)),
                ("b", 0, Some(300)),
                ("b", 0, Some(300)),
                ("b", 0, Some(300)),
            ],
            vec![2, 0, 3, 4, 1],
        ),
    ] {
        assert_eq!(places(Manner::Fair, &newcomers), order, "{what}");
        let asked: Vec<usize> = (0..newcomers.len()).collect();
        assert_eq!(places(Manner::Fifo, &newcomers), asked, "first come, first served: {what}");
    }
}

#[test]
fn who_comes_back_has_saved_nothing_up() {
    let now = Instant::now();
    let mut line = Line::new(Manner::Fair, Some(1));
    line.arrive(newcomer("idle", 0, None), now);
    served(&mut line, now);
    for _ in 0..10 {
        line.arrive(newcomer("busy", 0, None), now);
    }
    for _ in 0..5 {
        let ticket = line.start(now).expect("somebody waits");
        line.leave(ticket);
    }
    let first = line.arrive(newcomer("idle", 0, None), now);
    let second = line.arrive(newcomer("idle", 0, None), now);
    let order = line.order(now, usize::MAX);
    let place = |ticket| order.iter().position(|other| *other == ticket).expect("it waits");
    assert_eq!((place(first), place(second)), (0, 2), "one turn each from now on");
}

#[test]
fn one_start_in_four_goes_to_who_has_waited_longest() {
    let now = Instant::now();
    let mut line = Line::new(Manner::Fair, Some(1));
    let low = line.arrive(newcomer("a", -10, Some(5000)), now);
    let lower = line.arrive(newcomer("b", -20, Some(5000)), now);
    let later = now + AGED;
    for _ in 0..20 {
        line.arrive(newcomer("c", 100, Some(1)), later);
    }
    let just_before: Vec<Ticket> = line.order(later - Duration::from_nanos(1), usize::MAX);
    assert_eq!(just_before[20..], [low, lower], "before that they are last");
    let order = line.order(later, usize::MAX);
    assert_eq!((order[3], order[7]), (low, lower));
}

#[test]
fn namespaces_that_come_later_do_not_take_the_turns_of_who_waits_longest() {
    let now = Instant::now();
    let mut line = Line::new(Manner::Fair, Some(1));
    let low = |line: &mut Line, tenant: &str| line.arrive(newcomer(tenant, -10, None), now);
    let old: Vec<Ticket> = ["a", "b", "a", "b"].map(|tenant| low(&mut line, tenant)).into();
    let later = now + AGED;
    for _ in 0..40 {
        line.arrive(newcomer("high", 100, Some(1)), later);
    }
    let (mut aged, mut new) = (Vec::new(), Vec::new());
    for start in 1..=20 {
        let ticket = line.start(later).expect("all wait");
        line.leave(ticket);
        if start % 4 == 0 {
            aged.push(ticket);
            // A namespace that was never seen before, and that has waited for long.
            new.push(low(&mut line, &format!("new-{start}")));
        }
    }
    assert_eq!(aged, [old[0], old[1], old[2], new[0], old[3]]);
}

#[test]
fn small_pulls_begin_beside_slow_ones_and_only_then() {
    let now = Instant::now();
    for (what, slot, waited, next, may) in [
        ("small beside large", Some(5000), 0, Some(20), true),
        ("large beside large", Some(5000), 0, Some(500), false),
        ("unknown beside large", Some(5000), 0, None, true),
        ("small beside small", Some(20), 0, Some(20), false),
        ("small beside small that takes long", Some(20), 2, Some(20), true),
        ("small beside unknown", None, 1, Some(20), false),
        ("small beside unknown that takes long", None, 2, Some(20), true),
    ] {
        let mut line = Line::new(Manner::Fair, Some(1));
        line.arrive(newcomer("a", 0, slot), now);
        line.start(now).expect("the slot is free");
        let ticket = line.arrive(newcomer("a", 0, next), now);
        let at = now + Duration::from_secs(waited);
        assert_eq!(line.start(at), may.then_some(ticket), "{what}");
        if !may && line.changes_at(at).is_some() {
            assert_eq!(line.changes_at(at), Some(now + SLOW_AFTER), "{what}");
        }
        let mut line = Line::new(Manner::Fifo, Some(1));
        line.arrive(newcomer("a", 0, slot), now);
        line.start(now).expect("the slot is free");
        line.arrive(newcomer("a", 0, next), now);
        assert_eq!((line.start(at), line.changes_at(at)), (None, None), "one at a time: {what}");
    }
}

#[test]
fn a_pull_that_trickles_leaves_its_slot_to_the_next_and_no_more_do_than_the_bound() {
    let now = Instant::now();
    let mut line = Line::new(Manner::Fair, Some(1));
    let mut slow: Vec<Ticket> = Vec::new();
    for number in 0..=ASIDE_MAX {
        let ticket = line.arrive(newcomer("a", 0, Some(5000)), now);
        assert_eq!(line.start(now), Some(ticket), "{number} are aside");
        let next = line.arrive(newcomer("b", 0, Some(5000)), now);
        assert_eq!(line.start(now), None, "the slot is taken");
        line.leave(next);
        line.set_aside(ticket);
        slow.push(ticket);
    }
    let next = line.arrive(newcomer("b", 0, Some(5000)), now);
    assert_eq!(line.start(now), None, "enough are aside");
    assert_eq!(line.counts(), (1, ASIDE_MAX + 1));
    line.leave(*slow.last().expect("some"));
    assert_eq!(line.start(now), Some(next));
    let mut line = Line::new(Manner::Fifo, Some(1));
    let ticket = line.arrive(newcomer("a", 0, None), now);
    line.start(now).expect("the slot is free");
    line.set_aside(ticket);
    line.arrive(newcomer("b", 0, None), now);
    assert_eq!(line.start(now), None, "one at a time");
}

#[test]
fn the_express_lane_is_bounded() {
    let now = Instant::now();
    let mut line = Line::new(Manner::Fair, Some(2));
    for _ in 0..2 {
        line.arrive(newcomer("a", 0, Some(5000)), now);
        line.start(now).expect("a slot is free");
    }
    for size in [None, None, Some(20), Some(20), Some(20), Some(20)] {
        line.arrive(newcomer("a", 0, size), now);
    }
    let started = std::iter::from_fn(|| line.start(now)).count();
    assert_eq!(started, EXPRESS_LANES);
    let mut line = Line::new(Manner::Fair, Some(1));
    line.arrive(newcomer("a", 0, Some(5000)), now);
    line.start(now).expect("the slot is free");
    for _ in 0..3 {
        line.arrive(newcomer("a", 0, None), now);
    }
    assert_eq!(std::iter::from_fn(|| line.start(now)).count(), 1, "one lane for what is not known to be small");
}

#[test]
fn a_size_or_a_rank_that_is_learnt_counts_from_then_on() {
    let now = Instant::now();
    let mut line = Line::new(Manner::Fair, Some(1));
    let slot = line.arrive(newcomer("a", 0, None), now);
    line.start(now).expect("the slot is free");
    let small = line.arrive(newcomer("a", 0, None), now);
    let raised = line.arrive(newcomer("a", 0, Some(900)), now);
    line.resize(small, Size::Known(ByteSize(MEGABYTE)));
    assert_eq!(line.start(now), None, "the slot's own size is not known yet");
    line.resize(slot, Size::Known(ByteSize(5000 * MEGABYTE)));
    assert_eq!(line.order(now, 9), [small, raised]);
    line.raise(raised, 7, Gate::Limited);
    assert_eq!(line.order(now, 9), [raised, small]);
    line.raise(raised, 3, Gate::Limited);
    assert_eq!(line.order(now, 9), [raised, small], "nobody is lowered");
    assert_eq!(line.start(now), Some(small));
}

#[test]
fn who_is_being_asked_for_its_size_is_not_taken_for_small() {
    let now = Instant::now();
    let mut line = Line::new(Manner::Fair, Some(1));
    line.arrive(newcomer("a", 0, Some(5000)), now);
    line.start(now).expect("the slot is free");
    let ticket = line.arrive(Newcomer { size: Size::Asked, ..newcomer("a", 0, None) }, now);
    assert_eq!(line.start(now), None);
    line.resize(ticket, Size::Unknown);
    assert_eq!(line.start(now), Some(ticket));
}

#[test]
fn a_thousand_tenants_that_went_are_forgotten() {
    let now = Instant::now();
    let mut line = Line::new(Manner::Fair, Some(1));
    for index in 0..5000 {
        line.arrive(newcomer(&index.to_string(), 0, Some(1)), now);
        served(&mut line, now);
    }
    assert!(line.tenants_known() <= 1024, "{}", line.tenants_known());
}

/// Something that happens in a random run.
#[derive(Clone, Debug)]
enum Step {
    Arrive { tenant: u8, priority: i32, size: Option<u64> },
    End,
    GiveUp { which: usize },
    Pass { seconds: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0u8..6, prop_oneof![Just(0), -2i32..100], proptest::option::of(prop_oneof![1u64..50, 65u64..6000]))
            .prop_map(|(tenant, priority, size)| Step::Arrive { tenant: tenant.saturating_sub(2), priority, size }),
        4 => Just(Step::End),
        1 => (0usize..50).prop_map(|which| Step::GiveUp { which }),
        3 => (1u64..40).prop_map(|seconds| Step::Pass { seconds }),
    ];
    proptest::collection::vec(step, 1..400)
}

/// What is known of one who waits, for the promise made to it.
#[derive(Debug)]
struct Promise {
    tenant: String,
    since: Instant,
    /// How many of its own tenant's stood before it.
    before: u64,
    /// Most tenants that waited at once meanwhile.
    tenants: u64,
    /// Starts since it may claim one.
    passed_over: u64,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    /// The bound of the room's first lines, over random arrivals of all ranks, sizes and tenants.
    #[test]
    fn nobody_waits_for_more_than_the_bound(steps in steps(), slots in 1usize..4) {
        let mut now = Instant::now();
        let mut line = Line::new(Manner::Fair, Some(slots));
        let mut waiting: Vec<(Ticket, Promise)> = Vec::new();
        let mut running: Vec<Ticket> = Vec::new();
        // In the end everybody is served.
        let drain = (0..500).map(|_| Step::End);
        for step in steps.into_iter().chain(drain) {
            match step {
                Step::Arrive { tenant, priority, size } => {
                    let tenant = tenant.to_string();
                    let before = waiting.iter().filter(|(_, other)| other.tenant == tenant).count() as u64;
                    let ticket = line.arrive(newcomer(&tenant, priority, size), now);
                    waiting.push((ticket, Promise { tenant, since: now, before, tenants: 0, passed_over: 0 }));
                }
                Step::End => if !running.is_empty() { line.leave(running.remove(0)) },
                Step::GiveUp { which } => if which < waiting.len() { line.leave(waiting.remove(which).0) },
                Step::Pass { seconds } => now += Duration::from_secs(seconds),
            }
            let tenants = waiting.iter().map(|(_, promise)| promise.tenant.clone()).collect::<HashSet<_>>().len() as u64;
            for (_, promise) in &mut waiting {
                promise.tenants = promise.tenants.max(tenants);
            }
            loop {
                let in_slots = line.starts_in_slots();
                let Some(ticket) = line.start(now) else { break };
                running.push(ticket);
                let index = waiting.iter().position(|(other, _)| *other == ticket).expect("only who waits begins");
                let (_, promise) = waiting.remove(index);
                let bound = 4 * (promise.before + 1) * promise.tenants;
                prop_assert!(promise.passed_over <= bound, "{promise:?}");
                if line.starts_in_slots() > in_slots {
                    for (_, other) in &mut waiting {
                        other.passed_over += u64::from(now.saturating_duration_since(other.since) >= AGED);
                    }
                }
            }
            prop_assert!(running.len() <= slots + EXPRESS_LANES);
            prop_assert_eq!(line.counts(), (waiting.len(), running.len()));
            prop_assert!(running.len() >= slots || waiting.is_empty(), "no slot stays empty while somebody waits");
        }
        prop_assert!(waiting.is_empty(), "{} wait for ever", waiting.len());
    }

    /// A namespace with hundreds of pulls costs another at most as many turns as it has pulls itself, but for aging.
    #[test]
    fn a_flood_of_one_tenant_does_not_hold_up_another(flood in 100usize..500, own in 1usize..10) {
        let now = Instant::now();
        let mut line = Line::new(Manner::Fair, Some(1));
        for _ in 0..flood {
            line.arrive(newcomer("flood", 0, Some(100)), now);
        }
        let later = now + AGED * 10;
        for _ in 0..50 {
            let ticket = line.start(later).expect("the flood waits");
            line.leave(ticket);
        }
        let own: Vec<Ticket> = (0..own).map(|_| line.arrive(newcomer("own", 0, Some(100)), later)).collect();
        let order = served(&mut line, later);
        let last = order.iter().position(|ticket| ticket == own.last().expect("at least one")).expect("it was served");
        // Each second start, and of those in four that is aging's, none.
        prop_assert!(last <= own.len() * 4 + 4, "{last} starts for {} pulls", own.len());
    }
}

#[test]
fn who_is_limited_elsewhere_takes_no_slot_and_no_more_than_its_bound() {
    let now = Instant::now();
    for manner in [Manner::Fifo, Manner::Fair] {
        let mut line = Line::new(manner, Some(1));
        let limited: Vec<Ticket> = (0..3).map(|_| line.arrive(newcomer("a", 0, None), now)).collect();
        let free: Vec<Ticket> = (0..FREE_MAX + 2)
            .map(|_| line.arrive(Newcomer { gate: Gate::Free, ..newcomer("b", 0, None) }, now))
            .collect();
        let mut begun = 0;
        while let Some(ticket) = line.start_free(now) {
            assert!(free.contains(&ticket) && line.is_free(ticket));
            begun += 1;
        }
        assert_eq!(begun, FREE_MAX);
        assert_eq!((line.start(now), line.start(now)), (Some(limited[0]), None), "the slot is one of theirs");
        // Foreseen first are those that wait for nobody's slot.
        assert_eq!(line.order(now, usize::MAX).len(), 4);
        line.leave(free[0]);
        assert_eq!((line.start_free(now), line.start_free(now)), (Some(free[FREE_MAX]), None), "{manner:?}");
        // Who waits with others that are limited elsewhere waits no longer than they do.
        line.leave(free[1]);
        line.leave(free[FREE_MAX + 1]);
        line.raise(limited[2], 0, Gate::Free);
        assert_eq!(line.start_free(now), Some(limited[2]));
    }
}
