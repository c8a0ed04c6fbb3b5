//! Which of the images that may go do go for room, and what holds the room that nobody can make.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use serde::{Deserialize, Serialize};

use super::{
    GcOrder, PlanInput, Step,
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
    /// Idle for so long that it goes although the goal is out of reach.
    pub(super) is_idle: bool,
    /// What it is expected to cost that it went, were all of it its own; where room is made by cost and nobody knows of
    /// layers.
    pub(super) cost: u64,
}

/// How much must go for room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// To be where the goal is.
    pub(super) all: Freed,
    /// With less than this the goal is out of reach.
    pub(super) least: Freed,
    /// Where it is out of reach: what is idle goes, and more until this is free. `None`: nothing goes.
    pub(super) relief: Option<Freed>,
}

/// What goes for room.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Images by their place in the input, in order, and what comes free with each after those before it.
    pub(super) goes: Vec<(usize, Freed)>,
    /// What would come free if everything that may go went.
    pub(super) possible: Freed,
    /// All that may go is not enough to be where the goal is.
    pub(super) is_short: bool,
    /// Not even enough for the least that is wanted.
    pub(super) is_out_of_reach: bool,
}

/// What holds the space once all that is planned has gone. The parts add up to what is used on the disk then.
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
    /// By what could go, all at once, and stays.
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
    let field = Field::new(input, gone);
    let possible = field.most(may);
    let Some(wanted) = wanted else { return Room { goes: field.all(may), possible, ..Room::default() } };
    if field.may_meet(possible, wanted.least) {
        let is_short = !possible.meets(wanted.all);
        let target = if is_short { field.within(wanted.all, possible) } else { wanted.all };
        return Room { goes: field.select(may, target), possible, is_short, is_out_of_reach: false };
    }
    let goes = wanted.relief.map(|least| relieve(&field, gone, may, least)).unwrap_or_default();
    Room { goes, possible, is_short: true, is_out_of_reach: true }
}

/// What goes although the goal is out of reach: what is idle, and of the rest as much as frees `least` with it.
fn relieve(field: &Field<'_>, gone: &[usize], may: &[May], least: Freed) -> Vec<(usize, Freed)> {
    let id = |it: &May| field.input.images.at(it.place).id();
    // An image that several handlers have is as idle as the one that used it last.
    let recent: BTreeSet<&ImageId> = may.iter().filter(|it| !it.is_idle).map(id).collect();
    let idle: Vec<May> = may.iter().copied().filter(|it| !recent.contains(id(it))).collect();
    let mut goes = field.select(&idle, field.most(&idle));
    let freed = goes.iter().fold(Freed::default(), |sum, (_, frees)| sum.plus(*frees));
    if freed.meets(least) {
        return goes;
    }
    let first: BTreeSet<usize> = goes.iter().map(|(place, _)| *place).collect();
    let rest: Vec<May> = may.iter().copied().filter(|it| !first.contains(&it.place)).collect();
    let gone: Vec<usize> = gone.iter().copied().chain(first).collect();
    let field = Field::new(field.input, &gone);
    goes.extend(field.select(&rest, field.within(least.less(freed), field.most(&rest))));
    goes
}

/// What images free: by the layers that they share, or by their sizes where layers are not known.
struct Field<'a> {
    input: &'a PlanInput,
    graph: Option<Cow<'a, LayerGraph>>,
}

impl<'a> Field<'a> {
    fn new(input: &'a PlanInput, gone: &[usize]) -> Self {
        Self { input, graph: input.layers.as_ref().map(|graph| without(graph, input, gone)) }
    }

    /// What would come free if all of them went.
    fn most(&self, may: &[May]) -> Freed {
        let Some(graph) = &self.graph else { return freed(may.iter().map(|it| it.size).sum()) };
        let (candidates, _) = candidates(self.input, may);
        reclaim::most(&Question { graph, candidates: &candidates, wanted: Freed::default() })
    }

    fn all(&self, may: &[May]) -> Vec<(usize, Freed)> {
        match &self.graph {
            Some(graph) => in_order(graph, self.input, &places(may)),
            None => may.iter().map(|it| (it.place, freed(it.size))).collect(),
        }
    }

    /// Whether so much may be enough. Sizes say nothing of inodes: only bytes can say that it is not.
    fn may_meet(&self, possible: Freed, wanted: Freed) -> bool {
        possible.meets(if self.graph.is_some() { wanted } else { freed(wanted.bytes) })
    }

    /// As much of what is wanted as is possible; all where it is not known how much that is.
    fn within(&self, wanted: Freed, possible: Freed) -> Freed {
        if self.graph.is_none() && wanted.inodes > 0 { possible } else { wanted.at_most(possible) }
    }

    /// Those that free so much, which is possible, in the order in which they go.
    fn select(&self, may: &[May], wanted: Freed) -> Vec<(usize, Freed)> {
        let input = self.input;
        match (&self.graph, input.policy.order()) {
            (Some(graph), GcOrder::Cost) => {
                let (candidates, places) = candidates(input, may);
                let question = Question { graph, candidates: &candidates, wanted };
                let Answer::Enough(choice) = reclaim::choose(&question) else { return Vec::new() };
                let places = |image: &ImageId| places.get(image).cloned().unwrap_or_default();
                choice.images.iter().flat_map(|chosen| spread(places(&chosen.image), chosen.frees)).collect()
            }
            (Some(graph), GcOrder::Lru) => {
                let in_turn = until(in_order(graph, input, &places(may)), wanted);
                let mut chosen: Vec<usize> = in_turn.into_iter().map(|(place, _)| place).collect();
                leave_out(graph, input, &mut chosen, wanted);
                in_order(graph, input, &chosen)
            }
            (None, GcOrder::Cost) => {
                let apart: Vec<Apart> = may.iter().map(|it| Apart { cost: it.cost, frees: it.size }).collect();
                let chosen = reclaim::choose_apart(&apart, wanted).into_iter();
                chosen.map(|at| (may[at].place, freed(may[at].size))).collect()
            }
            (None, GcOrder::Lru) => until(self.all(may), wanted),
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
        None => images.iter().map(|place| (*place, freed(input.images.at(*place).size()))).collect(),
    }
}

fn freed(bytes: ByteSize) -> Freed {
    Freed { bytes, inodes: 0 }
}

fn places(may: &[May]) -> Vec<usize> {
    may.iter().map(|it| it.place).collect()
}

/// The graph without what is gone.
fn without<'a>(graph: &'a LayerGraph, input: &PlanInput, gone: &[usize]) -> Cow<'a, LayerGraph> {
    if gone.is_empty() {
        return Cow::Borrowed(graph);
    }
    let goes: BTreeSet<usize> = gone.iter().copied().collect();
    let stays = input.images.iter().enumerate().filter(|(place, _)| !goes.contains(place));
    let stays: BTreeSet<&ImageId> = stays.map(|(_, image)| image.id()).collect();
    let mut graph = graph.clone();
    for id in gone.iter().map(|place| input.images.at(*place).id()).filter(|id| !stays.contains(id)) {
        graph.images.remove(id);
    }
    Cow::Owned(graph)
}

/// Who may go as an image: one that several handlers have may only if all of them let it.
fn candidates<'a>(input: &'a PlanInput, may: &[May]) -> (Vec<Candidate>, BTreeMap<&'a ImageId, Vec<usize>>) {
    let mut places: BTreeMap<&ImageId, Vec<usize>> = BTreeMap::new();
    for it in may {
        places.entry(input.images.at(it.place).id()).or_default().push(it.place);
    }
    if places.values().any(|places| places.len() > 1) || input.images.len() > may.len() {
        let mut all: BTreeMap<&ImageId, usize> = BTreeMap::new();
        for image in input.images.iter() {
            *all.entry(image.id()).or_default() += 1;
        }
        places.retain(|id, places| all.get(id) == Some(&places.len()));
    }
    let is_by_cost = input.policy.order() == GcOrder::Cost;
    let costs = if is_by_cost { worth::costs_by_place(input, &self::places(may)) } else { Vec::new() };
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

/// Splits what is used on the disk by who holds it, once `steps` have gone. `may`: images that may go.
pub(super) fn shortage(input: &PlanInput, may: &[May], steps: &[Step], missing: Freed) -> Shortage {
    let mut shortage = Shortage { missing, ..Shortage::default() };
    let may: BTreeSet<usize> = may.iter().map(|it| it.place).collect();
    let gone: BTreeSet<usize> = steps.iter().map(|step| step.place).collect();
    let mut holds: BTreeMap<&ImageId, Hold> = BTreeMap::new();
    for (place, image) in input.images.iter().enumerate() {
        let hold = if gone.contains(&place) {
            Hold::Gone
        } else if !image.in_use_by().is_empty() {
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
            if hold == Hold::Gone {
                continue;
            }
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
    let freed = steps.iter().fold(input.aged.plus(input.freed), |sum, step| sum.plus(step.freed()));
    let used = input.disk.as_ref().map_or(ByteSize::ZERO, |disk| disk.used).saturating_sub(freed.bytes);
    shortage.others = used.saturating_sub(images);
    shortage
}

/// How firmly an image is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    Gone,
    Free,
    Kept,
    Pinned,
    InUse,
}

impl Shortage {
    fn add(&mut self, weak: Hold, strong: Hold, bytes: ByteSize) {
        let part = match (weak, strong) {
            (_, Hold::Gone) => return,
            (_, Hold::Free) => &mut self.free,
            (Hold::Free, _) => &mut self.shared,
            (_, Hold::Kept) => &mut self.kept,
            (_, Hold::Pinned) => &mut self.pinned,
            (_, Hold::InUse) => &mut self.in_use,
        };
        *part = *part + bytes;
    }
}
