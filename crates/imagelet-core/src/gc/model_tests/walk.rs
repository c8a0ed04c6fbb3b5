//! One long story at random: pods come and go for ever, and everything else happens now and then.

use super::{
    explore::clock,
    node::{Act, Node, Size, told},
};
use crate::inventory::Flaw;

/// Acts that are told of where something went wrong.
const TOLD_MAX: usize = 60;
/// A node is new after so many steps, so that nothing grows without end.
const STEPS_PER_NODE: u64 = 2_000;

/// A walk to be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub(super) seed: u64,
    pub(super) steps: u64,
    pub(super) flaw: Option<Flaw>,
}

/// What a walk came to.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) steps: u64,
    pub(super) removals: u64,
    pub(super) containers: u64,
    pub(super) violation: Option<String>,
}

/// Where walks begin; printed with whatever they find.
#[expect(clippy::disallowed_methods, reason = "a test is told so")]
pub(super) fn seed() -> u64 {
    std::env::var("IMAGELET_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_121)
}

/// Walks until something goes wrong or the steps are done.
pub(super) fn walk(walk: Walk) -> Walked {
    let clock = clock();
    let _entered = clock.enter();
    let mut random = Random(walk.seed | 1);
    let mut walked = Walked::default();
    while walked.steps < walk.steps && walked.violation.is_none() {
        let endless = usize::MAX;
        let size = Size {
            collections: endless,
            passes: endless,
            orders: endless,
            works: endless,
            crashes: endless,
            restarts: endless,
            pins: endless,
            besides: endless,
            ticks: endless,
            is_endless: true,
            exits: true,
            is_stocked: true,
            is_fine: random.below(2) == 0,
            flaw: walk.flaw,
            ..Size::of(1 + random.below(3), 1 + random.below(3))
        };
        let mut node = Node::new(size, &clock);
        node.is_known = true;
        let mut acts_told: Vec<Act> = Vec::new();
        for _ in 0..STEPS_PER_NODE {
            let acts = node.acts();
            let act = random.choose(&node, &acts);
            if acts_told.len() == TOLD_MAX {
                acts_told.remove(0);
            }
            acts_told.push(act);
            node.act(act);
            walked.steps += 1;
            let world = node.world.lock();
            if let Some(violation) = &world.violation {
                walked.violation = Some(format!("{violation}: … {}", told(&acts_told)));
                break;
            }
        }
        let world = node.world.lock();
        walked.removals += world.removals;
        walked.containers += world.started();
    }
    walked
}

/// Xorshift: the same walk from the same seed everywhere.
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

    /// What is rare in life is rare here: for most steps somebody goes on with what was begun.
    fn choose(&mut self, node: &Node, acts: &[Act]) -> Act {
        loop {
            let act = acts[self.below(acts.len())];
            let one_in = match act {
                Act::Pod(pod) if node.is_idle(pod) => 12,
                Act::Pod(_) | Act::Collect | Act::Observe => 1,
                Act::Tick => 3,
                Act::Recover | Act::Beside => 12,
                Act::Work => 12,
                Act::Remove => 24,
                Act::RestartHalf => 8,
                Act::Crash | Act::Restart => 24,
                Act::Pin => 48,
                Act::Unpin => 8,
            };
            if self.below(one_in) == 0 {
                return act;
            }
        }
    }
}
