//! Selects the candidates to remove for space. If layers are known, this is a set-cover problem: a layer is freed with
//! the last image that uses the layer. Layers that the same images use are a *group*. These images are the *users* of
//! the group. A *move* removes all remaining users of a group. The best moves are taken first (`greedy.rs`). If only
//! sizes are known, images are independent.

mod greedy;
mod set_cover;

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use self::{
    greedy::Moves,
    set_cover::{CoverState, Problem, Weight},
};
use super::{PlanInput, is_idle, retention_score};
use crate::{
    gc::policy::{GcGoal, GcOrder},
    image::{ByteSize, ImageId},
    ports::{Freed, LayerGraph},
};

#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) all: Freed,
    /// The minimum amount. If all candidates together free less, the goal is unreachable.
    pub(super) least: Freed,
    /// For an unreachable goal: removes idle images, then others until this amount is free. `None`: removes no image.
    pub(super) relief: Option<Freed>,
}

#[derive(Debug, Default)]
pub(super) struct Selection {
    /// The images to remove, in order: their indices, and the amount that each removal frees in addition.
    pub(super) chosen: Vec<(usize, Freed)>,
    pub(super) reserve: Vec<(usize, Freed)>,
    pub(super) possible: Freed,
    pub(super) is_short: bool,
    pub(super) is_out_of_reach: bool,
}

/// Selects from `candidates`, which are sorted by last use. The images in `old` are removed by age. Both are indices.
pub(super) fn select(input: &PlanInput<'_>, old: &[usize], candidates: &[usize], wanted: Option<Wanted>) -> Selection {
    let field = Field::new(input, old);
    let possible = field.most(candidates);
    let Some(wanted) = wanted else {
        let chosen = if input.request.goal == GcGoal::AllUnused { field.in_order(candidates) } else { Vec::new() };
        return Selection { chosen, possible, ..Selection::default() };
    };
    if !input.request.policy.is_planned() {
        let mut listed = ByteSize::ZERO;
        let is_last = |place: &usize| {
            listed = listed + input.size(*place);
            listed >= wanted.all.bytes
        };
        let count = candidates.iter().position(is_last).map_or(candidates.len(), |last| last + 1);
        let mut chosen = field.in_order(candidates);
        let reserve = chosen.split_off(count);
        return Selection { chosen, reserve, possible, ..Selection::default() };
    }
    if field.may_meet(possible, wanted.least) {
        let is_short = !possible.meets(wanted.all);
        let target = if is_short { field.within(wanted.all, possible) } else { wanted.all };
        return Selection { chosen: field.choose(candidates, target), possible, is_short, ..Selection::default() };
    }
    let chosen = wanted.relief.map(|least| relieve(&field, old, candidates, least)).unwrap_or_default();
    Selection { chosen, possible, is_short: true, is_out_of_reach: true, ..Selection::default() }
}

/// The amount that each image frees if all are removed in this order. If the layers are unknown, it is the listed size.
pub(crate) fn frees(graph: Option<&LayerGraph>, input: &PlanInput<'_>, places: &[usize]) -> Vec<(usize, Freed)> {
    match graph {
        Some(graph) => by_layers(graph, input, places),
        None => places.iter().map(|place| (*place, bytes(input.size(*place)))).collect(),
    }
}

fn relieve(field: &Field<'_>, old: &[usize], candidates: &[usize], least: Freed) -> Vec<(usize, Freed)> {
    let id = |place: &usize| field.input.id(*place);
    // An image has an entry for each runtime handler. The image is recent if one of its entries is recent.
    let recent: BTreeSet<&ImageId> = candidates
        .iter()
        .filter(|place| !is_idle(&field.input.snapshot.entries[**place], field.input))
        .map(id)
        .collect();
    let idle: Vec<usize> = candidates.iter().copied().filter(|place| !recent.contains(id(place))).collect();
    let mut chosen = field.choose(&idle, field.most(&idle));
    let freed = chosen.iter().fold(Freed::default(), |sum, (_, frees)| sum.plus(*frees));
    if freed.meets(least) {
        return chosen;
    }
    let first: BTreeSet<usize> = chosen.iter().map(|(place, _)| *place).collect();
    let rest: Vec<usize> = candidates.iter().copied().filter(|place| !first.contains(place)).collect();
    let removed: Vec<usize> = old.iter().copied().chain(first).collect();
    let field = Field::new(field.input, &removed);
    chosen.extend(field.choose(&rest, field.within(least.less(freed), field.most(&rest))));
    chosen
}

struct Field<'a> {
    input: &'a PlanInput<'a>,
    graph: Option<Cow<'a, LayerGraph>>,
}

impl<'a> Field<'a> {
    fn new(input: &'a PlanInput<'a>, removed: &[usize]) -> Self {
        Self { input, graph: input.layers.map(|graph| without(graph, input, removed)) }
    }

    fn most(&self, candidates: &[usize]) -> Freed {
        let Some(graph) = &self.graph else { return bytes(candidates.iter().map(|it| self.input.size(*it)).sum()) };
        let images = by_image(self.input, candidates).into_keys().map(|id| (id, 0)).collect();
        Problem::new(graph, images).all().narrowed()
    }

    fn in_order(&self, candidates: &[usize]) -> Vec<(usize, Freed)> {
        frees(self.graph.as_deref(), self.input, candidates)
    }

    /// Whether this amount may be enough. If the layers are unknown, only bytes are known and compared.
    fn may_meet(&self, possible: Freed, wanted: Freed) -> bool {
        possible.meets(if self.graph.is_some() { wanted } else { bytes(wanted.bytes) })
    }

    /// The smaller of both amounts. If inodes are wanted but the layers are unknown: the possible amount.
    fn within(&self, wanted: Freed, possible: Freed) -> Freed {
        if self.graph.is_none() && wanted.inodes > 0 { possible } else { wanted.at_most(possible) }
    }

    /// Returns the removal order. All candidates together must free `wanted`.
    fn choose(&self, candidates: &[usize], wanted: Freed) -> Vec<(usize, Freed)> {
        let input = self.input;
        match (&self.graph, input.request.policy.order) {
            (Some(graph), GcOrder::Cost) => {
                let costs = retention_score::costs(input, candidates);
                let of_image = by_image(input, candidates);
                let cost = |at: &Vec<usize>| at.iter().fold(0_u64, |sum, at| sum.saturating_add(costs[*at]));
                let images = of_image.iter().map(|(id, at)| (*id, cost(at))).collect();
                let cover = choose(graph, images, wanted).unwrap_or_default();
                let entries = |(image, frees): &(ImageId, Freed)| {
                    let at = &of_image[image];
                    // An image has an entry per runtime handler. Only the removal of the last entry frees bytes.
                    let last = at.len() - 1;
                    let each = |(number, at): (usize, &usize)| {
                        (candidates[*at], if number == last { *frees } else { Freed::default() })
                    };
                    at.iter().enumerate().map(each).collect::<Vec<_>>()
                };
                cover.iter().flat_map(entries).collect()
            }
            (Some(graph), GcOrder::Lru | GcOrder::ListedSizes) => {
                let chosen = until(self.in_order(candidates), wanted);
                let mut chosen: Vec<usize> = chosen.into_iter().map(|(place, _)| place).collect();
                leave_out(graph, input, &mut chosen, wanted);
                by_layers(graph, input, &chosen)
            }
            (None, GcOrder::Cost) => {
                let costs = retention_score::costs(input, candidates);
                let images: Vec<_> = costs.into_iter().zip(candidates.iter().map(|it| input.size(*it))).collect();
                let chosen = choose_independent(&images, wanted).into_iter();
                chosen.map(|at| (candidates[at], bytes(input.size(candidates[at])))).collect()
            }
            (None, GcOrder::Lru | GcOrder::ListedSizes) => until(self.in_order(candidates), wanted),
        }
    }
}

fn until(chosen: Vec<(usize, Freed)>, wanted: Freed) -> Vec<(usize, Freed)> {
    let mut sum = Freed::default();
    let is_wanted = |(_, frees): &(usize, Freed)| {
        let is_wanted = !sum.meets(wanted);
        sum = sum.plus(*frees);
        is_wanted
    };
    chosen.into_iter().take_while(is_wanted).collect()
}

fn by_layers(graph: &LayerGraph, input: &PlanInput<'_>, places: &[usize]) -> Vec<(usize, Freed)> {
    // An image has an entry for each runtime handler. Only the removal of the last entry frees its layers.
    let mut left: BTreeMap<&ImageId, usize> = BTreeMap::new();
    let chosen = places.iter().map(|place| {
        let left = left.entry(input.id(*place)).or_insert_with(|| handlers(input, *place).len());
        *left -= 1;
        (*left == 0).then(|| input.id(*place))
    });
    let chosen: Vec<Option<&ImageId>> = chosen.collect();
    places.iter().copied().zip(graph.freed_in_order(&chosen)).collect()
}

fn bytes(bytes: ByteSize) -> Freed {
    Freed { bytes, inodes: 0 }
}

/// The indices of all entries of the image at `place`: one entry for each runtime handler.
fn handlers(input: &PlanInput<'_>, place: usize) -> Range<usize> {
    let id = input.id(place);
    let mut of_image = place..place + 1;
    while of_image.start > 0 && input.id(of_image.start - 1) == id {
        of_image.start -= 1;
    }
    while of_image.end < input.snapshot.entries.len() && input.id(of_image.end) == id {
        of_image.end += 1;
    }
    of_image
}

pub(super) fn without<'a>(graph: &'a LayerGraph, input: &PlanInput<'_>, removed: &[usize]) -> Cow<'a, LayerGraph> {
    if removed.is_empty() {
        return Cow::Borrowed(graph);
    }
    let chosen: BTreeSet<usize> = removed.iter().copied().collect();
    let mut graph = graph.clone();
    for place in removed {
        if handlers(input, *place).all(|place| chosen.contains(&place)) {
            graph.images.remove(input.id(*place));
        }
    }
    Cow::Owned(graph)
}

/// The positions of each image in `candidates`. Omits an image if not all of its entries are candidates.
fn by_image<'a>(input: &'a PlanInput<'_>, candidates: &[usize]) -> BTreeMap<&'a ImageId, Vec<usize>> {
    let mut of_image: BTreeMap<&ImageId, Vec<usize>> = BTreeMap::new();
    for (at, place) in candidates.iter().enumerate() {
        of_image.entry(input.id(*place)).or_default().push(at);
    }
    of_image.retain(|_, at| handlers(input, candidates[at[0]]).len() == at.len());
    of_image
}

/// Drops images that are not needed for the wanted amount, the most recently used image first.
fn leave_out(graph: &LayerGraph, input: &PlanInput<'_>, chosen: &mut Vec<usize>, wanted: Freed) {
    /// The maximum number of images to try. Each try reads the whole layer graph.
    const TRIES_MAX: usize = 64;
    let freed = |places: &[usize]| graph.freed_by(places.iter().map(|place| input.id(*place)));
    let mut at = chosen.len();
    for _ in 0..TRIES_MAX.min(at) {
        at -= 1;
        let place = chosen.remove(at);
        if !freed(chosen).meets(wanted) {
            chosen.insert(at, place);
        }
    }
}

/// Selects images by the best ratio of freed amount to cost. Returns them in removal order, each with the amount that
/// it frees in addition to the earlier images. `None`: all images together do not free enough. A duplicate counts once.
/// An image outside the graph frees zero.
fn choose(graph: &LayerGraph, images: Vec<(&ImageId, u64)>, wanted: Freed) -> Option<Vec<(ImageId, Freed)>> {
    let problem = Problem::new(graph, images);
    let target = Weight::of(wanted);
    if !problem.all().meets(target) {
        return None;
    }
    let moves = Moves::new(&problem);
    let mut state = CoverState::new(&problem);
    let step = |user| {
        let before = state.freed;
        state.take(user);
        (problem.images[user].clone(), state.freed.less(before).narrowed())
    };
    Some(greedy::choose(&moves, target).into_iter().map(step).collect())
}

/// Selects images by cost and size if the layers are unknown. Returns indices in removal order. If all images together
/// do not free enough, selects all. This includes any goal with inodes, because sizes have no inodes.
fn choose_independent(images: &[(u64, ByteSize)], wanted: Freed) -> Vec<usize> {
    let (problem, target) = (Problem::independent(images), Weight::of(wanted));
    if !problem.all().meets(target) {
        return (0..images.len()).collect();
    }
    greedy::choose(&Moves::new(&problem), target)
}
