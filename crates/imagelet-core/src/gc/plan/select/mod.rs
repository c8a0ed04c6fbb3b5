//! Selects which of the images that may go do go for space.
//!
//! Where layers are known, the set that frees enough at the least cost is a set-cover problem (`cover.rs`); where
//! only sizes are, each image stands for itself (`independent.rs`).

mod cover;
mod exact;
mod greedy;
mod independent;
mod set_cover;

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use self::{independent::Independent, set_cover::Item};
use super::{input::PlanInput, retention_score};
use crate::{
    gc::policy::{GcGoal, GcOrder, GcWay},
    image::{ByteSize, ImageId},
    runtime::{Freed, LayerGraph},
};

/// An image that may go, by its place in the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) place: usize,
    /// What the runtime lists it with.
    pub(super) size: ByteSize,
    /// Idle for so long that it goes although the goal is out of reach.
    pub(super) is_idle: bool,
}

/// How much must go for space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// To reach the goal.
    pub(super) all: Freed,
    /// With less than this the goal is out of reach.
    pub(super) least: Freed,
    /// Where it is out of reach: what is idle goes, and more until this is free. `None`: nothing goes.
    pub(super) relief: Option<Freed>,
}

/// What goes for space.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// Images by their place in the input, in order, and what each frees after those before it.
    pub(super) goes: Vec<(usize, Freed)>,
    /// In the kubelet's policy: what goes next where a removal fails.
    pub(super) reserve: Vec<(usize, Freed)>,
    /// What would be free if all candidates went.
    pub(super) possible: Freed,
    /// All candidates are not enough for the goal.
    pub(super) is_short: bool,
    /// Not even enough for the least that is wanted.
    pub(super) is_out_of_reach: bool,
}

/// Selects from the candidates, which are in the order of last use; `old` went for their age.
pub(super) fn select(
    input: &PlanInput<'_>,
    old: &[usize],
    candidates: &[Candidate],
    wanted: Option<Wanted>,
) -> Selection {
    let field = Field::new(input, old);
    let possible = field.most(candidates);
    let Some(wanted) = wanted else {
        let goes = if input.goal == GcGoal::AllUnused { field.in_order(candidates) } else { Vec::new() };
        return Selection { goes, possible, ..Selection::default() };
    };
    if input.policy.way() == GcWay::Kubelet {
        let mut listed = ByteSize::ZERO;
        let is_last = |it: &Candidate| {
            listed = listed + it.size;
            listed >= wanted.all.bytes
        };
        let count = candidates.iter().position(is_last).map_or(candidates.len(), |last| last + 1);
        let mut goes = field.in_order(candidates);
        let reserve = goes.split_off(count);
        return Selection { goes, reserve, possible, ..Selection::default() };
    }
    if field.may_meet(possible, wanted.least) {
        let is_short = !possible.meets(wanted.all);
        let target = if is_short { field.within(wanted.all, possible) } else { wanted.all };
        return Selection { goes: field.choose(candidates, target), possible, is_short, ..Selection::default() };
    }
    let goes = wanted.relief.map(|least| relieve(&field, old, candidates, least)).unwrap_or_default();
    Selection { goes, possible, is_short: true, is_out_of_reach: true, ..Selection::default() }
}

/// What these images free one after the other: by layers, or by their sizes where layers are not known.
pub(in crate::gc) fn frees(input: &PlanInput<'_>, places: &[usize]) -> Vec<(usize, Freed)> {
    match input.layers {
        Some(graph) => by_layers(graph, input, places),
        None => places.iter().map(|place| (*place, bytes(input.entries[*place].image.size))).collect(),
    }
}

/// What goes although the goal is out of reach: what is idle, and of the rest as much as frees `least` with it.
fn relieve(field: &Field<'_>, old: &[usize], candidates: &[Candidate], least: Freed) -> Vec<(usize, Freed)> {
    let id = |it: &Candidate| field.input.id(it.place);
    // An image of several handlers is as idle as the one that used it last.
    let recent: BTreeSet<&ImageId> = candidates.iter().filter(|it| !it.is_idle).map(id).collect();
    let idle: Vec<Candidate> = candidates.iter().copied().filter(|it| !recent.contains(id(it))).collect();
    let mut goes = field.choose(&idle, field.most(&idle));
    let freed = goes.iter().fold(Freed::default(), |sum, (_, frees)| sum.plus(*frees));
    if freed.meets(least) {
        return goes;
    }
    let first: BTreeSet<usize> = goes.iter().map(|(place, _)| *place).collect();
    let rest: Vec<Candidate> = candidates.iter().copied().filter(|it| !first.contains(&it.place)).collect();
    let gone: Vec<usize> = old.iter().copied().chain(first).collect();
    let field = Field::new(field.input, &gone);
    goes.extend(field.choose(&rest, field.within(least.less(freed), field.most(&rest))));
    goes
}

/// What candidates free: by the layers that they share, or by their sizes where layers are not known.
struct Field<'a> {
    input: &'a PlanInput<'a>,
    graph: Option<Cow<'a, LayerGraph>>,
}

impl<'a> Field<'a> {
    fn new(input: &'a PlanInput<'a>, gone: &[usize]) -> Self {
        Self { input, graph: input.layers.map(|graph| without(graph, input, gone)) }
    }

    /// What would be free if all of them went.
    fn most(&self, candidates: &[Candidate]) -> Freed {
        let Some(graph) = &self.graph else { return bytes(candidates.iter().map(|it| it.size).sum()) };
        let items: Vec<Item> = by_image(self.input, candidates).into_keys().map(|id| Item::new(id, 0)).collect();
        cover::most(graph, &items)
    }

    fn in_order(&self, candidates: &[Candidate]) -> Vec<(usize, Freed)> {
        match &self.graph {
            Some(graph) => by_layers(graph, self.input, &places(candidates)),
            None => candidates.iter().map(|it| (it.place, bytes(it.size))).collect(),
        }
    }

    /// Whether so much may be enough. Sizes say nothing of inodes: only bytes can say that it is not.
    fn may_meet(&self, possible: Freed, wanted: Freed) -> bool {
        possible.meets(if self.graph.is_some() { wanted } else { bytes(wanted.bytes) })
    }

    /// As much of what is wanted as is possible; all where it is not known how much that is.
    fn within(&self, wanted: Freed, possible: Freed) -> Freed {
        if self.graph.is_none() && wanted.inodes > 0 { possible } else { wanted.at_most(possible) }
    }

    /// Those that free so much, which is possible, in the order in which they go.
    fn choose(&self, candidates: &[Candidate], wanted: Freed) -> Vec<(usize, Freed)> {
        let input = self.input;
        match (&self.graph, input.policy.order()) {
            (Some(graph), GcOrder::Cost) => {
                let costs = retention_score::costs(input, &places(candidates));
                let of_image = by_image(input, candidates);
                let cost = |at: &Vec<usize>| at.iter().fold(0_u64, |sum, at| sum.saturating_add(costs[*at]));
                let items: Vec<Item> = of_image.iter().map(|(id, at)| Item::new(id, cost(at))).collect();
                let Some(cover) = cover::choose(graph, &items, wanted) else { return Vec::new() };
                let entries = |(image, frees): &(ImageId, Freed)| {
                    let at = &of_image[image];
                    // The last entry of an image of several handlers frees what the image frees.
                    let last = at.len() - 1;
                    let each = |(number, at): (usize, &usize)| {
                        (candidates[*at].place, if number == last { *frees } else { Freed::default() })
                    };
                    at.iter().enumerate().map(each).collect::<Vec<_>>()
                };
                cover.images.iter().flat_map(entries).collect()
            }
            (Some(graph), GcOrder::Lru) => {
                let goes = until(self.in_order(candidates), wanted);
                let mut chosen: Vec<usize> = goes.into_iter().map(|(place, _)| place).collect();
                leave_out(graph, input, &mut chosen, wanted);
                by_layers(graph, input, &chosen)
            }
            (None, GcOrder::Cost) => {
                let costs = retention_score::costs(input, &places(candidates));
                let independent = candidates
                    .iter()
                    .zip(costs)
                    .map(|(it, cost)| Independent { cost, frees: it.size })
                    .collect::<Vec<_>>();
                let chosen = independent::choose(&independent, wanted).into_iter();
                chosen.map(|at| (candidates[at].place, bytes(candidates[at].size))).collect()
            }
            (None, GcOrder::Lru) => until(self.in_order(candidates), wanted),
        }
    }
}

/// The first of them that are enough together.
fn until(goes: Vec<(usize, Freed)>, wanted: Freed) -> Vec<(usize, Freed)> {
    let mut sum = Freed::default();
    let is_wanted = |(_, frees): &(usize, Freed)| {
        let is_wanted = !sum.meets(wanted);
        sum = sum.plus(*frees);
        is_wanted
    };
    goes.into_iter().take_while(is_wanted).collect()
}

fn by_layers(graph: &LayerGraph, input: &PlanInput<'_>, places: &[usize]) -> Vec<(usize, Freed)> {
    // An image of several handlers goes with the last of its entries.
    let mut left: BTreeMap<&ImageId, usize> = BTreeMap::new();
    let goes = places.iter().map(|place| {
        let left = left.entry(input.id(*place)).or_insert_with(|| handlers(input, *place).len());
        *left -= 1;
        (*left == 0).then(|| input.id(*place))
    });
    let goes: Vec<Option<&ImageId>> = goes.collect();
    places.iter().copied().zip(graph.freed_in_order(&goes)).collect()
}

fn bytes(bytes: ByteSize) -> Freed {
    Freed { bytes, inodes: 0 }
}

fn places(candidates: &[Candidate]) -> Vec<usize> {
    candidates.iter().map(|it| it.place).collect()
}

/// The entries of the image at this place: one for each handler that has it.
fn handlers(input: &PlanInput<'_>, place: usize) -> Range<usize> {
    let id = input.id(place);
    let mut of_image = place..place + 1;
    while of_image.start > 0 && input.id(of_image.start - 1) == id {
        of_image.start -= 1;
    }
    while of_image.end < input.entries.len() && input.id(of_image.end) == id {
        of_image.end += 1;
    }
    of_image
}

/// The graph without what is gone.
fn without<'a>(graph: &'a LayerGraph, input: &PlanInput<'_>, gone: &[usize]) -> Cow<'a, LayerGraph> {
    if gone.is_empty() {
        return Cow::Borrowed(graph);
    }
    let goes: BTreeSet<usize> = gone.iter().copied().collect();
    let mut graph = graph.clone();
    for place in gone {
        if handlers(input, *place).all(|place| goes.contains(&place)) {
            graph.images.remove(input.id(*place));
        }
    }
    Cow::Owned(graph)
}

/// Positions of the candidates by image: an image of several handlers may go only if each of them lets it.
fn by_image<'a>(input: &'a PlanInput<'_>, candidates: &[Candidate]) -> BTreeMap<&'a ImageId, Vec<usize>> {
    let mut of_image: BTreeMap<&ImageId, Vec<usize>> = BTreeMap::new();
    for (at, it) in candidates.iter().enumerate() {
        of_image.entry(input.id(it.place)).or_default().push(at);
    }
    of_image.retain(|_, at| handlers(input, candidates[at[0]].place).len() == at.len());
    of_image
}

/// Leaves out what is not needed, the last used first.
fn leave_out(graph: &LayerGraph, input: &PlanInput<'_>, chosen: &mut Vec<usize>, wanted: Freed) {
    /// Each try looks at the whole graph.
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
