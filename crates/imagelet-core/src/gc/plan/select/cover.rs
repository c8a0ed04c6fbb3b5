//! The cover of shared layers: the set of images that frees enough at the least cost.
//!
//! A layer is freed with its last image. Layers of the same users are one *group*; a *move* removes all remaining users
//! of a group. Small sets are solved exactly (`exact.rs`), large ones greedily (`greedy.rs`).

use std::cmp::Reverse;

use super::{
    exact,
    greedy::{self, Moves},
    set_cover::{CoverState, Item, Problem, Weight, number, place},
};
use crate::{
    image::{ByteSize, ImageId},
    runtime::{Freed, LayerGraph},
};

/// The images in removal order, most freed for its cost first, with the bytes freed after the previous ones, which are
/// often zero until the last image of a shared layer. `None`: all items together do not free enough.
///
/// The order of the items does not matter; a duplicate counts once, and an image outside the graph frees zero.
pub(super) fn choose(graph: &LayerGraph, items: &[Item], wanted: Freed) -> Option<Vec<(ImageId, Freed)>> {
    let problem = Problem::new(graph, items);
    let target = Weight::of(wanted);
    if !problem.all().meets(target) {
        return None;
    }
    let moves = Moves::new(&problem);
    let best = exact::improve(&problem, target, greedy::choose(&moves, target));
    let mut state = CoverState::new(&problem);
    let step = |user: u32| {
        let before = state.freed();
        state.take(user);
        (problem.images[place(user)].clone(), state.freed().less(before).narrowed())
    };
    Some(greedy::order(&moves, &best).into_iter().map(step).collect())
}

pub(super) fn most(graph: &LayerGraph, items: &[Item]) -> Freed {
    Problem::new(graph, items).all().narrowed()
}

/// Indices, in removal order, of images without shared layers by cost and size; all of them where they do not free
/// enough. Sizes do not cover inodes, so an inode goal selects all.
pub(super) fn choose_independent(images: &[(u64, ByteSize)], wanted: Freed) -> Vec<usize> {
    let by_ratio = |at: &usize| Reverse((images[*at].1.0 as f64 / images[*at].0.max(1) as f64).to_bits());
    let target = Weight::of(wanted);
    let frees = |at: usize| Weight { bytes: images[at].1.0.into(), inodes: 0 };
    let mut order: Vec<usize> = (0..images.len()).collect();
    let all = order.iter().fold(Weight::default(), |sum, at| sum.plus(frees(*at)));
    if !all.meets(target) {
        return order;
    }
    order.sort_by_cached_key(by_ratio);
    // The best ratios cost at most one image more than the best set: without the last one they are the cheapest set for
    // the bytes that they free.
    let (mut chosen, mut freed) = (Vec::new(), Weight::default());
    for at in order {
        if freed.meets(target) {
            break;
        }
        freed = freed.plus(frees(at));
        chosen.push(at);
    }
    for position in (0..chosen.len()).rev() {
        let without = freed.less(frees(chosen[position]));
        if without.meets(target) {
            freed = without;
            chosen.remove(position);
        }
    }
    if images.len() <= exact::CANDIDATES_MAX {
        let best = exact::improve(&Problem::independent(images), target, chosen.into_iter().map(number).collect());
        chosen = best.into_iter().map(place).collect();
        chosen.sort_by_cached_key(by_ratio);
    }
    chosen
}
