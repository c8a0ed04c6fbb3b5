//! The kubelet's way: what is too old goes, then the disk is looked at, then one image after the other goes until enough
//! has gone (`docs/spec/gc.md §6-§8`).
//!
//! Its steps, its order, its early ends and its errors are the kubelet's, known weaknesses too. What is ours is only what
//! protects: an image is asked after once more before it goes, and no list that lost all containers at once is believed.

use std::{sync::Arc, time::SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    super::{
        DiskUse, GcError, GcGoal, GcPhase, GcReport, GcRequest, ImageGc, Kept, Reason, disk, invalid_id_event,
        keeping::held_by_rules,
        reason::Idle,
        round::{Attempt, Round},
        verdicts::Why,
    },
    phases::{AgePhase, Candidate, Carries, SpacePhase, eviction_order},
};
use crate::{
    disks::Fullness,
    image::{ByteSize, ImageId},
    inventory::{Entry, Snapshot},
};

/// Collects once, as the kubelet does.
pub(in crate::gc) async fn collect(gc: &ImageGc, request: &GcRequest, now: SystemTime) -> Result<GcReport, GcError> {
    let began = Instant::now();
    if request.goal == GcGoal::AllUnused {
        tracing::info!("Attempting to delete unused images");
    }
    let snapshot = gc.inventory.refresh(now).await?;
    let mut run = Run { round: Round::new(gc, request, &snapshot), disk: DiskUse::default(), wanted: None, hook: None };
    if request.goal != GcGoal::Threshold {
        // The kubelet does not ask; whoever reads the report wants to see what came of it.
        run.disk = disk::look(&gc.runtime, &gc.probe).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "collecting without knowing how full the disk is");
            DiskUse::default()
        });
    }
    // The same goes for what images share.
    let layers = match request.goal {
        GcGoal::Threshold if !request.dry_run => None,
        _ => gc.runtime.layers().await.unwrap_or_else(|error| {
            tracing::warn!(error = error.chain(), "collecting without knowing what images share");
            None
        }),
    };
    let rules = gc.rules();
    let ruled = held_by_rules(&gc.facts(&snapshot, &rules).await, &rules, now);
    let candidates = line_up(&mut run.round, &snapshot, &ruled);
    let ended = match request.goal {
        GcGoal::Threshold => run.collect_garbage(candidates, &snapshot, now).await,
        GcGoal::AllUnused => run.free_space(candidates, i64::MAX, GcPhase::All, now).await.map(|_| ()),
        GcGoal::Free(bytes) => {
            run.wanted = Some(bytes);
            let wanted = i64::try_from(bytes.0).unwrap_or(i64::MAX);
            // Who asks for nothing gets nothing; only thresholds that meet take one image for it.
            let candidates = if wanted == 0 { Vec::new() } else { candidates };
            run.free_space(candidates, wanted, GcPhase::Space, now).await.map(|_| ())
        }
    };
    let Run { mut round, disk, wanted, hook } = run;
    if let Err(error) = ended {
        // Nothing was done, so there is nothing to report but this.
        if round.removed.is_empty() && round.events.is_empty() && round.aborted.is_none() {
            return Err(error);
        }
        round.fail(error);
    }
    round.count_freed(layers.as_ref());
    let hook = hook.filter(|_| !request.dry_run);
    let report = round.report(disk, wanted, now + began.elapsed()).await;
    Ok(GcReport { hook, ..report })
}

/// An image on its way through a run, with what is decided by.
type Turn<'a> = (&'a Entry, Candidate);

/// A run under way.
struct Run<'a> {
    round: Round<'a>,
    disk: DiskUse,
    wanted: Option<ByteSize>,
    /// The ids that the kubelet hands to its hooks, once it runs them.
    hook: Option<Vec<ImageId>>,
}

impl Run<'_> {
    /// The periodic collection. An error anywhere ends it there; what is behind is not reached.
    async fn collect_garbage(
        &mut self,
        candidates: Vec<Turn<'_>>,
        snapshot: &Snapshot,
        now: SystemTime,
    ) -> Result<(), GcError> {
        let candidates = self.free_old_images(candidates, snapshot.watched_since, now).await?;
        let (gc, policy) = (self.round.gc, self.round.policy);
        self.disk = disk::look(&gc.runtime, &gc.probe).await?;
        let full = Fullness::of(Some(self.disk.capacity.0), Some(self.disk.available.0))
            .map_err(|_no_capacity| GcError::NoCapacity)?;
        let usage = full.used_percent();
        if usage < policy.high().get() {
            return Ok(());
        }
        let amount = full.excess(policy.low().get());
        let amount = i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX });
        self.wanted = Some(ByteSize(u64::try_from(amount).unwrap_or(0)));
        tracing::info!(
            usage,
            highThreshold = policy.high().get(),
            amountToFree = amount,
            lowThreshold = policy.low().get(),
            "Disk usage on image filesystem is over the high threshold, trying to free bytes down to the low threshold"
        );
        let freed = self.free_space(candidates, amount, GcPhase::Space, now).await?;
        if i128::from(freed.0) < i128::from(amount) && self.round.aborted.is_none() && !self.round.dry_run {
            let capacity = self.disk.capacity;
            self.round.fail(GcError::NotEnough { used_percent: usage, capacity, freed: freed.0 });
        }
        Ok(())
    }

    /// The age phase: gives back what may still go.
    async fn free_old_images<'e>(
        &mut self,
        candidates: Vec<Turn<'e>>,
        watched_since: SystemTime,
        now: SystemTime,
    ) -> Result<Vec<Turn<'e>>, GcError> {
        let Some(mut phase) = AgePhase::opens(&self.round.policy, watched_since, now) else { return Ok(candidates) };
        self.round.is_active = true;
        let left = phase.run(candidates, &mut Acting { round: &mut self.round, phase: GcPhase::Age }).await;
        phase.error().map_or(Ok(left), Err)
    }

    /// The space phase. What comes behind the last image that was needed is neither looked at nor told to the hooks.
    async fn free_space(
        &mut self,
        candidates: Vec<Turn<'_>>,
        wanted: i64,
        kind: GcPhase,
        now: SystemTime,
    ) -> Result<ByteSize, GcError> {
        self.round.is_active = true;
        let mut phase = SpacePhase::new(wanted, self.round.policy.age_min(), now);
        let left = phase.run(candidates, &mut Acting { round: &mut self.round, phase: kind }).await;
        if let Some(error) = phase.error() {
            return Err(error);
        }
        let ids = || left.iter().map(|entry| entry.image.id.clone()).collect();
        self.hook = self.round.aborted.is_none().then(ids);
        Ok(phase.freed())
    }
}

/// A phase of a run.
struct Acting<'a, 'r> {
    round: &'a mut Round<'r>,
    phase: GcPhase,
}

#[async_trait]
impl<'e> Carries<&'e Entry> for Acting<'_, '_> {
    fn keep(&mut self, entry: &&'e Entry, reason: Reason) {
        self.round.keep(entry, reason);
    }

    async fn remove(&mut self, entry: &&'e Entry) -> Attempt {
        let idle = Idle::of(entry.last_used, Some(entry.first_seen), self.round.now);
        let reason = match (self.phase, self.round.policy.age_max()) {
            (GcPhase::Age, Some(age_max)) => Reason::Old { idle, age_max },
            (GcPhase::Space, _) => Reason::Room { idle, frees: entry.image.size },
            _ => Reason::Unused { idle },
        };
        self.round.remove(entry, self.phase, reason).await
    }
}

/// Decides to keep everything for now, and lines up what may go.
///
/// The kubelet knows no rules: those that an operator made hold as pins do.
fn line_up<'s>(round: &mut Round<'_>, snapshot: &'s Arc<Snapshot>, ruled: &[Option<Reason>]) -> Vec<Turn<'s>> {
    let mut kept = Kept::all(snapshot.entries.len(), Reason::NotNeeded);
    for (place, (entry, ruled)) in snapshot.entries.iter().zip(ruled).enumerate() {
        if !entry.in_use_by.is_empty() {
            kept.keep(place, Reason::InUse { by: entry.in_use_by.clone() });
        } else if !entry.pinned_by.is_empty() {
            kept.keep(place, Reason::Pinned { by: entry.pinned_by.clone() });
        } else if let Some(ruled) = ruled {
            kept.keep(place, ruled.clone());
        }
    }
    round.decide_all(snapshot, Why::Own(kept));
    // Entries are in the order of their keys, and so are their places.
    let free = snapshot.entries.iter().zip(ruled).enumerate().filter(|(_, (_, ruled))| ruled.is_none());
    let candidates = free.map(|(place, (entry, _))| (place, Candidate::of(entry)));
    let (order, nameless) = eviction_order(candidates.collect());
    for entry in nameless.into_iter().map(|place| &snapshot.entries[place]) {
        round.keep(entry, Reason::NoId);
        round.events.push(invalid_id_event(&entry.key()));
    }
    order.into_iter().map(|(place, candidate)| (&*snapshot.entries[place], candidate)).collect()
}
