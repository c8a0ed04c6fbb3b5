//! The collection itself: takes stock, removes what `plan.rs` picks, looks again.

use std::{collections::BTreeMap, time::SystemTime};

use tokio::time::Instant;

use super::{
    DiskUse, GcDecision, GcError, GcEvent, GcGoal, GcOutcome, GcPhase, GcRemoval, GcReport, GcRequest, GcVerdict,
    ImageGc, disk, invalid_id_event,
    plan::{AgePhase, Candidate, Kept, SpacePhase, eviction_order},
    text::duration_text,
};
use crate::{
    image::{ByteSize, ImageId, ImageKey, ImageSpec},
    inventory::{Clearance, Entry, Snapshot, Standing},
};

impl ImageGc {
    /// Collects once.
    ///
    /// A removal that fails, or an image that is taken into use meanwhile, is part of the report and the next one gets
    /// its turn. Dropping the future leaves the removals done so far.
    ///
    /// # Errors
    /// When nothing was done because images, users or the disk are not known.
    pub async fn collect(&self, request: &GcRequest, now: SystemTime) -> Result<GcReport, GcError> {
        // Held over the whole pass on purpose: two collections at once would both count what one of them removed, and
        // together go further than either was asked to.
        let _turn = self.turn.lock().await;
        let began = Instant::now();
        let snapshot = self.inventory.refresh(now).await?;
        let looked = disk::look(&self.runtime, &self.probe).await;
        let mut round = Round::new(self, request, &snapshot);
        let order = round.order(&snapshot);

        let mut disk_before = DiskUse::default();
        let goal_bytes = match (request.goal, looked) {
            (GcGoal::Threshold, looked) => {
                round.remove_old(&order, now).await;
                match self.check(looked, &round).await {
                    Ok((before, current)) => {
                        disk_before = before;
                        let wanted = request.policy.room_wanted(&current).filter(|room| *room > ByteSize::ZERO);
                        round.make_room_below_threshold(&order, wanted, &current, now).await;
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
                round.make_room(&order, phase, bytes.unwrap_or(ByteSize(u64::MAX)), now).await;
                bytes
            }
        };
        Ok(round.report(disk_before, goal_bytes, now + began.elapsed()).await)
    }

    /// The disk at the start, and as it is now if images went since.
    async fn check(&self, looked: Result<DiskUse, GcError>, round: &Round<'_>) -> Result<(DiskUse, DiskUse), GcError> {
        let before = looked?;
        let current = if round.claimed > ByteSize::ZERO && !round.dry_run {
            disk::look(&self.runtime, &self.probe).await?
        } else {
            before.clone()
        };
        if current.capacity == ByteSize::ZERO { Err(GcError::NoCapacity) } else { Ok((before, current)) }
    }
}

/// One image on its way through a round.
struct Turn<'a> {
    entry: &'a Entry,
    candidate: Candidate,
}

/// How the try to remove an image ended.
enum Attempt {
    Removed,
    Failed(String),
    /// It stays, or the round is over; the decision says why.
    Spared,
}

/// One collection under way.
struct Round<'a> {
    gc: &'a ImageGc,
    dry_run: bool,
    policy: super::GcPolicy,
    watched_since: SystemTime,
    now: SystemTime,
    containers: usize,
    containers_vanished: bool,
    began: Instant,
    decisions: BTreeMap<ImageKey, GcDecision>,
    removed: Vec<GcRemoval>,
    claimed: ByteSize,
    failures: Vec<GcError>,
    events: Vec<GcEvent>,
    /// Why no further removal is tried.
    aborted: Option<String>,
    /// Something was to be removed, so operators want to know why the rest stays.
    is_active: bool,
}

impl<'a> Round<'a> {
    fn new(gc: &'a ImageGc, request: &GcRequest, snapshot: &Snapshot) -> Self {
        Self {
            gc,
            dry_run: request.dry_run,
            policy: request.policy,
            watched_since: snapshot.watched_since,
            now: snapshot.taken_at,
            containers: snapshot.containers,
            containers_vanished: snapshot.containers_vanished,
            began: Instant::now(),
            decisions: BTreeMap::new(),
            removed: Vec::new(),
            claimed: ByteSize::ZERO,
            failures: Vec::new(),
            events: Vec::new(),
            aborted: None,
            is_active: false,
        }
    }

    /// Decides to keep everything for now, and lines up what may go.
    fn order<'s>(&mut self, snapshot: &'s Snapshot) -> Vec<Turn<'s>> {
        for entry in &snapshot.entries {
            let kept = if !entry.in_use_by.is_empty() {
                Kept::InUse(entry.in_use_by.clone())
            } else if !entry.pinned_by.is_empty() {
                Kept::Pinned(entry.pinned_by.clone())
            } else if entry.leased_until.is_some() {
                Kept::Awaited
            } else if entry.released_at.is_some() {
                Kept::Released
            } else {
                Kept::NotNeeded
            };
            self.keep(entry, &kept);
        }
        let by_key: BTreeMap<ImageKey, &Entry> = snapshot.entries.iter().map(|entry| (entry.key(), entry)).collect();
        let (order, nameless) = eviction_order(snapshot.entries.iter().map(Candidate::of).collect());
        for key in &nameless {
            if let Some(entry) = by_key.get(key) {
                self.keep(entry, &Kept::NoId);
            }
            self.events.push(invalid_id_event(key));
        }
        let turn = |candidate: Candidate| by_key.get(&candidate.key).copied().map(|entry| Turn { entry, candidate });
        let is_free = |turn: &Turn<'_>| turn.entry.leased_until.is_none() && turn.entry.released_at.is_none();
        order.into_iter().filter_map(turn).filter(is_free).collect()
    }

    async fn remove_old(&mut self, order: &[Turn<'_>], now: SystemTime) {
        let Some(age_max) = self.policy.age_max() else { return };
        let mut phase = AgePhase {
            age_max,
            watched_since: self.watched_since,
            now,
            counts: self.policy.age_counts(),
            failures: Vec::new(),
        };
        if !phase.opens() {
            tracing::debug!(age_max = %duration_text(age_max), "images were not watched long enough to call one old");
            return;
        }
        self.is_active = true;
        let old: Vec<&Turn<'_>> = order.iter().filter(|turn| phase.takes(&turn.candidate)).collect();
        for turn in old {
            if let Attempt::Failed(error) = self.remove(turn.entry, GcPhase::Age).await {
                phase.failures.push(error);
            }
        }
        if let Some(error) = phase.error() {
            self.fail(error);
        }
    }

    /// The space phase under thresholds, where freeing too little is a failure.
    async fn make_room_below_threshold(
        &mut self,
        order: &[Turn<'_>],
        wanted: Option<ByteSize>,
        disk: &DiskUse,
        now: SystemTime,
    ) {
        let Some(wanted) = wanted else { return };
        let used_percent = disk.used_percent();
        tracing::info!(
            used_percent,
            high = %self.policy.high(),
            low = %self.policy.low(),
            wanted = wanted.0,
            "Disk usage on image filesystem is over the high threshold, trying to free bytes down to the low threshold"
        );
        let failures_before = self.failures.len();
        let freed = self.make_room(order, GcPhase::Space, wanted, now).await;
        let went_well = self.failures.len() == failures_before && self.aborted.is_none();
        if went_well && freed < wanted && !self.dry_run {
            self.fail(GcError::NotEnough { used_percent, capacity: disk.capacity, freed: freed.0 });
        }
    }

    async fn make_room(&mut self, order: &[Turn<'_>], kind: GcPhase, wanted: ByteSize, now: SystemTime) -> ByteSize {
        self.is_active = true;
        let wanted = i64::try_from(wanted.0).unwrap_or(i64::MAX);
        if wanted == 0 {
            return ByteSize::ZERO;
        }
        let mut phase = SpacePhase::new(wanted, self.policy.age_min(), now);
        for turn in order {
            // What went for its age, or could not, had its turn.
            if phase.is_done() || self.removed.iter().any(|removal| removal.key == turn.candidate.key) {
                continue;
            }
            if self.is_chosen(&turn.candidate.key) {
                continue;
            }
            if let Some(kept) = phase.keeps(&turn.candidate) {
                self.keep(turn.entry, &kept);
                continue;
            }
            match self.remove(turn.entry, kind).await {
                Attempt::Removed => phase.removed(turn.candidate.size),
                Attempt::Failed(error) => phase.failed(error),
                Attempt::Spared => {}
            }
        }
        if let Some(error) = phase.error() {
            self.fail(error);
        }
        phase.freed
    }

    /// Removes one image unless something has come between.
    async fn remove(&mut self, entry: &Entry, phase: GcPhase) -> Attempt {
        if let Some(why) = self.aborted.clone() {
            self.keep(entry, &Kept::Aborted(why));
            return Attempt::Spared;
        }
        if self.containers_vanished {
            let kept = self.abort(GcError::ContainersVanished);
            self.keep(entry, &kept);
            return Attempt::Spared;
        }
        let size = entry.image.size;
        let reason = self.why(entry, phase);
        if self.dry_run {
            self.decide(entry, GcVerdict::Remove { phase }, reason);
            self.claimed = self.claimed + size;
            return Attempt::Removed;
        }
        let cleared = match self.gc.inventory.clear(entry, self.containers, self.clock()).await {
            Ok(Clearance::Free(removal)) => Ok(removal),
            Ok(Clearance::Kept(standing)) => Err(match standing {
                Standing::Gone => Kept::Gone,
                Standing::InUse(users) => Kept::InUse(users),
                Standing::Pinned(by) => Kept::Pinned(by),
                Standing::Touched => Kept::JustUsed,
                Standing::Leased(_) | Standing::Busy => Kept::Awaited,
                Standing::Released(_) => Kept::Released,
                Standing::Doubtful => self.abort(GcError::ContainersVanished),
            }),
            Err(error) => Err(self.abort(GcError::Recheck(error))),
        };
        // Until this ends, nobody is told that the image is here.
        let _removal = match cleared {
            Ok(removal) => removal,
            Err(kept) => {
                self.keep(entry, &kept);
                return Attempt::Spared;
            }
        };
        self.decide(entry, GcVerdict::Remove { phase }, reason);
        let id = entry.image.id.to_string();
        tracing::info!(image = %id, size = size.0, handler = %entry.image.spec.runtime_handler, %phase, "Removing image to free bytes");
        let spec = ImageSpec { image: id, ..entry.image.spec.clone() };
        let (outcome, attempt) = match self.gc.runtime.remove(&spec).await {
            Ok(()) => {
                self.claimed = self.claimed + size;
                (GcOutcome::Removed { claimed: size }, Attempt::Removed)
            }
            Err(error) => {
                let error = error.chain();
                tracing::warn!(image = %spec.image, %error, "could not remove an image");
                (GcOutcome::Failed { error: error.clone() }, Attempt::Failed(error))
            }
        };
        self.removed.push(GcRemoval { key: entry.key(), tags: entry.image.tags.clone(), phase, outcome });
        attempt
    }

    fn why(&self, entry: &Entry, phase: GcPhase) -> String {
        let ago = |time: SystemTime| {
            let seconds = self.now.duration_since(time).unwrap_or_default().as_secs();
            duration_text(std::time::Duration::from_secs(seconds))
        };
        let idle = entry.last_used.map_or_else(
            || format!("never used, first seen {} ago", ago(entry.first_seen)),
            |used| format!("last used {} ago", ago(used)),
        );
        match (phase, self.policy.age_max()) {
            (GcPhase::Age, Some(age_max)) => format!("unused for more than {}: {idle}", duration_text(age_max)),
            (GcPhase::Space, _) => format!("room is wanted: {idle}"),
            _ => format!("unused: {idle}"),
        }
    }

    fn clock(&self) -> SystemTime {
        self.now + self.began.elapsed()
    }

    fn is_chosen(&self, key: &ImageKey) -> bool {
        self.decisions.get(key).is_some_and(|decision| matches!(decision.verdict, GcVerdict::Remove { .. }))
    }

    fn keep(&mut self, entry: &Entry, kept: &Kept) {
        self.decide(entry, GcVerdict::Keep, kept.to_string());
    }

    fn decide(&mut self, entry: &Entry, verdict: GcVerdict, reason: String) {
        let image = &entry.image;
        let decision = GcDecision { key: entry.key(), tags: image.tags.clone(), size: image.size, verdict, reason };
        self.decisions.insert(entry.key(), decision);
    }

    fn abort(&mut self, error: GcError) -> Kept {
        let why = error.to_string();
        self.aborted = Some(why.clone());
        self.fail(error);
        Kept::Aborted(why)
    }

    /// Notes a failure that does not end the round, and its event.
    fn fail(&mut self, error: GcError) {
        self.events.extend(error.event());
        self.failures.push(error);
    }

    fn log(&self) {
        for decision in self.decisions.values() {
            let (image, tags, reason) = (&decision.key, decision.tags.join(" "), decision.reason.as_str());
            match decision.verdict {
                GcVerdict::Remove { phase } => {
                    tracing::info!(%image, tags, reason, %phase, dry_run = self.dry_run, "chose an image");
                }
                GcVerdict::Keep if self.is_active => tracing::info!(%image, tags, reason, "kept an image"),
                GcVerdict::Keep => tracing::debug!(%image, tags, reason, "kept an image"),
            }
        }
    }

    /// Looks again at images and disk, and tells all.
    async fn report(self, disk_before: DiskUse, goal_bytes: Option<ByteSize>, now: SystemTime) -> GcReport {
        self.log();
        let (mut disk_after, mut present) = (None, None);
        if !self.dry_run {
            present = match self.gc.inventory.refresh(now).await {
                Ok(snapshot) => Some(ids(&snapshot)),
                Err(error) => {
                    tracing::warn!(%error, "could not list the images that are left");
                    None
                }
            };
        }
        if self.claimed > ByteSize::ZERO && !self.dry_run {
            disk_after = match disk::look(&self.gc.runtime, &self.gc.probe).await {
                Ok(disk) => Some(disk).filter(|disk| disk.capacity > ByteSize::ZERO),
                Err(error) => {
                    tracing::warn!(%error, "could not look at the disk after removing images");
                    None
                }
            };
        }
        let is_measured = disk_before.capacity > ByteSize::ZERO;
        let measured = disk_after
            .as_ref()
            .filter(|_| is_measured)
            .map(|after| after.available.saturating_sub(disk_before.available));
        if self.is_active {
            let removed = self.removed.iter().filter(|it| matches!(it.outcome, GcOutcome::Removed { .. })).count();
            let measured = measured.map(|bytes| bytes.0);
            tracing::info!(
                removed,
                claimed = self.claimed.0,
                measured,
                dry_run = self.dry_run,
                "image collection ended"
            );
        }
        GcReport {
            disk_before,
            disk_after,
            goal_bytes,
            decisions: self.decisions.into_values().collect(),
            removed: self.removed,
            claimed: self.claimed,
            measured,
            failures: self.failures,
            events: self.events,
            present,
        }
    }
}

fn ids(snapshot: &Snapshot) -> Vec<ImageId> {
    let mut ids: Vec<ImageId> = snapshot.entries.iter().map(|entry| entry.image.id.clone()).collect();
    ids.dedup();
    ids
}
