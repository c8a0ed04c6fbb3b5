//! Pure functions: which images a plan removes, in which order, and why images stay (`docs/spec/gc.md §6-§8, §21`).
//!
//! Images over the maximum age are removed first, at any disk usage. Then the plan removes only as many images as the
//! wanted space needs. If all candidates together do not free enough, it removes long-idle images. On a nearly full
//! disk, it removes more. The kubelet's policy removes images in the order of last use until their listed sizes are
//! enough.

mod retention_score;
mod select;
mod unreachable_goal;

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use self::select::{Selection, Wanted};
pub use self::unreachable_goal::Shortfall;
pub(super) use self::{
    select::frees,
    unreachable_goal::{ReportedShortfall, message, size_text},
};
use super::policy::{GcGoal, GcPhase, GcRequest};
use crate::{
    disks::DiskUse,
    image::{ByteSize, ImageId, ImageKey},
    inventory::{Idle, ImageEntry, Reason, Snapshot},
    ports::{Certainty, Freed, LayerGraph},
};

#[derive(Clone, Debug)]
pub(super) struct PlanInput<'a> {
    pub(super) request: &'a GcRequest,
    pub(super) now: SystemTime,
    pub(super) snapshot: &'a Snapshot,
    /// The disk at the start of the collection. `None`: not measured.
    pub(super) disk: Option<DiskUse>,
    /// The space that the collection has already freed. `disk` is as it was before these removals.
    pub(super) done: Done,
    /// The keep rule that keeps each entry of the snapshot. The slice is empty if there are no rules.
    pub(super) ruled: &'a [Option<Reason>],
    pub(super) layers: Option<&'a LayerGraph>,
    /// The images to skip, each with the reason: this or an earlier collection has already tried to remove the image.
    pub(super) spared: &'a BTreeMap<ImageKey, Reason>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) space: Freed,
    pub(super) age: Freed,
}

impl PlanInput<'_> {
    pub(super) fn id(&self, place: usize) -> &ImageId {
        &self.snapshot.entries[place].image.id
    }

    pub(super) fn size(&self, place: usize) -> ByteSize {
        self.snapshot.entries[place].image.size
    }

    pub(super) fn idle(&self, place: usize) -> Idle {
        let entry = &self.snapshot.entries[place];
        Idle::of(entry.usage.times.last_used, entry.first_seen(), self.now)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// The steps that replace failed steps. Empty except with `GcOrder::ListedSizes`.
    pub(super) reserve: Vec<Step>,
    /// Per entry of the snapshot. `None`: the plan removes the image.
    pub(super) kept: Vec<Option<Reason>>,
    /// `None`: no space is needed, or the goal is to remove all unused images.
    pub(super) wanted: Option<Freed>,
    pub(super) possible: Freed,
    pub(super) certainty: Certainty,
    pub(super) shortfall: Option<Shortfall>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) place: usize,
    pub(super) phase: GcPhase,
    pub(super) reason: Reason,
    /// What the step frees in addition to the previous steps.
    pub(super) frees: Freed,
}

pub(super) fn plan(input: &PlanInput<'_>) -> Plan {
    let mut kept: Vec<Option<Reason>> =
        input.snapshot.entries.iter().enumerate().map(|(place, entry)| holds(entry, place, input)).collect();
    let mut free: Vec<usize> = (0..kept.len()).filter(|place| kept[*place].is_none()).collect();
    // The entries are sorted by key. The sort below is stable, so images with equal times stay in this order.
    let is_first =
        |place: &usize| input.request.policy.rules.idle_since_sight && input.snapshot.entries[*place].usage.prefetched;
    free.sort_by_key(|place| {
        let entry = &input.snapshot.entries[*place];
        (!is_first(place), entry.usage.times.last_used, entry.usage.times.first_seen)
    });
    let (old, free): (Vec<usize>, Vec<usize>) =
        free.into_iter().partition(|place| is_old(&input.snapshot.entries[*place], input));
    let age_max = input.request.policy.age_max.unwrap_or_default();
    let by_age = |(place, frees)| {
        let reason = Reason::Old { idle: input.idle(place), age_max };
        Step { place, phase: GcPhase::Age, reason, frees }
    };
    let mut steps: Vec<Step> = select::frees(input.layers, input, &old).into_iter().map(by_age).collect();
    let aged = sum(&steps);

    let wanted = wanted(input, aged);
    let is_space_wanted = wanted.is_some() || input.request.goal == GcGoal::AllUnused;
    let mut candidates = Vec::with_capacity(free.len());
    for place in free {
        let fresh = too_fresh(&input.snapshot.entries[place], input);
        if fresh.is_none() {
            candidates.push(place);
        }
        kept[place] = fresh.filter(|_| is_space_wanted).or(Some(Reason::NotNeeded));
    }
    let selection = select::select(input, &old, &candidates, wanted);
    let Selection { chosen, reserve, possible, is_short, is_out_of_reach } = selection;
    let for_space = |(place, frees): (usize, Freed)| {
        let idle = input.idle(place);
        let reason = match input.request.goal {
            GcGoal::AllUnused => Reason::Unused(idle),
            GcGoal::Threshold | GcGoal::Free(_) => Reason::Room { idle, frees: frees.bytes },
        };
        Step { place, phase: GcPhase::Space, reason, frees }
    };
    steps.extend(chosen.into_iter().map(for_space));

    let shortfall = wanted.filter(|_| is_short).map(|wanted| {
        let freed = sum(steps.iter().filter(|step| step.phase != GcPhase::Age));
        let removed: Vec<usize> = steps.iter().map(|step| step.place).collect();
        unreachable_goal::shortfall(input, &candidates, &removed, sum(&steps), wanted.least.less(freed))
    });
    if is_out_of_reach {
        let relief =
            input.request.policy.pressure_relief.filter(|_| wanted.is_some_and(|wanted| wanted.relief.is_some()));
        for place in candidates {
            let recent = relief.filter(|_| !is_idle(&input.snapshot.entries[place], input));
            let recent = recent.map(|it| Reason::Recent { idle: input.idle(place), idle_min: it.idle_min });
            kept[place] = Some(recent.unwrap_or(Reason::NotEnough));
        }
    }
    for step in &steps {
        kept[step.place] = None;
    }
    Plan {
        kept,
        wanted: wanted.map(|wanted| wanted.all),
        possible: aged.plus(possible),
        certainty: input.layers.map_or(Certainty::Claimed, |graph| graph.certainty),
        shortfall,
        reserve: reserve.into_iter().map(for_space).collect(),
        steps,
    }
}

pub(super) fn sum<'a>(steps: impl IntoIterator<Item = &'a Step>) -> Freed {
    steps.into_iter().fold(Freed::default(), |sum, step| sum.plus(step.frees))
}

fn holds(entry: &ImageEntry, place: usize, input: &PlanInput<'_>) -> Option<Reason> {
    if !input.spared.is_empty()
        && let Some(reason) = input.spared.get(&entry.key())
    {
        return Some(reason.clone());
    }
    if !entry.usage.used_by.is_empty() {
        return Some(Reason::InUse(entry.usage.used_by.clone()));
    }
    if !entry.pinned_by.is_empty() {
        return Some(Reason::Pinned(entry.pinned_by.clone()));
    }
    if !entry.awaited_by.is_empty() {
        return Some(Reason::PodWaits(entry.awaited_by.clone()));
    }
    if let Some(until) = entry.leased_until {
        return Some(Reason::awaited(until));
    }
    if entry.usage.times.released_at.is_some() {
        return Some(Reason::Released);
    }
    if entry.image.id.as_bytes().is_empty() {
        return Some(Reason::NoId);
    }
    input.ruled.get(place).cloned().flatten()
}

fn too_fresh(entry: &ImageEntry, input: &PlanInput<'_>) -> Option<Reason> {
    let age_min = input.request.policy.age_min;
    if entry.usage.times.last_used >= Some(input.now) {
        return Some(Reason::JustUsed);
    }
    if is_younger(entry.usage.times.first_seen, age_min, input.now) {
        return Some(Reason::Young(age_min));
    }
    is_younger(entry.usage.times.requested_at, age_min, input.now).then_some(Reason::Leased(age_min))
}

fn is_idle(entry: &ImageEntry, input: &PlanInput<'_>) -> bool {
    let since = entry.usage.times.last_used.max(entry.usage.times.first_seen).max(entry.usage.times.requested_at);
    input.request.policy.pressure_relief.is_some_and(|relief| !is_younger(since, relief.idle_min, input.now))
}

fn is_old(entry: &ImageEntry, input: &PlanInput<'_>) -> bool {
    let Some(age_max) = input.request.policy.age_max.filter(|_| input.request.goal == GcGoal::Threshold) else {
        return false;
    };
    if !is_older(Some(input.snapshot.watched_since), age_max, input.now) {
        return false;
    }
    if !input.request.policy.rules.idle_since_sight {
        return is_older(entry.usage.times.last_used, age_max, input.now);
    }
    is_older(entry.usage.times.last_used.max(entry.usage.times.first_seen), age_max, input.now)
        && too_fresh(entry, input).is_none()
}

/// Whether `now - since > age`. `None` is infinitely long ago. A time in the future is now (`docs/spec/gc.md §0.2`).
fn is_older(since: Option<SystemTime>, age: Duration, now: SystemTime) -> bool {
    since.is_none_or(|since| now.duration_since(since).is_ok_and(|passed| passed > age))
}

fn is_younger(since: Option<SystemTime>, age: Duration, now: SystemTime) -> bool {
    since.is_some_and(|since| now.duration_since(since).map_or(true, |passed| passed < age))
}

/// The amount to free after the removals by age, including the space that running pulls have reserved. `least` is the
/// amount that brings usage below the high threshold, which ends the pressure. If the low threshold is zero, `least` is
/// zero bytes, so that the plan frees as much as possible.
fn wanted(input: &PlanInput<'_>, aged: Freed) -> Option<Wanted> {
    let aged = input.done.age.plus(aged);
    let policy = &input.request.policy;
    let (all, least, relief) = match input.request.goal {
        GcGoal::AllUnused => return None,
        GcGoal::Free(bytes) => {
            let wanted = Freed { bytes, inodes: 0 }.less(aged);
            (wanted, wanted, None)
        }
        GcGoal::Threshold => {
            let disk = input.disk.as_ref().filter(|disk| disk.capacity > ByteSize::ZERO)?.with_more_available(aged);
            let (bytes, inodes) = (policy.bytes_wanted(&disk), policy.inodes_wanted(&disk));
            if bytes.is_none() && inodes.is_none() {
                return None;
            }
            if !policy.is_planned() {
                let all = Freed { bytes: ByteSize(bytes?.0), inodes: 0 }.less(input.done.space);
                // With equal thresholds the kubelet removes one image, although the amount to free is zero.
                return Some(Wanted { all, least: all, relief: None });
            }
            let of = |bytes, inodes| Freed { bytes: ByteSize(bytes), inodes };
            let reserved = of(bytes.map_or(0, |_| disk.reserved.bytes.0), inodes.map_or(0, |_| disk.reserved.inodes));
            let ((all_bytes, least_bytes), (all_inodes, least_inodes)) =
                (bytes.unwrap_or_default(), inodes.unwrap_or_default());
            let is_bottomless = policy.low().get() == 0;
            let least = of(if is_bottomless { 0 } else { least_bytes }, least_inodes);
            (of(all_bytes, all_inodes).plus(reserved), least, policy.relief_wanted(&disk))
        }
    };
    let missing = |of: Freed| of.less(input.done.space);
    let wanted = Wanted { all: missing(all), least: missing(least), relief: relief.map(missing) };
    Some(wanted).filter(|wanted| !wanted.all.is_none())
}

#[cfg(test)]
#[path = "../tests/plan.rs"]
mod tests;
