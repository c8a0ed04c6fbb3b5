//! Selection among independent images: what each frees does not depend on the others.

use super::{
    exact,
    greedy::{self, Moves},
    set_cover::{self, Problem, Weight},
};
use crate::{image::ByteSize, runtime::Freed};

/// Above this many candidates the best ratios are enough: an exchange gains little and takes milliseconds.
const CANDIDATES_FEW: usize = 1_000;

/// An image without shared layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Independent {
    pub(super) cost: u64,
    pub(super) frees: ByteSize,
}

/// Returns indices in removal order; all of them where they do not free enough. Sizes do not cover inodes, so an inode
/// goal selects all.
pub(super) fn choose(candidates: &[Independent], wanted: Freed) -> Vec<usize> {
    if wanted == Freed::default() {
        return Vec::new();
    }
    let all: u128 = candidates.iter().map(|it| u128::from(it.frees.0)).sum();
    if wanted.inodes > 0 || all < u128::from(wanted.bytes.0) {
        return (0..candidates.len()).collect();
    }
    if candidates.len() > CANDIDATES_FEW {
        return by_ratio(candidates, wanted.bytes.0.into());
    }
    let problem = Problem::independent(candidates.iter().map(|it| (it.cost, it.frees)));
    let target = Weight::of(wanted);
    let moves = Moves::new(&problem);
    let mut best = greedy::choose(&moves, target);
    exact::improve(&problem, target, &mut best, exact::NODES_MAX);
    greedy::order(&moves, &best).into_iter().map(set_cover::place).collect()
}

/// Selects the best ratios until they free enough, then prunes.
///
/// The result costs at most one image more than the best set: without its last image it is the cheapest set for the
/// bytes it frees.
fn by_ratio(candidates: &[Independent], target: u128) -> Vec<usize> {
    let ratio = |it: &Independent| it.frees.0 as f64 / it.cost.max(1) as f64;
    let mut order: Vec<(f64, usize)> = candidates.iter().map(ratio).zip(0..).collect();
    order.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    let frees = |at: usize| u128::from(candidates[at].frees.0);
    let (mut chosen, mut freed) = (Vec::new(), 0);
    for (_, at) in order {
        if freed >= target {
            break;
        }
        freed += frees(at);
        chosen.push(at);
    }
    for position in (0..chosen.len()).rev() {
        let without = freed - frees(chosen[position]);
        if without >= target {
            freed = without;
            chosen.remove(position);
        }
    }
    chosen
}
