//! The exhaustive exploration: from each reached state each possible act, each state once.

use std::{collections::HashSet, rc::Rc};

use tokio::runtime::{Builder, Runtime};

use super::{
    node::Node,
    story::{Act, Size, joined},
    world::ACTORS,
};

/// Bound of a story's length; an endless story fails.
const STORY_MAX: usize = 400;

/// A clock that advances only on request.
pub(super) fn clock() -> Rc<Runtime> {
    Rc::new(Builder::new_current_thread().enable_time().start_paused(true).build().unwrap())
}

#[derive(Debug, Default)]
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) stories: usize,
    pub(super) removals: u64,
    pub(super) violation: Option<String>,
}

/// Runs all stories of this size, each common prefix once, until one fails.
pub(super) fn explore(size: Size) -> Explored {
    let clock = clock();
    let _entered = clock.enter();
    let mut explored = Explored::default();
    let mut known: HashSet<u64> = HashSet::new();
    // The choices of the current story, each with the remaining alternatives.
    let mut choices: Vec<Vec<Act>> = Vec::new();
    // The observations of each actor after each choice.
    let mut seen: Vec<[u64; ACTORS]> = Vec::new();
    loop {
        explored.stories += 1;
        let mut node = retell(size, &clock, &choices, &mut seen);
        while node.world.lock().violation.is_none() {
            assert!(choices.len() < STORY_MAX, "a story that does not end: {}", joined(&story(&choices)));
            if !known.insert(node.digest()) {
                break;
            }
            let acts = node.acts();
            let Some(act) = acts.last().copied() else { break };
            choices.push(acts);
            node.act(act);
            seen.push(node.world.lock().seen);
        }
        let world = node.world.lock();
        explored.removals += world.removals;
        if let Some(violation) = &world.violation {
            explored.violation = Some(format!("{violation}: {}", joined(&story(&choices))));
            break;
        }
        drop(world);
        while let Some(tried) = choices.last_mut() {
            tried.pop();
            if !tried.is_empty() {
                break;
            }
            choices.pop();
        }
        if choices.is_empty() {
            break;
        }
    }
    explored.states = known.len();
    explored
}

/// Replays the choices on a new node. Only the last choice is new.
fn retell(size: Size, clock: &Rc<Runtime>, choices: &[Vec<Act>], seen: &mut Vec<[u64; ACTORS]>) -> Node {
    let mut node = Node::new(size, clock);
    seen.truncate(choices.len().saturating_sub(1));
    for (at, act) in story(choices).into_iter().enumerate() {
        node.is_known = at + 1 < choices.len();
        if !node.is_known
            && let Some(seen) = seen.last()
        {
            node.world.lock().seen = *seen;
        }
        node.act(act);
    }
    node.is_known = false;
    if !choices.is_empty() {
        seen.push(node.world.lock().seen);
    }
    node
}

fn story(choices: &[Vec<Act>]) -> Vec<Act> {
    choices.iter().filter_map(|tried| tried.last().copied()).collect()
}
