//! Our way of collecting: one plan for all of it, each removal preceded by asking afresh, and a new plan for what is
//! left to do where something stood against a removal.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc, time::SystemTime};

use tokio::time::Instant;

use super::{
    DiskUse, GcError, GcGoal, GcPhase, GcReport, GcRequest, GcRules, GcWay, ImageGc, PlanInput, Planned, Reason,
    ShortOutcome, Step, choice, disk, invalid_id_event, kubelet, plan,
    round::{Attempt, Round},
    text::aggregate,
    verdicts::Why,
};
use crate::{
    image::{ByteSize, ImageKey},
    inventory::{Entry, Snapshot},
    runtime::{Certainty, Freed},
};

/// How often a collection plans anew because images turned out not to be free.
const PLANS_MAX: usize = 8;

impl ImageGc {
    /// Collects once.
    ///
    /// A removal that fails, or an image that is taken into use meanwhile, is part of the report, and another one goes
    /// instead. Dropping the future leaves the removals done so far.
    ///
    /// # Errors
    /// When nothing was done because images, users or the disk are not known.
    pub async fn collect(&self, request: &GcRequest, now: SystemTime) -> Result<GcReport, GcError> {
        // Held over the whole pass on purpose: two collections at once would both count what one of them removed, and
        // together go further than either was asked to.
        let waiting = Instant::now();
        let _turn = self.turn.lock().await;
        let now = now + waiting.elapsed();
        match request.policy.way() {
            GcWay::Kubelet => kubelet::collect(self, request, now).await,
            GcWay::Imagelet => collect(self, request, now).await,
        }
    }
}

async fn collect(gc: &ImageGc, request: &GcRequest, now: SystemTime) -> Result<GcReport, GcError> {
    let began = Instant::now();
    let mut snapshot = gc.inventory.refresh(now).await?;
    let disk = look(gc, request.goal).await;
    let mut round = Round::new(gc, request, &snapshot);
    let mut progress = Progress::default();
    let rules = gc.rules();
    // What goes is counted; the disk of the start stays the one the goal is measured by.
    let looked = disk.as_ref().ok().cloned();
    loop {
        let layers = gc.runtime.layers().await.unwrap_or_else(|error| {
            tracing::warn!(error = error.chain(), "planning without knowing what images share");
            None
        });
        let images = gc.facts(&snapshot, &rules).await;
        let input = PlanInput {
            policy: request.policy,
            goal: request.goal,
            now,
            watched_since: snapshot.watched_since,
            disk: looked.clone(),
            freed: progress.freed,
            aged: progress.aged,
            reuse: snapshot.reuse.as_ref().clone(),
            images,
            rules: GcRules::clone(&rules),
            layers,
            spared: progress.spared.clone(),
        };
        let plan = plan(&input);
        round.is_active |= plan.wanted.is_some() || !plan.steps.is_empty();
        let planned = Arc::new(Planned { input, plan });
        if round.planned.is_empty() {
            report_nameless(&mut round, &planned);
        }
        round.planned.push(Arc::clone(&planned));
        if round.may_foresee() {
            progress.foresee(&planned);
            round.foresee(&snapshot, planned);
            break;
        }
        round.decide_all(&snapshot, Why::Kept(Arc::clone(&planned)));
        let before = progress.spared.len();
        let is_last = round.planned.len() >= PLANS_MAX;
        act(&mut round, &snapshot, &planned, is_last, &mut progress).await;
        let is_disturbed = progress.spared.len() > before && !request.dry_run && round.aborted.is_none();
        if !is_disturbed || is_last {
            break;
        }
        snapshot = gc.inventory.refresh(now + began.elapsed()).await?;
        round.look_at(&snapshot);
    }
    if let Err(error) = disk {
        // Nothing was done, so there is nothing to report but this.
        if round.removed.is_empty() && round.aborted.is_none() {
            return Err(error);
        }
        round.fail(error);
    }
    let wanted = round.planned.first().and_then(|planned| planned.plan.wanted);
    finish(&mut round, request, &progress);
    round.freed = progress.aged.plus(progress.freed);
    round.certainty = round.planned.first().map_or(Certainty::Claimed, |planned| planned.plan.certainty);
    Ok(round.report(looked.unwrap_or_default(), wanted, now + began.elapsed()).await)
}

/// What went so far, and what may not go any more.
#[derive(Debug, Default)]
struct Progress {
    aged: Freed,
    freed: Freed,
    spared: BTreeMap<ImageKey, Reason>,
    age_failures: Vec<String>,
    room_failures: Vec<String>,
}

impl Progress {
    /// All that is planned goes.
    fn foresee(&mut self, planned: &Planned) {
        for step in &planned.plan.steps {
            let sum = if step.phase == GcPhase::Age { &mut self.aged } else { &mut self.freed };
            *sum = sum.plus(step.freed());
        }
    }
}

/// The disk, which a goal in bytes can do without.
async fn look(gc: &ImageGc, goal: GcGoal) -> Result<DiskUse, GcError> {
    let looked = disk::look(&gc.runtime, &gc.probe).await;
    match goal {
        GcGoal::Threshold => {
            looked.and_then(|disk| if disk.capacity == ByteSize::ZERO { Err(GcError::NoCapacity) } else { Ok(disk) })
        }
        GcGoal::Free(_) | GcGoal::AllUnused => Ok(looked.unwrap_or_else(|error| {
            tracing::warn!(%error, "collecting without knowing how full the disk is");
            DiskUse::default()
        })),
    }
}

fn report_nameless(round: &mut Round<'_>, planned: &Planned) {
    let (images, kept) = (&planned.input.images, &planned.plan.kept);
    if kept.any(|reason| *reason == Reason::NoId) {
        let nameless = kept.iter().filter(|(_, reason)| **reason == Reason::NoId);
        round.events.extend(nameless.map(|(place, _)| invalid_id_event(&images.at(place).key())));
    }
}

/// Takes the steps of a plan, and counts what came free.
///
/// Where images share layers, a step that is not taken may leave others without effect: the rest waits for a new plan,
/// unless this is the last.
async fn act(round: &mut Round<'_>, snapshot: &Snapshot, planned: &Planned, is_last: bool, progress: &mut Progress) {
    let (mut aged, mut gone) = (Vec::new(), Vec::new());
    let mut is_whole = true;
    for step in &planned.plan.steps {
        let entry = snapshot.entries.get(step.place).filter(|entry| order(entry, &step.key).is_eq());
        let Some(entry) = entry else { continue };
        match round.remove(entry, step.phase, step.reason.clone()).await {
            Attempt::Removed if step.phase == GcPhase::Age => aged.push(step),
            Attempt::Removed => gone.push(step),
            Attempt::Failed(error) => {
                let failures =
                    if step.phase == GcPhase::Age { &mut progress.age_failures } else { &mut progress.room_failures };
                failures.push(error.clone());
                progress.spared.insert(step.key.clone(), Reason::Failed { error });
                is_whole = false;
            }
            Attempt::Spared(reason) => {
                progress.spared.insert(step.key.clone(), reason);
                is_whole = false;
            }
        }
        if !is_whole && !is_last && step.phase != GcPhase::Age && planned.input.layers.is_some() {
            break;
        }
    }
    let counted = |steps: &[&Step]| steps.iter().fold(Freed::default(), |sum, step| sum.plus(step.freed()));
    let (by_age, by_room) = if is_whole {
        (counted(&aged), counted(&gone))
    } else {
        // What stayed keeps what it shares with what went.
        freed(&planned.input, &aged, &gone)
    };
    (progress.aged, progress.freed) = (progress.aged.plus(by_age), progress.freed.plus(by_room));
}

/// What came free, when these went and no others.
fn freed(input: &PlanInput, aged: &[&Step], gone: &[&Step]) -> (Freed, Freed) {
    let order: Vec<usize> = aged.iter().chain(gone).map(|step| step.place).collect();
    let mut sums = (Freed::default(), Freed::default());
    for (at, (_, frees)) in choice::frees(input, &order).into_iter().enumerate() {
        let sum = if at < aged.len() { &mut sums.0 } else { &mut sums.1 };
        *sum = sum.plus(frees);
    }
    sums
}

/// What went wrong, told once.
fn finish(round: &mut Round<'_>, request: &GcRequest, progress: &Progress) {
    if !progress.age_failures.is_empty() {
        let age_max = request.policy.age_max().unwrap_or_default();
        round.fail(GcError::AgeRemovals { age_max, errors: aggregate(&progress.age_failures) });
    }
    let planned = round.planned.clone();
    let Some(first) = planned.first() else { return };
    if !progress.room_failures.is_empty() {
        let wanted = first.plan.wanted.map_or(i64::MAX, |wanted| i64::try_from(wanted.0).unwrap_or(i64::MAX));
        round.fail(GcError::SpaceRemovals {
            wanted,
            freed: progress.freed.bytes.0,
            errors: aggregate(&progress.room_failures),
        });
    }
    if round.aborted.is_some() || request.goal == GcGoal::AllUnused {
        return;
    }
    // What came between is known to the last plan alone.
    let short = planned.last().and_then(|planned| Some((planned, planned.plan.shortage?)));
    let Some((planned, shortage)) = short else {
        round.gc.shortages.over();
        return;
    };
    let disk = planned.input.disk.clone().unwrap_or_default();
    let error = GcError::OutOfReach {
        used_percent: disk.used_percent(),
        capacity: disk.capacity,
        outcome: if request.dry_run {
            ShortOutcome::WouldFree(progress.freed)
        } else {
            ShortOutcome::Freed(progress.freed)
        },
        shortage,
        certainty: planned.plan.certainty,
    };
    // The failure is told each time to who asks for a collection; the node is told once, until something changes.
    let is_news = request.goal == GcGoal::Threshold && !request.dry_run && round.gc.shortages.is_news(&disk, &shortage);
    if is_news {
        round.events.extend(error.event());
    }
    round.failures.push(error);
}

/// Where an entry stands to a key, in the order of the keys.
fn order(entry: &Entry, key: &ImageKey) -> Ordering {
    entry.image.cmp_key(key)
}
