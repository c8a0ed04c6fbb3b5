//! One collection under way: what was decided, tried and told so far. Both ways of collecting act through it.

use std::{sync::Arc, time::SystemTime};

use tokio::time::Instant;

use super::{
    Decisions, DiskUse, GcDecision, GcError, GcEvent, GcOutcome, GcPhase, GcRemoval, GcReport, GcRequest, GcVerdict,
    GcWay, ImageGc, Planned, Reason, disk, verdicts::Why,
};
use crate::{
    image::{ByteSize, ImageId, ImageSpec},
    inventory::{Clearance, Entry, Snapshot, Standing},
    runtime::RuntimeErrorKind,
    runtime::{Certainty, Freed, LayerGraph},
    text::split_grpc_error,
};

/// How the try to remove an image ended.
pub(super) enum Attempt {
    Removed,
    Failed(String),
    /// It stays, or the round is over; the decision says why.
    Spared(Reason),
}

/// One collection under way.
pub(super) struct Round<'a> {
    pub(super) gc: &'a ImageGc,
    pub(super) dry_run: bool,
    pub(super) policy: super::GcPolicy,
    pub(super) now: SystemTime,
    containers: usize,
    containers_vanished: bool,
    began: Instant,
    decisions: Decisions,
    pub(super) removed: Vec<GcRemoval>,
    pub(super) claimed: ByteSize,
    /// What that really frees, as far as is known.
    pub(super) freed: Freed,
    pub(super) certainty: Certainty,
    pub(super) failures: Vec<GcError>,
    pub(super) events: Vec<GcEvent>,
    pub(super) planned: Vec<Arc<Planned>>,
    /// Why no further removal is tried.
    pub(super) aborted: Option<String>,
    /// Something was to be removed, so operators want to know why the rest stays.
    pub(super) is_active: bool,
}

impl<'a> Round<'a> {
    pub(super) fn new(gc: &'a ImageGc, request: &GcRequest, snapshot: &Snapshot) -> Self {
        Self {
            gc,
            dry_run: request.dry_run,
            policy: request.policy,
            now: snapshot.taken_at,
            containers: snapshot.containers,
            containers_vanished: snapshot.containers_vanished,
            began: Instant::now(),
            decisions: Decisions::default(),
            removed: Vec::new(),
            claimed: ByteSize::ZERO,
            freed: Freed::default(),
            certainty: Certainty::Claimed,
            failures: Vec::new(),
            events: Vec::new(),
            planned: Vec::new(),
            aborted: None,
            is_active: false,
        }
    }

    /// From now on this listing is what the decisions are about.
    pub(super) fn look_at(&mut self, snapshot: &Snapshot) {
        self.containers = self.containers.max(snapshot.containers);
        self.containers_vanished |= snapshot.containers_vanished;
    }

    /// Removes one image unless something has come between.
    pub(super) async fn remove(&mut self, entry: &Entry, phase: GcPhase, reason: Reason) -> Attempt {
        if let Some(why) = self.aborted.clone() {
            return self.spare(entry, Reason::Aborted { why });
        }
        if self.containers_vanished {
            let reason = self.abort(GcError::ContainersVanished);
            return self.spare(entry, reason);
        }
        let size = entry.image.size;
        if self.dry_run {
            self.decide(entry, GcVerdict::Remove { phase }, reason);
            self.claimed = self.claimed + size;
            return Attempt::Removed;
        }
        let cleared = match self.gc.inventory.clear(entry, self.containers, self.clock()).await {
            Ok(Clearance::Free(removal)) => Ok(removal),
            Ok(Clearance::Kept(standing)) => Err(match standing {
                Standing::Gone => Reason::Gone,
                Standing::InUse(by) => Reason::InUse { by },
                Standing::Pinned(by) => Reason::Pinned { by },
                Standing::Touched => Reason::JustUsed,
                Standing::Leased(until) => Reason::awaited(until),
                Standing::Busy => Reason::Awaited { until: None },
                Standing::Released(_) => Reason::Released,
                Standing::Doubtful => self.abort(GcError::ContainersVanished),
            }),
            Err(error) => Err(self.abort(GcError::Recheck(error))),
        };
        // Until this ends, nobody is told that the image is here.
        let _removal = match cleared {
            Ok(removal) => removal,
            Err(reason) => return self.spare(entry, reason),
        };
        self.gc.put_on_record(entry, &reason, self.clock());
        self.decide(entry, GcVerdict::Remove { phase }, reason);
        let id = entry.image.id.to_string();
        let runtime_handler = entry.image.spec.runtime_handler.as_str();
        // The kubelet's line, with its names of the fields; the names of the image are ours.
        let names = entry.image.names().join(" ");
        tracing::info!(imageID = %id, names, size = size.0, runtimeHandler = runtime_handler, %phase, "Removing image to free bytes");
        let spec = match self.policy.way() {
            GcWay::Imagelet => ImageSpec { image: id, ..entry.image.spec.clone() },
            // The kubelet's names the id alone; a use under any handler kept the image from coming this far.
            GcWay::Kubelet => ImageSpec::new(id),
        };
        let (outcome, attempt) = match self.gc.runtime.remove(&spec).await {
            Ok(()) => {
                self.claimed = self.claimed + size;
                (GcOutcome::Removed { claimed: size }, Attempt::Removed)
            }
            // Something holds it that only the store knows of, or it came into use since the question: another one goes.
            Err(error) if error.kind() == RuntimeErrorKind::InUse && self.policy.way() == GcWay::Imagelet => {
                return self.spare(entry, Reason::Refused { error: split_grpc_error(&error.chain()).1.to_owned() });
            }
            Err(error) => {
                let error = error.chain();
                tracing::warn!(image = %spec.image, %error, "could not remove an image");
                (GcOutcome::Failed { error: error.clone() }, Attempt::Failed(error))
            }
        };
        self.removed.push(GcRemoval { key: entry.key(), names: entry.image.names().to_vec(), phase, outcome });
        attempt
    }

    fn clock(&self) -> SystemTime {
        self.now + self.began.elapsed()
    }

    fn spare(&mut self, entry: &Entry, reason: Reason) -> Attempt {
        self.keep(entry, reason.clone());
        Attempt::Spared(reason)
    }

    pub(super) fn keep(&mut self, entry: &Entry, reason: Reason) {
        self.decide(entry, GcVerdict::Keep, reason);
    }

    /// Decides about all images of a snapshot: at once, as there may be very many.
    pub(super) fn decide_all(&mut self, snapshot: &Arc<Snapshot>, why: Why) {
        self.decisions.take_all(snapshot, why);
    }

    /// Whether nothing can come between a plan and what is told of it.
    pub(super) fn may_foresee(&self) -> bool {
        self.dry_run && self.aborted.is_none() && !self.containers_vanished
    }

    /// Decides as it is planned, and removes nothing.
    pub(super) fn foresee(&mut self, snapshot: &Arc<Snapshot>, planned: Arc<Planned>) {
        let claimed =
            planned.plan.steps.iter().filter_map(|step| snapshot.entries.get(step.place)).map(|entry| entry.image.size);
        self.claimed = self.claimed + claimed.sum();
        self.decide_all(snapshot, Why::foreseen(planned));
    }

    fn decide(&mut self, entry: &Entry, verdict: GcVerdict, reason: Reason) {
        self.decisions.take(GcDecision::of(entry, verdict, reason));
    }

    fn abort(&mut self, error: GcError) -> Reason {
        let why = error.to_string();
        self.aborted = Some(why.clone());
        self.fail(error);
        Reason::Aborted { why }
    }

    /// Notes a failure that does not end the round, and its event.
    pub(super) fn fail(&mut self, error: GcError) {
        self.events.extend(error.event());
        self.failures.push(error);
    }

    /// Counts what went, or would go, without a plan: by the layers where they are known.
    pub(super) fn count_freed(&mut self, layers: Option<&LayerGraph>) {
        let Some(layers) = layers else {
            self.freed = Freed { bytes: self.claimed, inodes: 0 };
            return;
        };
        let gone: Vec<ImageId> = if self.dry_run {
            let goes = self.decisions.iter().filter(|it| matches!(it.verdict, GcVerdict::Remove { .. }));
            goes.map(|it| it.key.id().clone()).collect()
        } else {
            let removed = self.removed.iter().filter(|it| matches!(it.outcome, GcOutcome::Removed { .. }));
            removed.map(|it| it.key.id().clone()).collect()
        };
        self.freed = layers.freed_by(&gone);
        self.certainty = layers.certainty;
    }

    fn log(&self) {
        if !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        for decision in self.decisions.iter() {
            let (image, tags, reason) = (&decision.key, decision.tags.join(" "), &decision.reason);
            match decision.verdict {
                GcVerdict::Remove { phase } => {
                    tracing::info!(%image, tags, %reason, %phase, dry_run = self.dry_run, "chose an image");
                }
                GcVerdict::Keep if self.is_active => tracing::info!(%image, tags, %reason, "kept an image"),
                GcVerdict::Keep => tracing::debug!(%image, tags, %reason, "kept an image"),
            }
        }
    }

    /// Looks again at images and disk, and tells all.
    pub(super) async fn report(self, disk_before: DiskUse, goal_bytes: Option<ByteSize>, now: SystemTime) -> GcReport {
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
        let freed = disk_before.at_most_used(self.freed, self.certainty);
        GcReport {
            disk_before,
            disk_after,
            goal_bytes,
            decisions: self.decisions,
            removed: self.removed,
            claimed: self.claimed,
            freed,
            could_free: self.planned.first().map_or(self.claimed, |planned| planned.plan.could_free),
            certainty: self.certainty,
            measured,
            failures: self.failures,
            events: self.events,
            planned: self.planned,
            present,
            hook: None,
        }
    }
}

fn ids(snapshot: &Snapshot) -> Vec<ImageId> {
    let mut ids: Vec<ImageId> = snapshot.entries.iter().map(|entry| entry.image.id.clone()).collect();
    ids.dedup();
    ids
}
