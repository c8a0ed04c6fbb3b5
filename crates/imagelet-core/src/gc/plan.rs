//! Which images go, in which order, and why each other stays: a plain function of its input (`docs/spec/gc.md §6-§8, §21`).
//!
//! First what is too old goes, whatever the disk. Then, where room is wanted, as much as is wanted and no image more;
//! where not even all that may go would be enough, what was idle for long, and on a disk that is nearly full more.

use std::{cmp::Ordering, time::SystemTime};

use serde::{Deserialize, Serialize};

use super::{
    AgeCounts, GcGoal, GcOrder, GcPhase, Kept, PlanInput, Reason, ReliefMarks, Shortage,
    choice::{self, May, Wanted, frees},
    facts::Facts,
    keeping::held_by_rules,
    reason::Idle,
    time::{is_older, is_younger},
    worth::Worth,
};
use crate::{
    image::{ByteSize, ImageKey},
    runtime::{Certainty, Freed},
};

/// What is to be done, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The removals, in order.
    pub steps: Vec<Step>,
    /// Everything else, by its place in the input.
    pub kept: Kept,
    /// How much is to be freed; `None` where no room is wanted, or everything unused is.
    pub wanted: Option<ByteSize>,
    /// How many inodes are to be freed.
    #[serde(default)]
    pub wanted_inodes: u64,
    /// What the steps free.
    pub frees: ByteSize,
    /// How many inodes the steps free, where that is known.
    #[serde(default)]
    pub frees_inodes: u64,
    /// What could be freed if everything that may go went.
    pub could_free: ByteSize,
    /// How sure that is.
    #[serde(default)]
    pub certainty: Certainty,
    /// What holds the space after the steps, where the goal is out of reach.
    pub shortage: Option<Shortage>,
}

/// One removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Which image.
    pub key: ImageKey,
    /// Its place in the input.
    #[serde(default)]
    pub place: usize,
    /// What for.
    pub phase: GcPhase,
    /// Why.
    pub reason: Reason,
    /// What it frees after the steps before it.
    pub frees: ByteSize,
    /// How many inodes, where that is known.
    #[serde(default)]
    pub inodes: u64,
}

/// An image that nothing holds, with what its turn depends on.
#[derive(Clone, Copy, Debug)]
struct Free {
    last_used: Option<SystemTime>,
    first_seen: Option<SystemTime>,
    size: ByteSize,
    place: usize,
    /// See [`May::cost`].
    cost: u64,
    is_fresh: bool,
}

/// Decides.
pub fn plan(input: &PlanInput) -> Plan {
    let mut kept = Kept::all(input.images.len(), Reason::NotNeeded);
    let mut free = free(input, &mut kept);
    let are_sorted = input.images.are_sorted();
    free.sort_by(|one, other| {
        let by = |it: &Free| (it.last_used, it.first_seen);
        let key = |it: &Free| input.images.at(it.place).key();
        // A sort keeps the order of equals, so where keys come in theirs they need not be read.
        let by_key = || if are_sorted { Ordering::Equal } else { key(one).cmp(&key(other)) };
        by(one).cmp(&by(other)).then_with(by_key)
    });

    let mut steps: Vec<Step> = Vec::new();
    let mut old: Vec<usize> = Vec::new();
    if input.policy.age_max().is_some() {
        old.extend(free.iter().filter(|it| is_old(it, input)).map(|it| it.place));
        free.retain(|it| !is_old(it, input));
    }
    let age_max = input.policy.age_max().unwrap_or_default();
    for (place, frees) in frees(input, &old) {
        let image = input.images.at(place);
        let reason = Reason::Old { idle: idle(image, input), age_max };
        steps.push(Step::new(image, place, GcPhase::Age, reason, frees));
    }
    let aged = steps.iter().fold(Freed::default(), |sum, step| sum.plus(step.freed()));

    let wanted = wanted(input, aged);
    let is_room_wanted = wanted.is_some() || input.goal == GcGoal::AllUnused;
    let (mut may, mut fresh): (Vec<May>, Vec<usize>) = (Vec::with_capacity(free.len()), Vec::new());
    for it in &free {
        if it.is_fresh {
            fresh.push(it.place);
        } else {
            may.push(May { place: it.place, size: it.size, is_idle: is_idle(it, input), cost: it.cost });
        }
    }
    let room = match (input.goal, wanted) {
        (GcGoal::AllUnused, _) => choice::room(input, &old, &may, None),
        (_, None) => choice::Room::default(),
        (_, Some(wanted)) => choice::room(input, &old, &may, Some(wanted)),
    };
    let phase = if input.goal == GcGoal::AllUnused { GcPhase::All } else { GcPhase::Space };
    for (place, frees) in room.goes {
        let image = input.images.at(place);
        let idle = idle(image, input);
        let reason = match phase {
            GcPhase::All => Reason::Unused { idle },
            GcPhase::Age | GcPhase::Space => Reason::Room { idle, frees: frees.bytes },
        };
        steps.push(Step::new(image, place, phase, reason, frees));
    }

    let shortage = wanted.filter(|_| room.is_short).map(|wanted| {
        let freed = steps.iter().filter(|step| step.phase != GcPhase::Age).map(Step::freed);
        choice::shortage(input, &may, &steps, wanted.least.less(freed.fold(Freed::default(), Freed::plus)))
    });
    if room.is_out_of_reach {
        let relief = input.policy.relief().filter(|_| wanted.is_some_and(|wanted| wanted.relief.is_some()));
        for it in &may {
            let recent = relief.filter(|_| !it.is_idle);
            let reason = recent.map(|ReliefMarks { idle_min, .. }| {
                let idle = idle(input.images.at(it.place), input);
                Reason::Recent { idle, idle_min }
            });
            kept.keep(it.place, reason.unwrap_or(Reason::InVain));
        }
    }
    for place in fresh.into_iter().filter(|_| is_room_wanted) {
        kept.keep(place, too_fresh(input.images.at(place), input).unwrap_or(Reason::NotNeeded));
    }
    for step in &steps {
        kept.goes(step.place);
    }
    Plan {
        kept,
        wanted: wanted.map(|wanted| wanted.all.bytes),
        wanted_inodes: wanted.map_or(0, |wanted| wanted.all.inodes),
        frees: steps.iter().map(|step| step.frees).sum(),
        frees_inodes: steps.iter().map(|step| step.inodes).fold(0, u64::saturating_add),
        could_free: aged.plus(room.possible).bytes,
        certainty: input.layers.as_ref().map_or(Certainty::Claimed, |graph| graph.certainty),
        shortage,
        steps,
    }
}

/// Those that nothing holds; of all others it is noted what does.
fn free(input: &PlanInput, kept: &mut Kept) -> Vec<Free> {
    let ruled = (!input.rules.is_empty()).then(|| held_by_rules(&input.images, &input.rules, input.now));
    let mut ruled = ruled.unwrap_or_default().into_iter();
    // At the same look, as a node has more images than a processor keeps at hand.
    let is_cost_asked = input.policy.order() == GcOrder::Cost && input.layers.is_none();
    let worth = (is_cost_asked && wanted(input, Freed::default()).is_some()).then(|| Worth::of(input));
    let mut free = Vec::with_capacity(input.images.len());
    for (place, image) in input.images.iter().enumerate() {
        let ruled = ruled.next().flatten();
        if let Some(reason) = holds(image, input).or(ruled) {
            kept.keep(place, reason);
            continue;
        }
        free.push(Free {
            last_used: image.last_used(),
            first_seen: image.first_seen(),
            size: image.size(),
            place,
            cost: worth.as_ref().map_or(0, |worth| worth.cost(image, image.size().0 as f64)),
            is_fresh: too_fresh(image, input).is_some(),
        });
    }
    free
}

/// Why it stays whatever is wanted.
fn holds(image: Facts<'_>, input: &PlanInput) -> Option<Reason> {
    if !input.spared.is_empty()
        && let Some(reason) = input.spared.get(&image.key())
    {
        return Some(reason.clone());
    }
    if !image.in_use_by().is_empty() {
        return Some(Reason::InUse { by: image.in_use_by().to_vec() });
    }
    if !image.pinned_by().is_empty() {
        return Some(Reason::Pinned { by: image.pinned_by().to_vec() });
    }
    if let Some(until) = image.leased_until() {
        return Some(Reason::awaited(until));
    }
    if image.released_at().is_some() {
        return Some(Reason::Released);
    }
    image.id().as_str().is_empty().then_some(Reason::NoId)
}

/// Why it stays although room is wanted.
fn too_fresh(image: Facts<'_>, input: &PlanInput) -> Option<Reason> {
    let age_min = input.policy.age_min();
    if image.last_used() >= Some(input.now) {
        return Some(Reason::JustUsed);
    }
    if is_younger(image.first_seen(), age_min, input.now) {
        return Some(Reason::Young { age_min });
    }
    let is_leased = image.leased_at().is_some() && is_younger(image.leased_at(), age_min, input.now);
    is_leased.then_some(Reason::Leased { lease: age_min })
}

/// Whether it was idle for so long that it goes although the goal is out of reach.
fn is_idle(image: &Free, input: &PlanInput) -> bool {
    let leased_at = || input.images.at(image.place).leased_at();
    let since = || image.last_used.max(image.first_seen).max(leased_at());
    input.policy.relief().is_some_and(|relief| !is_younger(since(), relief.idle_min, input.now))
}

fn is_old(image: &Free, input: &PlanInput) -> bool {
    let Some(age_max) = input.policy.age_max().filter(|_| input.goal == GcGoal::Threshold) else { return false };
    if !is_older(Some(input.watched_since), age_max, input.now) {
        return false;
    }
    let since = match input.policy.age_counts() {
        AgeCounts::FromUseOrSight => image.last_used.max(image.first_seen),
        AgeCounts::FromUse => image.last_used,
    };
    is_older(since, age_max, input.now) && !image.is_fresh
}

/// How much must go for room, after what goes for its age.
///
/// Below the high threshold the pressure is over, so that is worth it even where the low one is out of reach. A low
/// threshold of zero is always out of reach and says: as far as it goes. What pulls under way have reserved is theirs:
/// beyond the goal as much more must be free.
fn wanted(input: &PlanInput, aged: Freed) -> Option<Wanted> {
    let aged = input.aged.plus(aged);
    let (all, least, relief) = match input.goal {
        GcGoal::AllUnused => return None,
        GcGoal::Free(bytes) => {
            let wanted = Freed { bytes, inodes: 0 }.less(aged);
            (wanted, wanted, None)
        }
        GcGoal::Threshold => {
            let disk = input.disk.as_ref().filter(|disk| disk.capacity > ByteSize::ZERO)?.with_more_available(aged);
            let (bytes, inodes) = (input.policy.room_wanted(&disk), input.policy.inodes_wanted(&disk));
            if bytes.is_none() && inodes.is_none() {
                return None;
            }
            let is_bottomless = input.policy.low().get() == 0;
            let least = Freed {
                bytes: match bytes {
                    Some(all) if !is_bottomless => input.policy.room_below_high(&disk).min(all),
                    _ => ByteSize::ZERO,
                },
                inodes: inodes.map_or(0, |(_, least)| least),
            };
            let all = Freed {
                bytes: bytes.map_or(ByteSize::ZERO, |bytes| bytes + disk.reserved.bytes),
                inodes: inodes.map_or(0, |(all, _)| all.saturating_add(disk.reserved.inodes)),
            };
            (all, least, input.policy.relief_wanted(&disk))
        }
    };
    let missing = |of: Freed| of.less(input.freed);
    let wanted = Wanted { all: missing(all), least: missing(least), relief: relief.map(missing) };
    Some(wanted).filter(|wanted| !wanted.all.is_none())
}

impl Step {
    fn new(image: Facts<'_>, place: usize, phase: GcPhase, reason: Reason, frees: Freed) -> Self {
        Self { key: image.key(), place, phase, reason, frees: frees.bytes, inodes: frees.inodes }
    }

    /// What it frees after the steps before it.
    pub(super) fn freed(&self) -> Freed {
        Freed { bytes: self.frees, inodes: self.inodes }
    }
}

fn idle(image: Facts<'_>, input: &PlanInput) -> Idle {
    Idle::of(image.last_used(), image.first_seen(), input.now)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
