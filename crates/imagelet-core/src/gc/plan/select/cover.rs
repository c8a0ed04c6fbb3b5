//! The cover of shared layers: the set of images that frees enough at the least cost.
//!
//! A layer is freed with its last image. Layers of the same users are one *group*; a *move* removes all remaining users
//! of a group. Small sets are solved exactly (`exact.rs`), large ones greedily with exchanges (`greedy.rs`).

use super::{
    exact,
    greedy::{self, Moves},
    set_cover::{CoverState, Item, Problem, Weight, place},
};
use crate::{
    image::ImageId,
    runtime::{Freed, LayerGraph},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cover {
    /// Removal order, most freed for its cost first. Each entry has the bytes freed after the previous ones, which is
    /// often zero until the last image of a shared layer.
    pub(super) images: Vec<(ImageId, Freed)>,
    pub(super) freed: Freed,
    pub(super) cost: u128,
    /// No cheaper set frees enough.
    pub(super) is_optimal: bool,
}

/// `None`: all items together do not free enough. The order of the items does not matter; a duplicate counts once, and
/// an image outside the graph frees zero.
pub(super) fn choose(graph: &LayerGraph, items: &[Item], wanted: Freed) -> Option<Cover> {
    choose_within(graph, items, wanted, exact::NODES_MAX)
}

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
