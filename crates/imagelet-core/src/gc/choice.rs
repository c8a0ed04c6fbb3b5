//! Which of the images that may go do go for room, and what holds the room that nobody can make.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    GcOrder, PlanInput,
    facts::Facts,
    reclaim::{self, Answer, Apart, Candidate, Question},
    worth,
};
use crate::{
    image::{ByteSize, ImageId},
    runtime::{Freed, LayerGraph},
};

/// An image that may go, by its place in the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct May {
    pub(super) place: usize,
    /// What the runtime lists it with.
    pub(super) size: ByteSize,
    /// What it is expected to cost that it went, were all of it its own; where room is made by cost and nobody knows of
    /// layers.
    pub(super) cost: u64,
}

/// How much must go for room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// To be where the goal is.
    pub(super) all: Freed,
    /// With less than this nothing is won, and images would go in vain.
    pub(super) least: Freed,
}

/// What goes for room.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Images by their place in the input, in order, and what comes free with each after those before it.
    pub(super) goes: Vec<(usize, Freed)>,
    /// What would come free if everything that may go went.
    pub(super) possible: Freed,
    /// The goal is out of reach.
    pub(super) is_short: bool,
}

/// What holds the space. The parts add up to what is used on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortage {
    /// By images in use alone.
    pub in_use: ByteSize,
    /// By pinned images that are not in use.
    pub pinned: ByteSize,
    /// By images that stay for another reason.
    pub kept: ByteSize,
    /// By layers of images that may go, which images that stay have as well, or running pulls.
    #[serde(default)]
    pub shared: ByteSize,
    /// By what could go, all at once.
    #[serde(default)]
    pub free: ByteSize,
    /// By anything but images.
    pub others: ByteSize,
    /// How much more must be free at least.
    #[serde(default)]
    pub missing: Freed,
}

/// Chooses from `may`, which comes in the order of last use; `gone` went for their age.
pub(super) fn room(input: &PlanInput, gone: &[usize], may: &[May], wanted: Option<Wanted>) -> Room {
    let Some(graph) = &input.layers else { return room_by_size(input, may, wanted) };
    let may: &[usize] = &may.iter().map(|it| it.place).collect::<Vec<_>>();
    let graph = without(graph, input, gone);
    let (candidates, places) = candidates(input, may);
    let ask = |wanted| Question { graph: &graph, candidates: &candidates, wanted };
    let possible = reclaim::most(&ask(Freed::default()));
    let Some(wanted) = wanted else {
        return Room { goes: in_order(&graph, input, may), possible, is_short: false };
    };
    if !possible.meets(wanted.least) {
        return Room { possible, is_short: true, ..Room::default() };
    }
    let is_short = !possible.meets(wanted.all);
    let wanted = if is_short { wanted.all.at_most(possible) } else { wanted.all };
    let goes = match input.policy.order() {
        GcOrder::Cost => {
            let Answer::Enough(choice) = reclaim::choose(&ask(wanted)) else { return Room::default() };
            let places = |image: &ImageId| places.get(image).cloned().unwrap_or_default();
            choice.images.iter().flat_map(|chosen| spread(places(&chosen.image), chosen.frees)).collect()
        }
        GcOrder::Lru => {
            let mut chosen: Vec<usize> = Vec::new();
            let mut freed = Freed::default();
            for (place, frees) in in_order(&graph, input, may) {
                if freed.meets(wanted) {
                    break;
                }
                freed = freed.plus(frees);
                chosen.push(place);
            }
            leave_out(&graph, input, &mut chosen, wanted);
            in_order(&graph, input, &chosen)
        }
    };
    Room { goes, possible, is_short }
}

/// What comes free when these go one after the other.
pub(super) fn in_order(graph: &LayerGraph, input: &PlanInput, images: &[usize]) -> Vec<(usize, Freed)> {
    let ids: Vec<&ImageId> = images.iter().map(|place| input.images.at(*place).id()).collect();
    // An image that another handler has as well goes with the last of them.
    let all: Vec<&ImageId> = input.images.iter().map(Facts::id).collect();
    let mut left: BTreeMap<&ImageId, usize> = BTreeMap::new();
    for id in &all {
        *left.entry(id).or_default() += 1;
    }
    let goes = ids.iter().map(|id| {
        let left = left.get_mut(id).expect("it is one of all");
        *left -= 1;
        (*left == 0).then_some(*id)
    });
    let goes: Vec<Option<&ImageId>> = goes.collect();
    images.iter().copied().zip(graph.freed_in_order(&goes)).collect()
}

/// The same where sizes are all that is known.
pub(super) fn frees(input: &PlanInput, images: &[usize]) -> Vec<(usize, Freed)> {
    match &input.layers {
        Some(graph) => in_order(graph, input, images),
        None => images.iter().map(|place| (*place, by_size(input.images.at(*place)))).collect(),
    }
}

fn by_size(image: Facts<'_>) -> Freed {
    Freed { bytes: image.size(), inodes: 0 }
}

fn room_by_size(input: &PlanInput, may: &[May], wanted: Option<Wanted>) -> Room {
    let freed = |bytes| Freed { bytes, inodes: 0 };
    let sized = || may.iter().map(|it| (it.place, freed(it.size)));
    let possible = freed(may.iter().map(|it| it.size).sum());
    let Some(wanted) = wanted else { return Room { goes: sized().collect(), possible, is_short: false } };
    // Nobody knows what inodes come free: only bytes can tell that nothing would be won.
    if !possible.meets(freed(wanted.least.bytes)) {
        return Room { possible, is_short: true, ..Room::default() };
    }
    let is_short = !possible.meets(wanted.all);
    let goes = if is_short {
        sized().collect()
    } else if input.policy.order() == GcOrder::Lru {
        let mut sum = Freed::default();
        let mut goes = Vec::new();
        for (place, frees) in sized() {
            if sum.meets(wanted.all) {
                break;
            }
            sum = sum.plus(frees);
            goes.push((place, frees));
        }
        goes
    } else {
        let apart: Vec<Apart> = may.iter().map(|it| Apart { cost: it.cost, frees: it.size }).collect();
        let chosen = reclaim::choose_apart(&apart, wanted.all).into_iter();
        chosen.map(|at| (may[at].place, freed(may[at].size))).collect()
    };
    Room { goes, possible, is_short }
}

/// The graph without what is gone.
fn without<'a>(graph: &'a LayerGraph, input: &PlanInput, gone: &[usize]) -> std::borrow::Cow<'a, LayerGraph> {
    if gone.is_empty() {
        return std::borrow::Cow::Borrowed(graph);
    }
    let goes: BTreeSet<usize> = gone.iter().copied().collect();
    let stays = input.images.iter().enumerate().filter(|(place, _)| !goes.contains(place));
    let stays: BTreeSet<&ImageId> = stays.map(|(_, image)| image.id()).collect();
    let mut graph = graph.clone();
    for id in gone.iter().map(|place| input.images.at(*place).id()).filter(|id| !stays.contains(id)) {
        graph.images.remove(id);
    }
    std::borrow::Cow::Owned(graph)
}

/// Who may go as an image: one that several handlers have may only if all of them let it.
fn candidates<'a>(input: &'a PlanInput, may: &[usize]) -> (Vec<Candidate>, BTreeMap<&'a ImageId, Vec<usize>>) {
    let mut places: BTreeMap<&ImageId, Vec<usize>> = BTreeMap::new();
    for place in may {
        places.entry(input.images.at(*place).id()).or_default().push(*place);
    }
    if places.values().any(|places| places.len() > 1) || input.images.len() > may.len() {
        let mut all: BTreeMap<&ImageId, usize> = BTreeMap::new();
        for image in input.images.iter() {
            *all.entry(image.id()).or_default() += 1;
        }
        places.retain(|id, places| all.get(id) == Some(&places.len()));
    }
    let is_by_cost = input.policy.order() == GcOrder::Cost;
    let costs = if is_by_cost { worth::costs_by_place(input, may) } else { Vec::new() };
    let cost = |places: &Vec<usize>| {
        places.iter().filter_map(|place| costs.get(*place)).fold(0, |sum: u64, cost| sum.saturating_add(*cost))
    };
    let candidates = places.iter().map(|(id, places)| Candidate { image: (*id).clone(), cost: cost(places) });
    (candidates.collect(), places)
}

/// The last of several handlers' copies frees what the image frees.
fn spread(places: Vec<usize>, frees: Freed) -> Vec<(usize, Freed)> {
    let last = places.len().saturating_sub(1);
    let each = |(at, place)| (place, if at == last { frees } else { Freed::default() });
    places.into_iter().enumerate().map(each).collect()
}

/// Leaves out what is not needed, the last used first.
fn leave_out(graph: &LayerGraph, input: &PlanInput, chosen: &mut Vec<usize>, wanted: Freed) {
    /// Each try looks at the whole graph.
    const TRIES_MAX: usize = 64;
    let freed = |places: &[usize]| graph.freed_by(places.iter().map(|place| input.images.at(*place).id()));
    let mut at = chosen.len();
    for _ in 0..TRIES_MAX.min(at) {
        at -= 1;
        let place = chosen.remove(at);
        if !freed(chosen).meets(wanted) {
            chosen.insert(at, place);
        }
    }
}

/// Splits what is used on the disk by who holds it. `may`: images that may go.
pub(super) fn shortage(input: &PlanInput, may: &[May], missing: Freed) -> Shortage {
    let mut shortage = Shortage { missing, ..Shortage::default() };
    let may: BTreeSet<usize> = may.iter().map(|it| it.place).collect();
    let mut holds: BTreeMap<&ImageId, Hold> = BTreeMap::new();
    for (place, image) in input.images.iter().enumerate() {
        let hold = if !image.in_use_by().is_empty() {
            Hold::InUse
        } else if !image.pinned_by().is_empty() {
            Hold::Pinned
        } else if may.contains(&place) {
            Hold::Free
        } else {
            Hold::Kept
        };
        match &input.layers {
            Some(_) => {
                let known = holds.entry(image.id()).or_insert(hold);
                *known = hold.max(*known);
            }
            None => shortage.add(hold, hold, image.size()),
        }
    }
    if let Some(graph) = &input.layers {
        // The strongest and the weakest hold on each layer; one that nobody knows is kept.
        let mut of: Vec<Option<(Hold, Hold)>> = vec![None; graph.layers.len()];
        for (image, parts) in &graph.images {
            let hold = holds.get(image).copied().unwrap_or(Hold::Kept);
            for part in parts {
                let Some(known) = usize::try_from(*part).ok().and_then(|part| of.get_mut(part)) else { continue };
                *known = Some(known.map_or((hold, hold), |(weak, strong)| (weak.min(hold), strong.max(hold))));
            }
        }
        for (layer, hold) in graph.layers.iter().zip(of) {
            let Some((weak, strong)) = hold else { continue };
            let strong = if layer.held { strong.max(Hold::Kept) } else { strong };
            shortage.add(weak, strong, layer.bytes);
        }
    }
    let images = shortage.in_use + shortage.pinned + shortage.kept + shortage.shared + shortage.free;
    let used = input.disk.as_ref().map_or(ByteSize::ZERO, |disk| disk.used);
    shortage.others = used.saturating_sub(images);
    shortage
}

/// How firmly an image is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    Free,
    Kept,
    Pinned,
    InUse,
}

impl Shortage {
    fn add(&mut self, weak: Hold, strong: Hold, bytes: ByteSize) {
        let part = match (weak, strong) {
            (_, Hold::Free) => &mut self.free,
            (Hold::Free, _) => &mut self.shared,
            (_, Hold::Kept) => &mut self.kept,
            (_, Hold::Pinned) => &mut self.pinned,
            (_, Hold::InUse) => &mut self.in_use,
        };
        *part = *part + bytes;
    }
}
