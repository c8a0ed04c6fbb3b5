//! Runs a collection for a command, the timer or a pull, and builds the reply from its report.

use std::{
    sync::Weak,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    events::EventKind,
    gc::{GcDecision, GcError, GcEvent, GcGoal, GcOutcome, GcPhase, GcPolicy, GcReport, GcRequest},
    image::{ByteSize, counted, shown_name},
    inventory::VANISHED_WAIT,
    ports::{MakeRoom, PullRemains, RemovedImage, RoomMade, RoomWanted},
};
use tracing::{Instrument as _, Span, info_span, instrument::WithSubscriber as _, subscriber::NoSubscriber};

use super::{Collection, gc_audit::COLLECTED};
use crate::{
    api::{ArtifactRow, CollectRequest, Collected, CollectedRow, Step, Steps},
    config::{CollectionMode, Settings},
    failure::Failure,
};

const NAMED_MAX: usize = 10;

impl CollectRequest {
    pub(crate) async fn run_on(self, collection: &Collection, steps: Steps) -> Result<Collected, Failure> {
        let images = &collection.images;
        if !images.place.uses_known && !self.dry_run {
            let message =
                format!("{} does not say which images are in use, so none is collected", images.place.backend);
            return Err(Failure::new("Unsupported", message));
        }
        let request = gc_request(&self, &images.settings())?;
        // A daemon adopts images in its periodic pass, and a command without a daemon adopts them now.
        if !images.place.is_daemon
            && let Ok(snapshot) = images.refresh().await
        {
            images.adopt(&snapshot).await;
            if !self.dry_run && snapshot.misses_containers() {
                // A restarting runtime lists few containers, so a missing one counts as ended only after a wait.
                let wait = VANISHED_WAIT + Duration::from_secs(1);
                let (backend, seconds) = (&images.place.backend, wait.as_secs());
                let why = "lists fewer containers than before, as a runtime that restarts does";
                steps(Step::Notice { note: format!("{backend} {why}: asks again in {seconds}s") });
                tokio::time::sleep(wait).await;
                images.refresh().await?;
            }
        }
        if collection.is_shadow() && !self.dry_run && !self.enforce {
            let message = "the mode of collection is `shadow`: nothing is removed";
            return Err(Failure::new("ShadowMode", message)
                .or_hint("`imagelet gc --dry-run` shows what would go; `--enforce` removes it this once"));
        }
        let report = collection.run(&request, "command", false).await?;
        Ok(collected(&report, &request))
    }
}

impl Collection {
    pub(crate) fn is_shadow(&self) -> bool {
        self.images.settings().collection.mode == CollectionMode::Shadow
    }

    /// Plans a collection. The plan is neither recorded nor logged.
    pub(crate) async fn plan(&self, goal: GcGoal) -> Result<GcReport, GcError> {
        let request = GcRequest { policy: self.images.settings().collection.policy, goal, dry_run: true };
        self.gc.run(&request, SystemTime::now()).with_subscriber(NoSubscriber::new()).await
    }

    /// Runs a collection that `by` requested. In shadow mode, the collection only plans and records the removals.
    pub(crate) async fn collect(&self, request: &GcRequest, by: &str) -> Result<GcReport, Failure> {
        let shadow = self.is_shadow() && !request.dry_run;
        self.run(&GcRequest { dry_run: request.dry_run || shadow, ..*request }, by, shadow).await
    }

    async fn run(&self, request: &GcRequest, by: &str, shadow: bool) -> Result<GcReport, Failure> {
        let (began, clock) = (SystemTime::now(), tokio::time::Instant::now());
        // The kubelet has a span around its periodic collection, and none around the removal of all unused images.
        let span = if request.goal == GcGoal::Threshold { info_span!("Images/GarbageCollect") } else { Span::none() };
        let run = self.gc.run_by(by, request, began).instrument(span).await;
        // A dry run changes nothing and may be frequent, so it is not recorded.
        if !request.dry_run || shadow {
            self.record(run.as_ref(), by, shadow, began, clock.elapsed());
        }
        let report = run.map_err(|error| {
            self.record_events(error.event());
            Failure::of(&error)
        })?;
        for removal in report.removed() {
            self.metrics.increment(&COLLECTED, &[removal.phase.map_or("space", GcPhase::name)]);
        }
        // In shadow mode, `record` records the events, with a prefix that names the mode.
        if !shadow {
            self.record_events(report.events.iter().cloned());
            // The kubelet records no event for a successful collection. The rule `own_texts` permits this event.
            if let Some(message) = of_removals(&report).filter(|_| request.policy.rules.own_texts) {
                self.images.record_event(EventKind::Normal, "ImagesCollected", message);
            }
        }
        if !request.dry_run
            && let Some(store) = self.images.local()
        {
            let is_short = report.failures.iter().any(GcError::is_shortfall);
            let remains = match request.goal {
                GcGoal::AllUnused => PullRemains::Remove,
                _ if is_short => PullRemains::KeepYoung,
                _ => PullRemains::Keep,
            };
            store.sweep(remains).await?;
        }
        Ok(report)
    }

    pub(crate) fn record_events(&self, events: impl IntoIterator<Item = GcEvent>) {
        for GcEvent { reason, message } in events {
            self.images.record_event(EventKind::Warning, reason, message);
        }
    }

    /// Plans before it removes, so that no image is removed for a pull that cannot fit or does not need the space yet.
    async fn free(&self, wanted: RoomWanted) -> Result<RoomMade, Failure> {
        self.gc.wait_for_running().await;
        let policy = self.images.settings().collection.policy;
        let ask = |bytes, dry_run| GcRequest { policy, goal: GcGoal::Free(bytes), dry_run };
        let could_free = self.collect(&ask(wanted.whole, true), "pull").await?.sizes.could_free;
        if wanted.now == ByteSize::ZERO || could_free < wanted.whole {
            return Ok(RoomMade { could_free, ..RoomMade::default() });
        }
        let report = self.collect(&ask(wanted.now, false), "pull").await?;
        let freed = report.sizes.freed.bytes;
        tracing::info!(whole = wanted.whole.0, now = wanted.now.0, freed = freed.0, "made room for a pull");
        let removed = report.removed().map(|it| {
            let (image, names) = (&it.entry.image, it.entry.image.names());
            let names = if names.is_empty() { vec![image.id.to_string()] } else { names.to_vec() };
            RemovedImage { names, bytes: it.frees }
        });
        Ok(RoomMade { freed, could_free: could_free.saturating_sub(freed), removed: removed.collect() })
    }
}

/// Frees space for pulls. The reference is weak, because the collection owns the store that owns this value.
#[derive(Debug)]
pub(crate) struct SpaceByCollection(pub Weak<Collection>);

#[async_trait]
impl MakeRoom for SpaceByCollection {
    async fn make_room(&self, wanted: RoomWanted) -> Option<RoomMade> {
        let collection = self.0.upgrade()?;
        let images = &collection.images;
        // In shadow mode no image is removed, so the pull gets no promise of free space.
        if !images.settings().collection.for_pulls || !images.place.uses_known || collection.is_shadow() {
            return None;
        }
        let made = collection.free(wanted).await;
        made.inspect_err(|failure| tracing::warn!(error = failure.to_string(), "could not make room for a pull")).ok()
    }
}

fn of_removals(report: &GcReport) -> Option<String> {
    let named = report.removed().take(NAMED_MAX).map(|removal| {
        let image = &removal.entry.image;
        let name = image.names().first().map_or(image.id.short().into(), |tag| shown_name(tag));
        format!("{name} ({})", removal.phase.map_or("space", GcPhase::name))
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let count = report.removed().count();
    let more = count.saturating_sub(NAMED_MAX);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (count > 0)
        .then(|| format!("Removed {} ({} as listed): {named}{more}", counted(count, "image"), report.sizes.claimed))
}

fn gc_request(asked: &CollectRequest, settings: &Settings) -> Result<GcRequest, Failure> {
    let configured = &settings.collection.policy;
    let high = asked.high.unwrap_or(configured.high().get());
    // Without a requested low threshold, the configured one is reduced to at most the high threshold.
    let low = asked.low.unwrap_or_else(|| configured.low().get().min(high));
    if low > high {
        let mark = match asked.high {
            Some(high) => format!("`--high {high}`"),
            None => format!("the configured `imageGCHighThresholdPercent`, {high}"),
        };
        return Err(Failure::invalid(format!("`--low {low}` must not be above {mark}"))
            .or_hint("`--high` sets where this collection begins"));
    }
    let goal = match (asked.free, asked.all_unused) {
        (Some(bytes), _) => GcGoal::Free(ByteSize(bytes)),
        (None, true) => GcGoal::AllUnused,
        (None, false) => GcGoal::Threshold,
    };
    if asked.now && goal != GcGoal::AllUnused {
        return Err(Failure::invalid("`now` goes with `allUnused` alone"));
    }
    // `now` also removes young images. Images that are in use, pinned or leased stay protected.
    let age_min = if asked.now { Duration::ZERO } else { configured.age_min };
    let marks = GcPolicy::new(i64::from(high), i64::from(low), age_min, configured.age_max);
    let bytes = marks.map_err(Failure::invalid)?.bytes;
    Ok(GcRequest { policy: GcPolicy { bytes, age_min, ..*configured }, goal, dry_run: asked.dry_run })
}

fn collected(report: &GcReport, request: &GcRequest) -> Collected {
    let dry_run = request.dry_run;
    // Removed images come first, in the order of removal. Kept images follow, sorted by reason.
    let mut decisions: Vec<&GcDecision> = report.decisions.iter().collect();
    let stays = |it: &GcDecision| it.outcome == GcOutcome::Kept;
    decisions.sort_by_cached_key(|it| (stays(it), stays(it).then(|| (it.reason.code(), &it.entry.image.tags))));
    let images = decisions.into_iter().map(|decision| {
        let (verdict, frees) = match decision.outcome {
            GcOutcome::Kept => ("keep", None),
            GcOutcome::Chosen => ("remove", Some(decision.frees.0)),
            GcOutcome::Removed => ("removed", Some(decision.frees.0)),
            GcOutcome::Failed(_) => ("failed", None),
        };
        let (code, reason) = match &decision.outcome {
            GcOutcome::Failed(error) => ("failed", error.clone()),
            _ => (decision.reason.code(), decision.reason.to_string()),
        };
        let image = &decision.entry.image;
        CollectedRow {
            id: image.id.to_string(),
            names: image.tags.clone(),
            digests: image.digests.clone(),
            artifact: image.artifact.as_deref().map(ArtifactRow::from),
            size: image.size.0,
            frees,
            verdict: verdict.into(),
            code: code.into(),
            inputs: decision.reason.inputs(),
            reason,
        }
    });
    let failures = report.failures.iter().filter(|error| !error.is_shortfall());
    let unmet = report.failures.iter().find(|error| is_unmet(error, request));
    let unmet_failure = |error: &GcError| {
        let reason = error.event().map_or("Failed", |event| event.reason);
        Failure::new(reason, error.to_string())
    };
    Collected {
        dry_run,
        used_percent_before: report.disk_before.used_percent(),
        used_percent_after: report.disk_after.as_ref().map(imagelet_core::disks::DiskUse::used_percent),
        high_percent: request.policy.high().get(),
        low_percent: request.policy.low().get(),
        wanted: report.sizes.goal.map(|bytes| bytes.0),
        claimed: report.sizes.claimed.0,
        frees: report.sizes.freed.bytes.0,
        certainty: report.sizes.certainty.name().into(),
        could_free: Some(report.sizes.could_free.0),
        measured: report.sizes.measured.map(|bytes| bytes.0),
        images: images.collect(),
        shortfall: report.failures.iter().find(|error| error.is_shortfall()).map(ToString::to_string),
        out_of_reach: unmet.is_some(),
        failure: unmet.filter(|_| !dry_run).map(unmet_failure),
        failures: failures.map(|error| Failure::of(error)).collect(),
    }
}

/// Whether the collection missed its goal. A low threshold of 0 % is no goal: the collection frees as much as it can.
fn is_unmet(error: &GcError, request: &GcRequest) -> bool {
    match error {
        GcError::OutOfReach { shortfall, .. } => !shortfall.missing.is_none(),
        // In kubelet mode, the low threshold is the only goal of a collection.
        GcError::NotEnough { freed, .. } => *freed == 0 && request.policy.low().get() > 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use imagelet_core::{
        gc::{GcOrder, Shortfall},
        ports::Freed,
    };

    use crate::config::{Environment, Sources};

    use super::*;

    fn configured(compatibility: &str) -> Settings {
        let mut sources = Sources::new(Environment { root: true, ..Environment::default() });
        sources.add_flag("--test", "compatibility", compatibility);
        sources.settings().expect("the defaults hold")
    }

    #[test]
    fn a_command_goes_by_the_configuration_unless_it_says_otherwise() {
        let plain = gc_request(&CollectRequest::default(), &configured("imagelet")).expect("a request");
        assert_eq!((plain.policy.high().get(), plain.policy.low().get(), plain.goal), (85, 80, GcGoal::Threshold));
        let high = CollectRequest { high: Some(10), ..CollectRequest::default() };
        let high = gc_request(&high, &configured("imagelet")).expect("a request");
        assert_eq!((high.policy.high().get(), high.policy.low().get()), (10, 10));
        let crossed = CollectRequest { high: Some(10), low: Some(20), ..CollectRequest::default() };
        for (crossed, mark) in [
            (crossed, "`--low 20` must not be above `--high 10`"),
            (
                CollectRequest { low: Some(90), ..CollectRequest::default() },
                "`--low 90` must not be above the configured `imageGCHighThresholdPercent`, 85",
            ),
        ] {
            let refused = gc_request(&crossed, &configured("imagelet")).expect_err(mark);
            assert_eq!((refused.message.as_str(), refused.reason.as_str()), (mark, "InvalidArgument"));
        }
    }

    #[test]
    fn young_images_go_only_where_all_unused_ones_are_to_go_now() {
        let all = CollectRequest { all_unused: true, ..CollectRequest::default() };
        let now = CollectRequest { now: true, ..all.clone() };
        let some = CollectRequest { free: Some(1), ..CollectRequest::default() };
        for compatibility in ["imagelet", "kubelet"] {
            let ask = |asked: &CollectRequest| {
                let request = gc_request(asked, &configured(compatibility)).expect("a request");
                (request.goal, request.policy.age_min)
            };
            assert_eq!(ask(&all), (GcGoal::AllUnused, Duration::from_mins(2)), "{compatibility}");
            assert_eq!(ask(&now), (GcGoal::AllUnused, Duration::ZERO), "{compatibility}");
            assert_eq!(ask(&some), (GcGoal::Free(ByteSize(1)), Duration::from_mins(2)), "{compatibility}");
        }
        for without in [CollectRequest { now: true, ..some }, CollectRequest { now: true, ..CollectRequest::default() }]
        {
            let refused = gc_request(&without, &configured("imagelet")).expect_err("it is not all");
            assert!(refused.to_string().contains("`allUnused` alone"), "{refused}");
        }
    }

    #[test]
    fn the_configuration_says_whose_way_of_collecting_is_gone() {
        let kubelet = configured("kubelet").collection.policy;
        assert_eq!((kubelet.order, kubelet.pressure_relief), (GcOrder::ListedSizes, None));
        let own = configured("imagelet").collection.policy;
        let relief = own.pressure_relief.map(|it| (it.idle_min, it.critical.get()));
        assert_eq!((own.order, relief), (GcOrder::Cost, Some((Duration::from_hours(1), 95))));
    }

    #[test]
    fn what_keeps_a_collection_from_its_goal_is_a_failure_for_programs() {
        let request = gc_request(&CollectRequest::default(), &configured("imagelet")).expect("a request");
        let missing = Freed { bytes: ByteSize(1), inodes: 0 };
        let short =
            GcError::OutOfReach { shortfall: Shortfall { missing, ..Shortfall::default() }, text: "97%".into() };
        let failures = vec![GcError::Removals("no answer".into()), short];
        let report = GcReport { failures, ..GcReport::default() };
        let done = collected(&report, &request);
        assert_eq!(done.failures, [Failure::new("Failed", "no answer")]);
        assert_eq!(done.failure, Some(Failure::new("FreeDiskSpaceFailed", "97%")));
        let planned = collected(&report, &GcRequest { dry_run: true, ..request });
        assert_eq!((planned.out_of_reach, planned.failure), (true, None));
    }

    #[test]
    fn a_goal_is_out_of_reach_where_its_least_is_not_met() {
        let request = |low: u8| {
            let asked = CollectRequest { low: Some(low), ..CollectRequest::default() };
            gc_request(&asked, &configured("imagelet")).expect("a request")
        };
        let short = |missing| {
            let shortfall = Shortfall { missing, ..Shortfall::default() };
            GcError::OutOfReach { shortfall, text: "97% used".to_owned() }
        };
        let freed = |freed| GcError::NotEnough { used_percent: 97, capacity: ByteSize(1000), freed };
        for (error, low, is_out) in [
            (short(Freed { bytes: ByteSize(1), inodes: 0 }), 80, true),
            (short(Freed { bytes: ByteSize::ZERO, inodes: 1 }), 80, true),
            (short(Freed::default()), 80, false),
            (freed(0), 80, true),
            (freed(1), 80, false),
            (freed(0), 0, false),
            (GcError::NoCapacity, 80, false),
        ] {
            assert_eq!(is_unmet(&error, &request(low)), is_out, "{error}");
        }
    }
}
