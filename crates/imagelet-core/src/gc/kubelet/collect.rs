//! The kubelet's way: what is too old goes, then the disk is looked at, then one image after the other goes until enough
//! has gone (`spec/gc.md §6-§8`).

use std::{collections::BTreeMap, time::SystemTime};

use tokio::time::Instant;

use super::{
    super::{
        DiskUse, GcError, GcGoal, GcPhase, GcReport, GcRequest, ImageGc, Reason, disk, invalid_id_event,
        reason::Idle,
        round::{Attempt, Round},
        text::duration_text,
    },
    phases::{AgePhase, Candidate, SpacePhase, eviction_order},
};
use crate::{
    image::{ByteSize, ImageKey},
    inventory::{Entry, Snapshot},
};

/// Collects once, as the kubelet does.
pub(in crate::gc) async fn collect(gc: &ImageGc, request: &GcRequest, now: SystemTime) -> Result<GcReport, GcError> {
    let began = Instant::now();
    let snapshot = gc.inventory.refresh(now).await?;
    let looked = disk::look(&gc.runtime, &gc.probe).await;
    let mut round = Round::new(gc, request, &snapshot);
    let order = line_up(&mut round, &snapshot);

    let mut disk_before = DiskUse::default();
    let goal_bytes = match (request.goal, looked) {
        (GcGoal::Threshold, looked) => {
            remove_old(&mut round, &order, snapshot.watched_since, now).await;
            match check(gc, looked, &round).await {
                Ok((before, current)) => {
                    disk_before = before;
                    let wanted = request.policy.room_wanted(&current).filter(|room| *room > ByteSize::ZERO);
                    make_room_below_threshold(&mut round, &order, wanted, &current, now).await;
                    wanted
                }
                // Nothing was done yet, so there is nothing to report but this.
                Err(error) if round.removed.is_empty() && round.aborted.is_none() => return Err(error),
                Err(error) => {
                    round.fail(error);
                    None
                }
            }
        }
        (goal, looked) => {
            match looked {
                Ok(disk) => disk_before = disk,
                Err(error) => tracing::warn!(%error, "collecting without knowing how full the disk is"),
            }
            let (phase, bytes) = match goal {
                GcGoal::Free(bytes) => (GcPhase::Space, Some(bytes)),
                GcGoal::Threshold | GcGoal::AllUnused => (GcPhase::All, None),
            };
            make_room(&mut round, &order, phase, bytes.unwrap_or(ByteSize(u64::MAX)), now).await;
            bytes
        }
    };
    Ok(round.report(disk_before, goal_bytes, now + began.elapsed()).await)
}

/// The disk at the start, and as it is now if images went since.
async fn check(
    gc: &ImageGc,
    looked: Result<DiskUse, GcError>,
    round: &Round<'_>,
) -> Result<(DiskUse, DiskUse), GcError> {
    let before = looked?;
    let current = if round.claimed > ByteSize::ZERO && !round.dry_run {
        disk::look(&gc.runtime, &gc.probe).await?
    } else {
        before.clone()
    };
    if current.capacity == ByteSize::ZERO { Err(GcError::NoCapacity) } else { Ok((before, current)) }
}

/// One image on its way through a round.
struct Turn<'a> {
    entry: &'a Entry,
    candidate: Candidate,
}

/// Decides to keep everything for now, and lines up what may go.
fn line_up<'s>(round: &mut Round<'_>, snapshot: &'s Snapshot) -> Vec<Turn<'s>> {
    for entry in &snapshot.entries {
        let kept = if !entry.in_use_by.is_empty() {
            Reason::InUse { by: entry.in_use_by.clone() }
        } else if !entry.pinned_by.is_empty() {
            Reason::Pinned { by: entry.pinned_by.clone() }
        } else if entry.leased_until.is_some() {
            Reason::Awaited
        } else if entry.released_at.is_some() {
            Reason::Released
        } else {
            Reason::NotNeeded
        };
        round.keep(entry, kept);
    }
    let by_key: BTreeMap<ImageKey, &Entry> = snapshot.entries.iter().map(|entry| (entry.key(), entry)).collect();
    let (order, nameless) = eviction_order(snapshot.entries.iter().map(Candidate::of).collect());
    for key in &nameless {
        if let Some(entry) = by_key.get(key) {
            round.keep(entry, Reason::NoId);
        }
        round.events.push(invalid_id_event(key));
    }
    let turn = |candidate: Candidate| by_key.get(&candidate.key).copied().map(|entry| Turn { entry, candidate });
    let is_free = |turn: &Turn<'_>| turn.entry.leased_until.is_none() && turn.entry.released_at.is_none();
    order.into_iter().filter_map(turn).filter(is_free).collect()
}

async fn remove_old(round: &mut Round<'_>, order: &[Turn<'_>], watched_since: SystemTime, now: SystemTime) {
    let Some(age_max) = round.policy.age_max() else { return };
    let mut phase = AgePhase { age_max, watched_since, now, counts: round.policy.age_counts(), failures: Vec::new() };
    if !phase.opens() {
        tracing::debug!(age_max = %duration_text(age_max), "images were not watched long enough to call one old");
        return;
    }
    round.is_active = true;
    let old: Vec<&Turn<'_>> = order.iter().filter(|turn| phase.takes(&turn.candidate)).collect();
    for turn in old {
        if let Attempt::Failed(error) =
            round.remove(turn.entry, GcPhase::Age, why(round, turn.entry, GcPhase::Age)).await
        {
            phase.failures.push(error);
        }
    }
    if let Some(error) = phase.error() {
        round.fail(error);
    }
}

/// The space phase under thresholds, where freeing too little is a failure.
async fn make_room_below_threshold(
    round: &mut Round<'_>,
    order: &[Turn<'_>],
    wanted: Option<ByteSize>,
    disk: &DiskUse,
    now: SystemTime,
) {
    let Some(wanted) = wanted else { return };
    let used_percent = disk.used_percent();
    tracing::info!(
        used_percent,
        high = %round.policy.high(),
        low = %round.policy.low(),
        wanted = wanted.0,
        "Disk usage on image filesystem is over the high threshold, trying to free bytes down to the low threshold"
    );
    let failures_before = round.failures.len();
    let freed = make_room(round, order, GcPhase::Space, wanted, now).await;
    let went_well = round.failures.len() == failures_before && round.aborted.is_none();
    if went_well && freed < wanted && !round.dry_run {
        round.fail(GcError::NotEnough { used_percent, capacity: disk.capacity, freed: freed.0 });
    }
}

async fn make_room(
    round: &mut Round<'_>,
    order: &[Turn<'_>],
    kind: GcPhase,
    wanted: ByteSize,
    now: SystemTime,
) -> ByteSize {
    round.is_active = true;
    let wanted = i64::try_from(wanted.0).unwrap_or(i64::MAX);
    if wanted == 0 {
        return ByteSize::ZERO;
    }
    let mut phase = SpacePhase::new(wanted, round.policy.age_min(), now);
    for turn in order {
        // What went for its age, or could not, had its turn.
        if phase.is_done() || round.removed.iter().any(|removal| removal.key == turn.candidate.key) {
            continue;
        }
        if round.is_chosen(&turn.candidate.key) {
            continue;
        }
        if let Some(kept) = phase.keeps(&turn.candidate) {
            round.keep(turn.entry, kept);
            continue;
        }
        match round.remove(turn.entry, kind, why(round, turn.entry, kind)).await {
            Attempt::Removed => phase.removed(turn.candidate.size),
            Attempt::Failed(error) => phase.failed(error),
            Attempt::Spared(_) => {}
        }
    }
    if let Some(error) = phase.error() {
        round.fail(error);
    }
    phase.freed
}

fn why(round: &Round<'_>, entry: &Entry, phase: GcPhase) -> Reason {
    let idle = Idle::of(entry.last_used, Some(entry.first_seen), round.now);
    match (phase, round.policy.age_max()) {
        (GcPhase::Age, Some(age_max)) => Reason::Old { idle, age_max },
        (GcPhase::Space, _) => Reason::Room { idle, frees: entry.image.size },
        _ => Reason::Unused { idle },
    }
}
