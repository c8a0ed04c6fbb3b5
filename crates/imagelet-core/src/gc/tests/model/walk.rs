//! A long random walk: pods come and go without end, and all other acts happen at times.
//!
//! With constant probabilities a walk rarely meets rare stories: containers would end before a list is wrong. So a walk
//! passes through weathers, each with its own probabilities.

use std::time::Duration;

use super::{
    explore::clock,
    node::{Node, TICK},
    story::{Act, Size, joined},
    world::{Mutation, Use},
};
use crate::{
    gc::{GcGoal, GcOrder, GcPolicy, GcRequest},
    image::ByteSize,
    testing::in_order,
};

/// Acts printed with a failure.
const SHOWN_MAX: usize = 60;
/// A node is replaced after this many steps, as a bound of its growth, or mostly after a few: in its first steps its
/// images lie idle, and later seldom.
const STEPS_PER_NODE: (u64, u64) = (2_000, 60);
/// One in this many nodes lives long.
const NODES_PER_LONG: usize = 8;
/// What is not the same on all nodes; half of them are ordinary.
pub(super) const KINDS: &[NodeKind] = &[VOLUMES, SANDBOXES, MOVING, ORDINARY, ORDINARY, ORDINARY];
pub(super) const VOLUMES: NodeKind = NodeKind { fails: true, pods_hold: Use::Volume, ..ORDINARY };
pub(super) const SANDBOXES: NodeKind =
    NodeKind { fails: true, has_moving_names: true, besides_hold: Use::Sandbox, ..ORDINARY };
/// Two pods use an image.
pub(super) const SHARED: NodeKind = NodeKind { images_max: 2, ..ORDINARY };
pub(super) const MOVING: NodeKind = NodeKind { has_moving_names: true, pods_hold: Use::Volume, ..ORDINARY };
pub(super) const ORDINARY: NodeKind = NodeKind {
    fails: false,
    has_moving_names: false,
    pods_hold: Use::Container,
    besides_hold: Use::Container,
    images_max: IMAGES_MAX,
};
/// Limits of pods and images of a node.
const PODS_MAX: usize = 4;
const IMAGES_MAX: usize = 3;
/// The least steps of a weather, and the most additional ones.
const WEATHER_LASTS: (usize, usize) = (20, 100);
/// One in how many chances a pod takes a step, per weather.
const OF_PODS: [usize; 5] = [1, 1, 4, 16, 64];
/// The factor for an idle pod.
const RESTS: usize = 4;
/// The same for a collection, a pass or the clock.
const OF_WHEELS: [usize; 5] = [1, 1, 1, 4, 16];
/// The same for the end of a failure or an unpin.
const OF_ENDS: [usize; 2] = [2, 8];
/// The same for a manual pin, work or container start.
const OF_HANDS: [usize; 4] = [1, 4, 16, 64];
/// The same for a failed call.
const OF_FAILURES: [usize; 3] = [4, 16, 64];
/// The same for a crash, a restart, a moving name or a removal.
const OF_EVENTS: [usize; 5] = [4, 16, 64, 256, 1024];
/// In some weather a running pass precedes other acts, except for one in this many: otherwise hardly any pass would
/// begin and end while a collection waits for one answer. 1: never.
const OF_HASTE: [usize; 3] = [1, 1, 16];

#[derive(Clone, Copy, Debug)]
pub(super) struct NodeKind {
    /// Calls of its runtime fail.
    fails: bool,
    has_moving_names: bool,
    pods_hold: Use,
    besides_hold: Use,
    images_max: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub(super) seed: u64,
    pub(super) steps: u64,
    pub(super) kinds: &'static [NodeKind],
    pub(super) flaw: Option<Mutation>,
}

#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) steps: u64,
    pub(super) removals: u64,
    pub(super) containers: u64,
    pub(super) violation: Option<String>,
}

/// The seed of the walks, printed with a failure.
#[expect(clippy::disallowed_methods, reason = "a setting of this test")]
pub(super) fn seed() -> u64 {
    std::env::var("IMAGELET_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(77)
}

pub(super) fn walk(walk: Walk) -> Walked {
    let clock = clock();
    let _entered = clock.enter();
    let mut random = Random(walk.seed | 1);
    let mut walked = Walked::default();
    while walked.steps < walk.steps && walked.violation.is_none() {
        let endless = usize::MAX;
        let is_long = random.below(NODES_PER_LONG) == 0;
        // Without pods only manual acts start containers, and all images are idle.
        let pods = if is_long { 1 + random.below(PODS_MAX) } else { random.below(PODS_MAX) };
        let kind = random.one_of(walk.kinds);
        let size = Size {
            collections: endless,
            passes: endless,
            orders: endless,
            crashes: endless,
            restarts: endless,
            pins: endless,
            besides: endless,
            failures: if kind.fails { endless } else { 0 },
            moves: if kind.has_moving_names { endless } else { 0 },
            ticks: endless,
            is_endless: true,
            exits: random.below(2) == 0,
            pods_hold: kind.pods_hold,
            besides_hold: kind.besides_hold,
            is_stocked: true,
            is_fine: random.below(2) == 0,
            flaw: walk.flaw,
            ..Size::of(pods, 1 + random.below(pods.clamp(1, kind.images_max)))
        };
        let mut node = Node::new(size, &clock);
        node.is_known = true;
        let mut last_acts: Vec<Act> = Vec::new();
        let (mut weather, mut lasts) = (Weather::default(), 0);
        for _ in 0..if is_long { STEPS_PER_NODE.0 } else { STEPS_PER_NODE.1 } {
            if lasts == 0 {
                lasts = WEATHER_LASTS.0 + random.below(WEATHER_LASTS.1);
                weather = Weather::drawn(&mut random);
                node.request = random.request();
            }
            lasts -= 1;
            let act = random.choose(&node, &weather, last_acts.last().copied());
            if last_acts.len() == SHOWN_MAX {
                last_acts.remove(0);
            }
            last_acts.push(act);
            node.act(act);
            walked.steps += 1;
            let world = node.world.lock();
            if let Some(violation) = &world.violation {
                walked.violation = Some(format!("{violation}: … {}", joined(&last_acts)));
                break;
            }
        }
        let world = node.world.lock();
        walked.removals += world.removals;
        walked.containers += world.started();
    }
    walked
}

/// Probabilities: one in this many chances.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    pods: [usize; PODS_MAX],
    wheels: [usize; 3],
    ends: [usize; 2],
    hands: [usize; 3],
    failures: [usize; 2],
    events: [usize; 5],
    haste: usize,
}

impl Weather {
    fn drawn(random: &mut Random) -> Self {
        Self {
            pods: std::array::from_fn(|_| random.one_of(&OF_PODS)),
            wheels: std::array::from_fn(|_| random.one_of(&OF_WHEELS)),
            ends: std::array::from_fn(|_| random.one_of(&OF_ENDS)),
            hands: std::array::from_fn(|_| random.one_of(&OF_HANDS)),
            failures: std::array::from_fn(|_| random.one_of(&OF_FAILURES)),
            events: std::array::from_fn(|_| random.one_of(&OF_EVENTS)),
            haste: random.one_of(&OF_HASTE),
        }
    }

    fn rarity(&self, act: Act) -> usize {
        match act {
            Act::Pod(pod) => self.pods[pod],
            Act::Collect => self.wheels[0],
            Act::Observe => self.wheels[1],
            Act::Tick => self.wheels[2],
            Act::Recover => self.ends[0],
            Act::Unpin => self.ends[1],
            Act::Beside => self.hands[1],
            Act::Pin => self.hands[2],
            Act::Remove => self.events[0],
            Act::Crash => self.events[1],
            Act::Restart => self.events[2],
            Act::RestartHalf => self.events[3],
            Act::Move => self.events[4],
            Act::Refuse => self.failures[0],
            Act::Lose => self.failures[1],
        }
    }
}

/// Xorshift: the same walk from the same seed on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a length")
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn choose(&mut self, node: &Node, weather: &Weather, last: Option<Act>) -> Act {
        let acts = node.acts();
        let is_amid = last == Some(Act::Observe) && node.is_passing();
        if is_amid && acts.contains(&Act::Observe) && self.below(weather.haste) > 0 {
            return Act::Observe;
        }
        loop {
            let act = self.one_of(&acts);
            let rests = matches!(act, Act::Pod(pod) if node.is_idle(pod));
            if self.below(weather.rarity(act) * if rests { RESTS } else { 1 }) == 0 {
                return act;
            }
        }
    }

    /// A collection in either algorithm and order, without a minimum age.
    fn request(&mut self) -> GcRequest {
        let age_max = Some(Duration::from_secs(TICK));
        let goal = self.one_of(&[GcGoal::AllUnused, GcGoal::AllUnused, GcGoal::Free(ByteSize(100)), GcGoal::Threshold]);
        let policy = GcPolicy::new(90, 80, Duration::ZERO, age_max).expect("low is below high");
        let order = self.one_of(&[GcOrder::Lru, GcOrder::Cost, GcOrder::ListedSizes]);
        GcRequest { policy: in_order(order, policy), goal, dry_run: false }
    }
}
