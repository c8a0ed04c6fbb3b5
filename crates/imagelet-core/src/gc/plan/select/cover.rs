//! Which set of images that share layers frees enough at the least cost.
//!
//! A layer is freed with the last image that has it. Layers of the same users are one *group*; a *move* takes all that
//! is left of a group's users. Few images are solved exactly (`exact.rs`), many by the best moves first and then by
//! exchanges (`greedy.rs`).

use super::{
    exact,
    greedy::{self, Moves},
    set_cover::{CoverState, Item, Problem, Weight, place},
};
use crate::{
    image::ImageId,
    runtime::{Freed, LayerGraph},
};

/// A set of images that frees enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cover {
    /// In the order in which they should go, what frees most for its cost first; with each what it frees after those
    /// before it, which is often nothing until the last of several that share.
    pub(super) images: Vec<(ImageId, Freed)>,
    /// What all of them free together.
    pub(super) freed: Freed,
    pub(super) cost: u128,
    /// No other set that frees enough costs less.
    pub(super) is_optimal: bool,
}

/// Chooses. `None`: all items together do not free enough. The same items have the same answer in any order; one that is
/// named twice counts once, and one that is not in the graph frees nothing that is known.
pub(super) fn choose(graph: &LayerGraph, items: &[Item], wanted: Freed) -> Option<Cover> {
    choose_within(graph, items, wanted, exact::NODES_MAX)
}

/// What all items together free.
pub(super) fn most(graph: &LayerGraph, items: &[Item]) -> Freed {
    Problem::new(graph, items).all().freed()
}

pub(super) fn choose_within(graph: &LayerGraph, items: &[Item], wanted: Freed, nodes_max: usize) -> Option<Cover> {
    let problem = Problem::new(graph, items);
    let target = Weight::of(wanted);
    if target == Weight::default() {
        return Some(Cover { is_optimal: true, ..Cover::default() });
    }
    if !problem.all().meets(target) {
        return None;
    }
    let moves = Moves::new(&problem);
    let mut best = greedy::choose(&moves, target);
    let is_optimal = exact::improve(&problem, target, &mut best, nodes_max);
    let mut state = CoverState::new(&problem);
    let mut images = Vec::with_capacity(best.len());
    for user in greedy::order(&moves, &best) {
        let before = state.gone();
        state.take(user);
        images.push((problem.images[place(user)].clone(), state.gone().less(before).freed()));
    }
    Some(Cover { images, freed: state.gone().freed(), cost: state.cost(), is_optimal })
}
