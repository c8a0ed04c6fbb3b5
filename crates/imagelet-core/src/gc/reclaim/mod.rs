//! Which images give a disk the room that is wanted at the least cost, where images share layers.
//!
//! A layer comes free with the last image that has it, so the worth of a removal depends on the others that go. Layers
//! of the same users are one *group*; a *move* takes all that still stands of a group's users. Few candidates are
//! solved exactly (`exact.rs`), many by the best moves first and then by exchanges (`greedy.rs`). Where nobody knows what
//! images share, each stands for itself (`apart.rs`).

mod apart;
mod exact;
mod greedy;
mod problem;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(super) use self::apart::{Apart, choose_apart};
use self::{
    greedy::Moves,
    problem::{Problem, State, Weight},
};
use crate::{
    image::{ByteSize, ImageId},
    runtime::{Freed, LayerGraph},
};

/// Who may go, and how much is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// What all images are made of. An image in it that is no candidate keeps its layers; a candidate that is not in it
    /// frees nothing that is known.
    pub graph: &'a LayerGraph,
    /// The images that may go; one that is named twice counts once.
    pub candidates: &'a [Candidate],
    /// How much is wanted. All zero wants nothing, and nothing goes.
    pub wanted: Freed,
}

/// An image that may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub image: ImageId,
    /// What it is expected to cost that it went, in any unit that all candidates share.
    pub cost: u64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// These give at least as much as wanted.
    Enough(Choice),
    /// All candidates together do not.
    Impossible {
        /// What they would give.
        most: Freed,
    },
}

/// A set of images that gives enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// In the order in which they should go: what gives most for its cost first.
    pub images: Vec<Chosen>,
    /// What all of them give together.
    pub freed: Freed,
    /// What they cost together.
    pub cost: u128,
    /// No other set that gives enough costs less.
    pub is_optimal: bool,
}

/// One image of the set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// Which.
    pub image: ImageId,
    /// What comes free when it goes after those before it: often nothing until the last of several that share.
    pub frees: Freed,
}

/// Chooses. The same question has the same answer, in whatever order candidates come.
pub fn choose(question: &Question<'_>) -> Answer {
    choose_within(question, exact::NODES_MAX)
}

/// What all candidates together would give.
pub fn most(question: &Question<'_>) -> Freed {
    let problem = Problem::new(question);
    problem.all().freed()
}

fn choose_within(question: &Question<'_>, nodes_max: usize) -> Answer {
    let problem = Problem::new(question);
    let target = Weight::of(question.wanted);
    if target == Weight::default() {
        return Answer::Enough(Choice { is_optimal: true, ..Choice::default() });
    }
    let most = problem.all();
    if !most.meets(target) {
        return Answer::Impossible { most: most.freed() };
    }
    let moves = Moves::new(&problem);
    let mut best = greedy::choose(&moves, target);
    let is_optimal = exact::improve(&problem, target, &mut best, nodes_max);
    let order = greedy::order(&moves, &best);
    Answer::Enough(problem.choice(order, is_optimal))
}

impl Problem {
    /// Tells a set in the order in which its images should go.
    fn choice(&self, order: Vec<u32>, is_optimal: bool) -> Choice {
        let mut state = State::new(self);
        let mut images = Vec::with_capacity(order.len());
        for user in order {
            let before = state.freed();
            state.take(user);
            let frees = Freed {
                bytes: state.freed().bytes.saturating_sub(before.bytes),
                inodes: state.freed().inodes.saturating_sub(before.inodes),
            };
            images.push(Chosen { image: self.image(user).clone(), frees });
        }
        Choice { images, freed: state.freed(), cost: state.cost(), is_optimal }
    }
}

impl Weight {
    fn of(freed: Freed) -> Self {
        Self { bytes: freed.bytes.0.into(), inodes: freed.inodes.into() }
    }

    fn freed(self) -> Freed {
        let narrow = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        Freed { bytes: ByteSize(narrow(self.bytes)), inodes: narrow(self.inodes) }
    }
}
