//! Runs one collection: lists images, plans, checks and removes, lists again, and prunes pull records. A prevented
//! removal causes a new plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use tokio::time::Instant;

use super::{
    ImageGc,
    keep_rules::{KeepRules, held_by_rules},
    plan::{Done, Plan, PlanInput, Step, frees, message, plan},
    policy::{GcGoal, GcPhase, GcRequest},
    report::{GcDecision, GcError, GcEvent, GcOutcome, GcReport},
};
use crate::{
    disks::{self, DiskUse},
    error::RuntimeErrorKind,
    image::{ByteSize, ImageId, ImageKey, ImageSpec},
    inventory::{ImageEntry, InventoryError, Reason, Snapshot},
    leases::Removal,
    node_policy::GcRules,
    ports::{Freed, LayerGraph},
    text::{PlainError, aggregate, duration_text, split_grpc_error},
};

const PLANS_MAX: usize = 8;

impl ImageGc {
    /// Runs one collection, after a running collection has ended. A dry run starts at once and delays no collection. If
    /// a removal fails or an image comes into use in the meantime, the report contains this, and another image is
    /// removed. If the future is dropped, finished removals stay in effect.
    ///
    /// # Errors
    /// If images, users or the disk cannot be queried. Removals before the error stay in effect.
    pub async fn run(&self, request: &GcRequest, now: SystemTime) -> Result<GcReport, GcError> {
        self.run_by("collection", request, now).await
    }

    /// Runs a collection as [`Self::run`]. `by` is its trigger in the audit log: `timer`, `command`, `pull`.
    pub async fn run_by(&self, by: &str, request: &GcRequest, now: SystemTime) -> Result<GcReport, GcError> {
        // Locked during the whole collection: two concurrent collections would together free more than requested.
        let waiting = Instant::now();
        let _turn = if request.dry_run { None } else { Some(self.turn.lock().await) };
        let now = now + waiting.elapsed();
        let began = Instant::now();
        if !request.policy.rules.own_texts && request.goal == GcGoal::AllUnused {
            tracing::info!("Attempting to delete unused images");
        }
        let mark = self.pruning.as_ref().map(|pruning| pruning.records.mark(now));
        let snapshot = self.inventory.refresh(now).await?;
        if let Some(mark) = mark.filter(|_| !request.dry_run) {
            self.remember_preloaded(&snapshot.entries, mark).await;
        }
        let mut run = Run {
            gc: self,
            request,
            by,
            rules: self.rules(),
            now,
            began,
            containers: snapshot.containers,
            containers_vanished: snapshot.containers_vanished,
            report: GcReport::default(),
            wanted: None,
            last: None,
            spared: BTreeMap::new(),
            done: Done::default(),
            removed_for_space: None,
            age_failures: Vec::new(),
            space_failures: Vec::new(),
            aborted: None,
            is_active: false,
        };
        run.collect(snapshot).await?;
        let report = run.report().await;
        self.prune_records(request, &report, mark).await;
        Ok(report)
    }

    /// Waits for the end of a running collection, so that a following plan does not count its removals again.
    pub async fn wait_for_running(&self) {
        drop(self.turn.lock().await);
    }

    /// The layers of all images. Layers on other disks are omitted, because their removal frees no space on `disk`.
    async fn layers_on(&self, disk: Option<&DiskUse>) -> Option<LayerGraph> {
        let graph = self.runtime.layers().await.unwrap_or_else(|error| {
            tracing::warn!(error = error.chain(), "planning without the layers that images share");
            None
        })?;
        let folders = graph.folders();
        let device = disk.map(|disk| disk.device.clone()).filter(|device| !device.is_empty());
        let Some(device) = device.filter(|_| !folders.is_empty()) else { return Some(graph) };
        let probe = Arc::clone(&self.probe);
        let is_elsewhere = move |folder: &Arc<Path>| probe.look(folder).is_ok_and(|there| there.device != device);
        let elsewhere = tokio::task::spawn_blocking(move || folders.into_iter().filter(is_elsewhere).collect()).await;
        Some(graph.without(&elsewhere.unwrap_or_default()))
    }

    /// Measures the disk of the runtime's image directory. If this process cannot see the directory, the capacity is
    /// zero. Only a threshold goal rejects zero.
    async fn measure(&self) -> Result<DiskUse, GcError> {
        let filesystems = self.runtime.filesystem().await.map_err(GcError::Filesystem)?;
        let (probe, reserved) = (Arc::clone(&self.probe), filesystems.reserved);
        let images = disks::image_filesystem(&filesystems)?.clone();
        let measured = tokio::task::spawn_blocking(move || disks::image_disk(&images, &*probe));
        let disk = measured.await.unwrap_or_else(|error| Err(PlainError::new(error.to_string())))?.unwrap_or_default();
        // The reservations are read first. At worst, a layer that is committed in between counts twice.
        Ok(DiskUse { reserved, ..disk })
    }
}

struct Run<'a> {
    gc: &'a ImageGc,
    request: &'a GcRequest,
    by: &'a str,
    rules: Arc<KeepRules>,
    now: SystemTime,
    began: Instant,
    containers: usize,
    containers_vanished: bool,
    /// During the run, the decisions have only the images that the collection tried to remove.
    report: GcReport,
    wanted: Option<Freed>,
    last: Option<(Arc<Snapshot>, Plan)>,
    spared: BTreeMap<ImageKey, Reason>,
    done: Done,
    /// The sum of the listed sizes. `None`: no image was removed for space.
    removed_for_space: Option<ByteSize>,
    age_failures: Vec<String>,
    space_failures: Vec<String>,
    aborted: Option<String>,
    is_active: bool,
}

impl<'a> Run<'a> {
    fn clock(&self) -> SystemTime {
        self.now + self.began.elapsed()
    }

    async fn collect(&mut self, mut snapshot: Arc<Snapshot>) -> Result<(), GcError> {
        let measures_first = self.request.policy.rules.measures_first;
        if !measures_first && self.request.goal == GcGoal::Threshold && !self.request.dry_run {
            self.pass(&snapshot, None, true).await;
        }
        if self.age_failures.is_empty() || measures_first {
            let disk = self.measure().await;
            let measured = disk.as_ref().ok().cloned();
            self.report.disk_before = measured.clone().unwrap_or_default();
            for plans in 1..=PLANS_MAX {
                let is_disturbed = self.pass(&snapshot, measured.clone(), plans == PLANS_MAX).await;
                if !is_disturbed || plans == PLANS_MAX {
                    break;
                }
                snapshot = self.gc.inventory.refresh(self.clock()).await?;
                self.containers = self.containers.max(snapshot.containers);
                self.containers_vanished |= snapshot.containers_vanished;
            }
            if let Err(error) = disk {
                // If no removal was tried, the failed measurement is the result of the collection.
                if self.report.decisions.is_empty() && self.aborted.is_none() {
                    return Err(error);
                }
                self.fail(error);
            }
        }
        self.report_failures();
        Ok(())
    }

    async fn measure(&self) -> Result<DiskUse, GcError> {
        let disk = self.gc.measure().await;
        match self.request.goal {
            GcGoal::Threshold => {
                disk.and_then(|disk| if disk.capacity == ByteSize::ZERO { Err(GcError::NoCapacity) } else { Ok(disk) })
            }
            GcGoal::Free(_) | GcGoal::AllUnused => Ok(disk.unwrap_or_else(|error| {
                tracing::warn!(%error, "collecting without knowing how full the disk is");
                DiskUse::default()
            })),
        }
    }

    /// Makes and executes one plan. Returns true if a removal was prevented, so that a new plan may free more.
    async fn pass(&mut self, snapshot: &Arc<Snapshot>, disk: Option<DiskUse>, is_last: bool) -> bool {
        let gc = self.gc;
        let layers = gc.layers_on(disk.as_ref()).await;
        let labels = gc.labels.labels(&gc.runtime, snapshot, &self.rules).await;
        let ruled = held_by_rules(&snapshot.entries, &labels, &self.rules, self.now);
        let mut spared = self.gc.remaining.of(snapshot);
        spared.extend(self.spared.iter().map(|(key, reason)| (key.clone(), reason.clone())));
        let input = PlanInput {
            request: self.request,
            now: self.now,
            snapshot,
            disk,
            done: if self.request.policy.rules.measures_first {
                self.done
            } else {
                Done { age: Freed::default(), ..self.done }
            },
            ruled: &ruled,
            layers: layers.as_ref(),
            spared: &spared,
        };
        let plan = plan(&input);
        self.note(&plan, &input);
        let is_disturbed = if self.request.dry_run && !self.containers_vanished {
            self.foresee(&plan, &input);
            false
        } else {
            self.act(&plan, &input, is_last).await
        };
        if !self.request.policy.rules.prunes_by_present {
            self.note_hook(&plan, &input);
        }
        self.last = Some((Arc::clone(snapshot), plan));
        is_disturbed && self.aborted.is_none() && self.request.policy.is_planned()
    }

    fn note(&mut self, plan: &Plan, input: &PlanInput<'_>) {
        self.is_active |= plan.wanted.is_some() || !plan.steps.is_empty();
        if self.last.is_none() {
            (self.report.sizes.could_free, self.report.sizes.certainty) = (plan.possible.bytes, plan.certainty);
            for (entry, reason) in input.snapshot.entries.iter().zip(&plan.kept) {
                if *reason == Some(Reason::NoId) {
                    let message = format!("ImageID is not valid, skipping, image: {}", entry.key());
                    self.report.events.push(GcEvent { reason: "InvalidImageID", message });
                }
            }
        }
        self.wanted = self.wanted.or(plan.wanted);
        if !self.request.policy.rules.own_texts
            && let (Some(disk), Some(_)) = (&input.disk, plan.wanted)
            && input.request.goal == GcGoal::Threshold
        {
            let policy = &input.request.policy;
            tracing::info!(
                usage = disk.used_percent(),
                highThreshold = policy.high().get(),
                amountToFree = policy.excess(disk),
                lowThreshold = policy.low().get(),
                "Disk usage on image filesystem is over the high threshold, trying to free bytes down to the low threshold"
            );
        }
    }

    fn foresee(&mut self, plan: &Plan, input: &PlanInput<'_>) {
        for step in &plan.steps {
            let entry = &input.snapshot.entries[step.place];
            self.report.sizes.claimed = self.report.sizes.claimed + entry.image.size;
            self.count(step.phase, step.frees);
            self.decide(entry, step, GcOutcome::Chosen, step.reason.clone());
        }
    }

    /// Executes the steps of a plan and counts the freed bytes. Returns true if a step was skipped. If images share
    /// layers, a skipped step may make later steps useless. The later steps then wait for a new plan, except in the
    /// last plan. With `GcOrder::ListedSizes`, the next image is removed instead.
    async fn act(&mut self, plan: &Plan, input: &PlanInput<'_>, is_last: bool) -> bool {
        let mut removed: Vec<&Step> = Vec::new();
        let mut is_whole = true;
        for step in plan.steps.iter().chain(&plan.reserve) {
            if !self.request.policy.is_planned() && self.has_enough(plan) {
                break;
            }
            if self.remove(&input.snapshot.entries[step.place], step).await {
                removed.push(step);
            } else {
                is_whole = false;
            }
            let waits =
                !is_last && step.phase != GcPhase::Age && input.layers.is_some() && self.request.policy.is_planned();
            if !is_whole && waits {
                break;
            }
        }
        // The freed amounts are calculated again, because a shared layer stays if a skipped image uses it.
        let places: Vec<usize> = removed.iter().map(|step| step.place).collect();
        for (step, (_, frees)) in removed.iter().zip(frees(input.layers, input, &places)) {
            self.count(step.phase, frees);
        }
        !is_whole
    }

    fn count(&mut self, phase: GcPhase, frees: Freed) {
        let freed = if phase == GcPhase::Age { &mut self.done.age } else { &mut self.done.space };
        *freed = freed.plus(frees);
    }

    fn has_enough(&self, plan: &Plan) -> bool {
        let wanted = plan.wanted.map_or(u64::MAX, |wanted| wanted.bytes.0);
        self.removed_for_space.is_some_and(|removed| removed.0 >= wanted)
    }

    /// Checks the image again. Requests for the image wait until the result is dropped.
    async fn begin(&mut self, entry: &ImageEntry) -> Result<Removal<'a>, Reason> {
        if let Some(why) = self.aborted.clone() {
            return Err(Reason::Aborted(why));
        }
        if self.containers_vanished {
            return Err(self.abort(InventoryError::ContainersVanished.into()));
        }
        let gc = self.gc;
        let cleared = gc.inventory.check_removable(entry, self.containers, self.clock()).await;
        cleared.map_err(|error| match error {
            InventoryError::ContainersVanished => self.abort(error.into()),
            error => self.abort(GcError::Recheck(error)),
        })?
    }

    async fn remove(&mut self, entry: &Arc<ImageEntry>, step: &Step) -> bool {
        let (id, size) = (entry.image.id.to_string(), entry.image.size);
        // The kubelet passes only the id to the runtime. The check below finds containers of every handler.
        let spec = if self.request.policy.is_planned() { entry.image.spec.clone() } else { ImageSpec::default() };
        let spec = ImageSpec { image: id.clone(), ..spec };
        let is_over = self.aborted.is_some() || self.containers_vanished;
        let prepared = if is_over { Ok(()) } else { self.gc.runtime.prepare_removal(&spec).await };
        let _removal = match self.begin(entry).await {
            Ok(removal) => removal,
            Err(reason) => return self.spare(entry, step, reason),
        };
        if let Err(error) = &prepared
            && error.kind() == RuntimeErrorKind::Remains
        {
            let why = error.chain();
            tracing::warn!(image = %id, why, "an image cannot be removed; the next collection tries again");
            return self.spare(entry, step, Reason::Remains(why));
        }
        let began = self.clock();
        let runtime_handler = entry.image.spec.runtime_handler.as_str();
        // The kubelet's log line with the kubelet's field names. `names` and `phase` are additions.
        let (names, phase) = (entry.image.names().join(" "), step.phase.name());
        tracing::info!(imageID = %id, names, size = size.0, runtimeHandler = runtime_handler, phase, "Removing image to free bytes");
        let removed = match prepared {
            Ok(()) => self.gc.runtime.remove_and_look(&spec).await,
            failed => failed,
        };
        match removed {
            Ok(()) => {
                self.report.sizes.claimed = self.report.sizes.claimed + size;
                if step.phase != GcPhase::Age {
                    self.removed_for_space = Some(self.removed_for_space.unwrap_or_default() + size);
                }
                self.spared.insert(entry.key(), Reason::Gone);
                self.decide(entry, step, GcOutcome::Removed, step.reason.clone());
                true
            }
            // The store knows a user that the check did not find, or the use began after the check. A new plan follows.
            Err(error) if error.kind() == RuntimeErrorKind::InUse && self.request.policy.is_planned() => {
                self.spare(entry, step, Reason::Refused(split_grpc_error(&error.chain()).1.to_owned()))
            }
            Err(error) if error.kind() == RuntimeErrorKind::Remains => {
                let why = error.chain();
                tracing::warn!(image = %spec.image, why, "an image cannot be removed; collections spare it until its names change or it is used");
                let reason = Reason::Remains(why);
                self.gc.remaining.add(entry.key(), reason.clone(), began, None);
                self.spare(entry, step, reason)
            }
            Err(error) => {
                let error = error.chain();
                tracing::warn!(image = %spec.image, %error, "could not remove an image");
                self.spared.insert(entry.key(), Reason::Failed(error.clone()));
                self.decide(entry, step, GcOutcome::Failed(error.clone()), step.reason.clone());
                if step.phase == GcPhase::Age { &mut self.age_failures } else { &mut self.space_failures }.push(error);
                false
            }
        }
    }

    fn spare(&mut self, entry: &Arc<ImageEntry>, step: &Step, reason: Reason) -> bool {
        self.spared.insert(entry.key(), reason.clone());
        self.decide(entry, step, GcOutcome::Kept, reason);
        false
    }

    fn decide(&mut self, entry: &Arc<ImageEntry>, step: &Step, outcome: GcOutcome, reason: Reason) {
        let (entry, phase, frees) = (Arc::clone(entry), Some(step.phase), step.frees.bytes);
        let decision = GcDecision { entry, outcome, reason, phase, frees };
        if let Some(log) = &self.gc.decisions
            && let Some(act) = decision.act(self.by)
        {
            log.act(act);
        }
        self.report.decisions.push(decision);
    }

    fn abort(&mut self, error: GcError) -> Reason {
        let why = error.to_string();
        self.aborted = Some(why.clone());
        self.fail(error);
        Reason::Aborted(why)
    }

    fn fail(&mut self, error: GcError) {
        self.report.events.extend(error.event());
        self.report.failures.push(error);
    }

    fn note_hook(&mut self, plan: &Plan, input: &PlanInput<'_>) {
        let has_space_phase = input.request.goal != GcGoal::Threshold || plan.wanted.is_some();
        if !has_space_phase || !self.space_failures.is_empty() || self.aborted.is_some() || self.request.dry_run {
            return;
        }
        let is_fresh =
            |reason: &Option<Reason>| matches!(reason, Some(Reason::Young(_) | Reason::JustUsed | Reason::Leased(_)));
        let fresh = (0..plan.kept.len()).filter(|place| is_fresh(&plan.kept[*place]));
        let others = plan.steps.iter().chain(&plan.reserve).filter(|step| step.phase != GcPhase::Age);
        let mut looked_at: Vec<usize> = fresh.chain(others.map(|step| step.place)).collect();
        looked_at.sort_by_key(|place| {
            (
                input.snapshot.entries[*place].usage.times.last_used,
                input.snapshot.entries[*place].usage.times.first_seen,
                *place,
            )
        });
        let is_gone = |place: &usize| self.spared.get(&input.snapshot.entries[*place].key()) == Some(&Reason::Gone);
        if self.has_enough(plan) {
            looked_at.truncate(looked_at.iter().rposition(is_gone).map_or(0, |last| last + 1));
        }
        let left = looked_at.iter().filter(|place| !is_gone(place));
        self.report.hook = Some(left.map(|place| input.id(*place).clone()).collect());
    }

    fn report_failures(&mut self) {
        let (policy, goal) = (self.request.policy, self.request.goal);
        let GcRules { measures_first, own_texts, .. } = self.request.policy.rules;
        let is_old_alone = !measures_first && !self.age_failures.is_empty();
        if !self.age_failures.is_empty() {
            let age_max = policy.age_max.unwrap_or_default();
            let (age_max, errors) = (duration_text(age_max), aggregate(&self.age_failures));
            let text =
                format!("wanted to free images older than {age_max}, encountered errors in image deletion: {errors}");
            self.fail(GcError::Removals(text));
        }
        let amount = match goal {
            GcGoal::Threshold if !own_texts => policy.excess(&self.report.disk_before),
            _ => self.wanted.map_or(i64::MAX, |wanted| i64::try_from(wanted.bytes.0).unwrap_or(i64::MAX)),
        };
        let for_space = self.removed_for_space.unwrap_or_default().0;
        if !self.space_failures.is_empty() {
            let errors = aggregate(&self.space_failures);
            let text = if !own_texts {
                // If the goal is all unused images, the kubelet's amount to free is the largest number.
                let freed = for_space;
                format!(
                    "wanted to free {amount} bytes, but freed {freed} bytes space with errors in image deletion: {errors}"
                )
            } else {
                let all = || "all unused images".to_owned();
                let wanted = self.wanted.filter(|_| goal != GcGoal::AllUnused);
                let wanted = wanted.map_or_else(all, |wanted| wanted.bytes.to_string());
                format!("{wanted} wanted, {} freed, and these removals failed: {errors}", self.done.space.bytes)
            };
            self.fail(GcError::Removals(text));
        }
        if self.aborted.is_some() || goal == GcGoal::AllUnused {
            return;
        }
        let disk = &self.report.disk_before;
        let (used_percent, capacity) = (disk.used_percent(), disk.capacity);
        if !self.request.policy.is_planned() {
            let is_short = self.wanted.is_some() && i128::from(for_space) < i128::from(amount);
            if is_short
                && goal == GcGoal::Threshold
                && !is_old_alone
                && self.space_failures.is_empty()
                && !self.request.dry_run
            {
                self.fail(GcError::NotEnough { used_percent, capacity, freed: for_space });
            }
            return;
        }
        // Only the last plan takes the prevented removals into account.
        let short = self.last.as_ref().and_then(|(_, plan)| Some((plan.shortfall?, plan.certainty)));
        let Some((shortfall, certainty)) = short else {
            if !self.request.dry_run {
                self.gc.shortfall.clear();
            }
            return;
        };
        let (freed, dry_run) = (self.done.space, self.request.dry_run);
        let text = message(used_percent, capacity, freed, dry_run, &shortfall, certainty);
        let error = GcError::OutOfReach { shortfall, text };
        // A command reports the failure each time. The node repeats the event only after a change of the shortfall.
        if goal == GcGoal::Threshold && !dry_run && self.gc.shortfall.is_new(disk, &shortfall) {
            self.report.events.extend(error.event());
        }
        self.report.failures.push(error);
    }

    fn decisions(&mut self) -> Vec<GcDecision> {
        let mut decisions = std::mem::take(&mut self.report.decisions);
        // `tried` is sorted by key, like the entries, so one walk joins both.
        let tried: BTreeSet<ImageKey> = decisions.iter().map(GcDecision::key).collect();
        let mut tried = tried.into_iter().peekable();
        let Some((snapshot, plan)) = &self.last else { return decisions };
        for (entry, reason) in snapshot.entries.iter().zip(&plan.kept) {
            while tried.next_if(|key| entry.image.cmp_key(key).is_gt()).is_some() {}
            if tried.next_if(|key| entry.image.cmp_key(key).is_eq()).is_none() {
                let reason = reason.clone().unwrap_or(Reason::NotNeeded);
                let (entry, frees) = (Arc::clone(entry), ByteSize::ZERO);
                decisions.push(GcDecision { entry, outcome: GcOutcome::Kept, reason, phase: None, frees });
            }
        }
        for GcDecision { entry, reason, phase, .. } in &decisions {
            let (image, tags, dry_run) = (&entry.image.id, &entry.image.tags, self.request.dry_run);
            match phase {
                Some(phase) => {
                    tracing::info!(%image, tags = tags.join(" "), %reason, phase = phase.name(), dry_run, "chose an image");
                }
                None if self.is_active => tracing::info!(%image, tags = tags.join(" "), %reason, "kept an image"),
                None => tracing::debug!(%image, tags = tags.join(" "), %reason, "kept an image"),
            }
        }
        decisions
    }

    async fn report(mut self) -> GcReport {
        self.report.decisions = self.decisions();
        let (gc, dry_run, now) = (self.gc, self.request.dry_run, self.clock());
        let report = &mut self.report;
        if !dry_run {
            match gc.inventory.refresh(now).await {
                Ok(snapshot) => {
                    let mut ids: Vec<ImageId> = snapshot.entries.iter().map(|entry| entry.image.id.clone()).collect();
                    ids.dedup();
                    report.present = Some(ids);
                    // Stores the current names of images that are still present after their removal.
                    gc.remaining.of(&snapshot);
                }
                Err(error) => tracing::warn!(%error, "could not list the images that are left"),
            }
        }
        if report.sizes.claimed > ByteSize::ZERO && !dry_run {
            match gc.measure().await {
                Ok(disk) => report.disk_after = Some(disk).filter(|disk| disk.capacity > ByteSize::ZERO),
                Err(error) => tracing::warn!(%error, "could not measure the disk after removing images"),
            }
        }
        let before = &report.disk_before;
        let after = report.disk_after.as_ref().filter(|_| before.capacity > ByteSize::ZERO);
        report.sizes.measured = after.map(|after| after.available.saturating_sub(before.available));
        report.sizes.goal = self.wanted.map(|wanted| wanted.bytes);
        report.sizes.freed = before.at_most_used(self.done.age.plus(self.done.space), report.sizes.certainty);
        let could_free = Freed { bytes: report.sizes.could_free, inodes: 0 };
        report.sizes.could_free = before.at_most_used(could_free, report.sizes.certainty).bytes;
        if self.is_active {
            let removed = report.removed().count();
            let (claimed, measured) = (report.sizes.claimed.0, report.sizes.measured.map(|bytes| bytes.0));
            tracing::info!(removed, claimed, measured, dry_run, "image collection ended");
        }
        self.report
    }
}
