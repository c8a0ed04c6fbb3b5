//! Never the wrong one: all orders in which small stories can happen, and many random steps of long ones, over the real
//! inventory and the real collector; and mistakes put in on purpose, all of which both must find.
//!
//! `IMAGELET_MODEL=wide` takes a million random steps; larger stories, as three pods with three images, are ignored tests. Let
//! the compiler work for those: `cargo test --config 'profile.test.package.imagelet-core.opt-level=3'`.
//! `IMAGELET_SEED=N` walks the long ones from another seed.

mod explore;
mod node;
mod story;
mod walk;
mod world;

use self::{
    explore::explore,
    story::{Act, Before, Size},
    walk::{KINDS, MOVING, NodeKind, ORDINARY, SANDBOXES, SHARED, VOLUMES, Walk, walk},
    world::{Mutation, Use},
};

/// Steps of the long walks in a wide run.
const STEPS_WIDE: u64 = 1_000_000;
/// Steps beside all other tests.
const STEPS: u64 = 150_000;
/// Bound of the steps until a mutation shows: more than any needs, because any change makes a different walk of a seed.
const STEPS_TO_FIND: u64 = 4 * STEPS_WIDE;

/// A sandbox that a pass has seen.
const SANDBOX: &[Before] = &[Before::Did(Act::Beside), Before::Passed];
/// Running pods that a pass has seen.
const WATCHED: &[Before] = &[Before::Runs(0), Before::Passed, Before::Did(Act::Tick)];
const BOTH_WATCHED: &[Before] = &[Before::Runs(0), Before::Runs(1), Before::Passed, Before::Did(Act::Tick)];

fn is_wide() -> bool {
    std::env::var_os("IMAGELET_MODEL").is_some_and(|wanted| wanted == "wide")
}

/// One pod, one present image, one collection.
fn one() -> Size {
    Size { collections: 1, is_stocked: true, ..Size::of(1, 1) }
}

/// Stories explored in all orders.
fn sizes() -> Vec<(&'static str, Size)> {
    let one = one();
    let mut sizes = vec![
        ("a container that exits", Size { exits: true, is_fine: true, ..one }),
        ("a pull", Size { is_stocked: false, ticks: 1, ..one }),
        ("two collections", Size { collections: 2, ..one }),
        ("a pass meanwhile", Size { passes: 1, ..one }),
        ("a crash", Size { crashes: 1, ticks: 1, ..one }),
        ("a pin", Size { pins: 1, ..one }),
        ("an order", Size { orders: 1, ..one }),
        ("an image volume", Size { pods_hold: Use::Volume, ticks: 1, ..one }),
        ("a sandbox", Size { pods: 0, besides: 1, besides_hold: Use::Sandbox, passes: 1, ..one }),
        ("a failed call", Size { is_stocked: false, failures: 1, ..one }),
        ("a failed call in a pass", Size { pods: 0, failures: 1, besides: 1, passes: 1, ..one }),
        ("a failed call and a crash", Size { failures: 1, crashes: 1, ..one }),
        ("a tag that moves", Size { moves: 1, images: 2, ..one }),
        (
            "a tag that moves away from a sandbox",
            Size { pods: 0, images: 2, moves: 1, besides: 1, besides_hold: Use::Sandbox, before: SANDBOX, ..one },
        ),
        ("a crash amid a doubt", Size { collections: 2, crashes: 1, restarts: 1, before: WATCHED, ..one }),
        ("two pods with leases", Size { pods: 2, images: 2, before: &[Before::Leased(0), Before::Leased(1)], ..one }),
    ];
    sizes.extend(mistakes().into_iter().map(|(_, name, size)| (name, size)));
    sizes
}

/// Stories explored in a wide run only.
fn wide_sizes() -> Vec<(&'static str, Size)> {
    let one = one();
    let two = Size { pods: 2, images: 2, ..one };
    vec![
        ("a pull and a pass", Size { is_stocked: false, ticks: 3, passes: 1, ..one }),
        ("a runtime that restarts", Size { passes: 1, restarts: 1, ..one }),
        ("two pods with one image", Size { pods: 2, ..one }),
        ("two pods with two images", two),
        ("two pods that pull, with a crash", Size { is_stocked: false, crashes: 1, ..two }),
        ("two pods with two images, an order and a crash", Size { orders: 1, crashes: 1, ..two }),
        ("a pass beside two pods", Size { pods: 2, passes: 1, ..one }),
        ("half a list", Size { passes: 1, restarts: 1, ..two }),
        ("a crash amid half a list", Size { collections: 2, crashes: 1, restarts: 1, before: BOTH_WATCHED, ..two }),
        ("two crashes", Size { collections: 2, crashes: 2, ..one }),
        ("a crash beside a restart", Size { crashes: 1, restarts: 1, passes: 1, ..one }),
        ("all at once", Size { crashes: 1, orders: 1, pins: 1, ..one }),
        ("three pods with one image", Size { pods: 3, ..one }),
        ("three pods with three images", Size { pods: 3, images: 3, ..one }),
    ]
}

/// Each mutation with a small story that shows it.
fn mistakes() -> Vec<(Mutation, &'static str, Size)> {
    use Before::{Did, Leased, Passed, Runs};
    /// The lease of a volume runs until its end.
    const VOLUME: &[Before] =
        &[Runs(0), Passed, Did(Act::Tick), Passed, Did(Act::Tick), Passed, Did(Act::Tick), Passed, Did(Act::Tick)];
    /// A pass has listed the container, which came late, and asks for its volumes.
    const UNSEEN: &[Before] = &[
        Leased(0),
        Passed,
        Did(Act::Tick),
        Runs(0),
        Did(Act::Observe),
        Did(Act::Observe),
        Did(Act::Observe),
        Did(Act::Observe),
    ];
    const PINNED: &[Before] = &[Did(Act::Pin)];
    // The collection has listed the containers again, and not yet the image.
    const ASKING_AGAIN: &[Before] = &[Did(Act::Collect), Did(Act::Collect), Did(Act::Collect)];
    let one = one();
    let two = Size { pods: 2, images: 2, ..one };
    vec![
        (Mutation::NoLease, "a tick", Size { ticks: 1, ..one }),
        (
            Mutation::OldAnswerBelieved,
            "an answer as old as the image",
            Size { ticks: 1, before: &[Did(Act::Tick)], ..one },
        ),
        (Mutation::RemovalNotMarked, "a question during a removal", Size { before: &[Did(Act::Tick)], ..one }),
        (Mutation::EmptyListBelieved, "an empty list", Size { restarts: 1, before: WATCHED, ..one }),
        (Mutation::HalfListBelieved, "half a list", Size { restarts: 1, before: BOTH_WATCHED, ..two }),
        (
            Mutation::LeasesForgotten,
            "a crash after the answer",
            Size { crashes: 1, ticks: 1, before: &[Leased(0)], ..one },
        ),
        (
            Mutation::AnyContainerServes,
            "a container of another pod",
            Size { pods: 3, before: &[Runs(0), Runs(1), Leased(2), Passed, Did(Act::Tick)], ..two },
        ),
        (
            Mutation::NewestPassIgnored,
            "a pass while it is asked again",
            Size { pods: 0, besides: 1, passes: 1, before: ASKING_AGAIN, ..one },
        ),
        (Mutation::PinsNotAskedAgain, "a pin while it is asked again", Size { pins: 1, before: ASKING_AGAIN, ..one }),
        (Mutation::VolumesIgnored, "an image volume", Size { pods_hold: Use::Volume, before: VOLUME, ..one }),
        (
            Mutation::SandboxesIgnored,
            "a sandbox that a pass has seen",
            Size { pods: 0, besides: 1, besides_hold: Use::Sandbox, passes: 1, ..one },
        ),
        (
            Mutation::NewNamesIgnored,
            "a pinned name that moves while it is asked again",
            Size { pods: 0, moves: 1, images: 2, before: PINNED, ..one },
        ),
        (
            Mutation::FailedAnswerBelieved,
            "a volume that is not reported",
            Size { pods_hold: Use::Volume, failures: 1, passes: 2, ticks: 3, is_fine: true, before: UNSEEN, ..one },
        ),
    ]
}

/// The nodes that can show a mistake.
fn kinds_of(flaw: Mutation) -> &'static [NodeKind] {
    match flaw {
        Mutation::VolumesIgnored | Mutation::FailedAnswerBelieved => &[VOLUMES],
        Mutation::SandboxesIgnored => &[SANDBOXES],
        Mutation::NewNamesIgnored => &[MOVING],
        Mutation::AnyContainerServes => &[SHARED],
        _ => &[ORDINARY],
    }
}

fn explore_all(sizes: Vec<(&'static str, Size)>) {
    for (name, size) in sizes {
        let explored = explore(size);
        println!("{name}: {} states, {} stories, {} removals", explored.states, explored.stories, explored.removals);
        assert_eq!(explored.violation, None, "{name}");
        assert!(explored.removals > 0 || !size.before.is_empty(), "{name}: nothing was ever removed");
    }
}

#[test]
fn no_small_story_ends_with_the_wrong_image_removed() {
    explore_all(sizes());
}

#[test]
#[ignore = "tells far more stories, which takes many minutes"]
fn no_wider_story_ends_with_the_wrong_image_removed() {
    explore_all(wide_sizes());
}

#[test]
fn each_mistake_put_in_on_purpose_is_found_by_exploring_all_small_stories_and_by_a_random_walk() {
    let mut missed = Vec::new();
    let mut table = format!("{:<20} {:>18} {:>14}", "mistake", "of all stories", "of a walk");
    for (flaw, name, size) in mistakes() {
        let explored = explore(Size { flaw: Some(flaw), ..size });
        let kinds = kinds_of(flaw);
        let walked = walk(Walk { seed: walk::seed(), steps: STEPS_TO_FIND, kinds, flaw: Some(flaw) });
        let is_found = [&explored.violation, &walked.violation].map(Option::is_some);
        let after = |is_found: bool, count: u64, unit: &str| {
            if is_found { format!("{count} {unit}") } else { "not found".to_owned() }
        };
        let states = after(is_found[0], explored.states as u64, "states");
        let steps = after(is_found[1], walked.steps, "steps");
        let row = format!("\n{:<20} {states:>18} {steps:>14}  {name}", format!("{flaw:?}"));
        table.push_str(&row);
        missed.extend((is_found != [true, true]).then_some(flaw));
        for violation in [explored.violation, walked.violation].into_iter().flatten() {
            println!("{flaw:?}: {violation}");
        }
    }
    println!("{table}");
    assert_eq!(missed, [], "not found: {table}");
}

#[test]
fn many_random_steps_remove_no_image_in_use() {
    let steps = if is_wide() { STEPS_WIDE } else { STEPS };
    let walked = walk(Walk { seed: walk::seed(), steps, kinds: KINDS, flaw: None });
    println!("{walked:?}");
    assert_eq!(walked.violation, None);
    assert!(walked.removals > 100 && walked.containers > 1_000, "{walked:?}");
}
