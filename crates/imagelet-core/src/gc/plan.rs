//! Which images go, in which order, and why each other stays: a plain function of its input (`spec/gc.md §6-§8, §21`).
//!
//! First what is too old goes, whatever the disk. Then, where room is wanted, as much as is wanted and no image more;
//! where not even all that may go would be enough, none goes in vain.

use serde::{Deserialize, Serialize};

use super::{
    AgeCounts, GcGoal, GcPhase, ImageFacts, PlanInput, Reason,
    reason::Idle,
    time::{is_older, is_younger},
};
use crate::image::{ByteSize, ImageKey};

/// What is to be done, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The removals, in order.
    pub steps: Vec<Step>,
    /// Everything else, in the order of the input.
    pub kept: Vec<(ImageKey, Reason)>,
    /// How much is to be freed; `None` where no room is wanted, or everything unused is.
    pub wanted: Option<ByteSize>,
    /// What the steps free.
    pub frees: ByteSize,
    /// What could be freed if everything that may go went.
    pub could_free: ByteSize,
    /// What holds the space where the goal is out of reach.
    pub shortage: Option<Shortage>,
}

/// One removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Which image.
    pub key: ImageKey,
    /// What for.
    pub phase: GcPhase,
    /// Why.
    pub reason: Reason,
    /// What it frees after the steps before it.
    pub frees: ByteSize,
}

/// What holds the space that cannot be freed. Sizes as listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortage {
    /// By images in use.
    pub in_use: ByteSize,
    /// By pinned images.
    pub pinned: ByteSize,
    /// By images that stay for another reason.
    pub kept: ByteSize,
    /// By anything but images.
    pub others: ByteSize,
}

/// Decides.
pub fn plan(input: &PlanInput) -> Plan {
    let stays: Vec<Option<Reason>> = input.images.iter().map(|image| holds(image, input)).collect();
    let mut order: Vec<usize> = (0..input.images.len()).filter(|index| stays[*index].is_none()).collect();
    order.sort_by(|one, other| {
        let by = |index: usize| {
            let image = &input.images[index];
            (image.last_used, image.first_seen, &image.key)
        };
        by(*one).cmp(&by(*other))
    });

    let (old, rest): (Vec<usize>, Vec<usize>) =
        order.into_iter().partition(|index| is_old(&input.images[*index], input));
    let age_max = input.policy.age_max().unwrap_or_default();
    let mut steps: Vec<(usize, Step)> = Vec::new();
    for index in old {
        let image = &input.images[index];
        let reason = Reason::Old { idle: idle(image, input), age_max };
        steps.push((index, Step { key: image.key.clone(), phase: GcPhase::Age, reason, frees: image.size }));
    }
    let aged: ByteSize = steps.iter().map(|(_, step)| step.frees).sum();

    let may: Vec<usize> = rest.into_iter().filter(|index| too_fresh(&input.images[*index], input).is_none()).collect();
    let possible: ByteSize = may.iter().map(|index| input.images[*index].size).sum();
    let wanted = wanted(input, aged);
    let (phase, chosen, shortage) = match (input.goal, wanted) {
        (GcGoal::AllUnused, _) => (GcPhase::All, may, None),
        (_, None) => (GcPhase::Space, Vec::new(), None),
        (_, Some(wanted)) if possible < wanted.least => (GcPhase::Space, Vec::new(), Some(shortage(input))),
        (_, Some(wanted)) if possible < wanted.all => (GcPhase::Space, may, Some(shortage(input))),
        (_, Some(wanted)) => (GcPhase::Space, choose(input, &may, wanted.all), None),
    };
    let is_in_vain = shortage.is_some() && chosen.is_empty();
    for index in chosen {
        let image = &input.images[index];
        let idle = idle(image, input);
        let reason = match phase {
            GcPhase::All => Reason::Unused { idle },
            GcPhase::Age | GcPhase::Space => Reason::Room { idle, frees: image.size },
        };
        steps.push((index, Step { key: image.key.clone(), phase, reason, frees: image.size }));
    }

    let goes: std::collections::BTreeSet<usize> = steps.iter().map(|(index, _)| *index).collect();
    let is_room_wanted = wanted.is_some() || input.goal == GcGoal::AllUnused;
    let kept = input.images.iter().zip(stays).enumerate().filter(|(index, _)| !goes.contains(index));
    let kept = kept.map(|(_, (image, stays))| {
        let fresh = || too_fresh(image, input).filter(|_| is_room_wanted);
        let otherwise = if is_in_vain { Reason::InVain } else { Reason::NotNeeded };
        (image.key.clone(), stays.or_else(fresh).unwrap_or(otherwise))
    });
    Plan {
        kept: kept.collect(),
        wanted: wanted.map(|wanted| wanted.all),
        frees: steps.iter().map(|(_, step)| step.frees).sum(),
        could_free: aged + possible,
        shortage,
        steps: steps.into_iter().map(|(_, step)| step).collect(),
    }
}

/// Why it stays whatever is wanted.
fn holds(image: &ImageFacts, input: &PlanInput) -> Option<Reason> {
    if let Some(reason) = input.spared.get(&image.key) {
        return Some(reason.clone());
    }
    if !image.in_use_by.is_empty() {
        return Some(Reason::InUse { by: image.in_use_by.clone() });
    }
    if !image.pinned_by.is_empty() {
        return Some(Reason::Pinned { by: image.pinned_by.clone() });
    }
    if image.leased_until.is_some() {
        return Some(Reason::Awaited);
    }
    if image.released_at.is_some() {
        return Some(Reason::Released);
    }
    image.key.id().as_str().is_empty().then_some(Reason::NoId)
}

/// Why it stays although room is wanted.
fn too_fresh(image: &ImageFacts, input: &PlanInput) -> Option<Reason> {
    let age_min = input.policy.age_min();
    if image.last_used >= Some(input.now) {
        return Some(Reason::JustUsed);
    }
    if is_younger(image.first_seen, age_min, input.now) {
        return Some(Reason::Young { age_min });
    }
    let is_leased = image.leased_at.is_some() && is_younger(image.leased_at, age_min, input.now);
    is_leased.then_some(Reason::Leased { lease: age_min })
}

fn is_old(image: &ImageFacts, input: &PlanInput) -> bool {
    let Some(age_max) = input.policy.age_max().filter(|_| input.goal == GcGoal::Threshold) else { return false };
    if !is_older(Some(input.watched_since), age_max, input.now) {
        return false;
    }
    let since = match input.policy.age_counts() {
        AgeCounts::FromUseOrSight => image.last_used.max(image.first_seen),
        AgeCounts::FromUse => image.last_used,
    };
    is_older(since, age_max, input.now) && too_fresh(image, input).is_none()
}

/// How much must go for room.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// To be where the goal is.
    all: ByteSize,
    /// With less than this nothing is won, and images would go in vain.
    least: ByteSize,
}

/// How much must go for room, after what goes for its age.
///
/// Below the high threshold the pressure is over, so that is worth it even where the low one is out of reach. A low
/// threshold of zero is always out of reach and says: as far as it goes.
fn wanted(input: &PlanInput, aged: ByteSize) -> Option<Wanted> {
    let aged = input.aged + aged;
    let (all, least) = match input.goal {
        GcGoal::AllUnused => return None,
        GcGoal::Free(bytes) => (bytes.saturating_sub(aged), bytes.saturating_sub(aged)),
        GcGoal::Threshold => {
            let disk = input.disk.as_ref().filter(|disk| disk.capacity > ByteSize::ZERO)?.with_more_available(aged);
            let all = input.policy.room_wanted(&disk)?;
            let is_bottomless = input.policy.low().get() == 0;
            (all, if is_bottomless { ByteSize::ZERO } else { input.policy.room_below_high(&disk).min(all) })
        }
    };
    let left = |bytes: ByteSize| bytes.saturating_sub(input.freed);
    Some(Wanted { all: left(all), least: left(least) }).filter(|wanted| wanted.all > ByteSize::ZERO)
}

/// The least recently used first, until it is enough.
fn choose(input: &PlanInput, may: &[usize], wanted: ByteSize) -> Vec<usize> {
    let mut freed = ByteSize::ZERO;
    let mut chosen = Vec::new();
    for index in may {
        if freed >= wanted {
            break;
        }
        freed = freed + input.images[*index].size;
        chosen.push(*index);
    }
    chosen
}

fn shortage(input: &PlanInput) -> Shortage {
    let mut shortage = Shortage::default();
    for image in &input.images {
        let part = if !image.in_use_by.is_empty() {
            &mut shortage.in_use
        } else if !image.pinned_by.is_empty() {
            &mut shortage.pinned
        } else {
            &mut shortage.kept
        };
        *part = *part + image.size;
    }
    let images: ByteSize = input.images.iter().map(|image| image.size).sum();
    let used = input.disk.as_ref().map_or(ByteSize::ZERO, |disk| disk.used);
    shortage.others = used.saturating_sub(images);
    shortage
}

fn idle(image: &ImageFacts, input: &PlanInput) -> Idle {
    Idle::of(image.last_used, image.first_seen, input.now)
}
