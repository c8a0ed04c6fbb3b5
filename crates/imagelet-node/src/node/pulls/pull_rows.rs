//! The rows of pulls in `events`, `status`, `why`, the dashboard and the API, and the route of pulls into a runtime.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use imagelet_core::{
    image::{Reference, shown_name},
    manager::{HeldBack, OpenCircuit, PullState, PullStatus},
    ports::{LayerState, PullEnd, PullProgress, PullRoute},
};
use imagelet_runtime::{ImportHealth, ImportMode, ImportingImages, RouteTaken, cri::RegistrySettings};
use tokio::time::Instant;

use super::Pulls;
use crate::api::{
    HeldBackRow, ImportStatus, LayerProgress, OpenCircuitRow, PullProgressRow, PullRetry, PullRouteRow, PullRow, Queue,
    milliseconds_of, moment,
};

const LAYERS_MAX: usize = 256;

impl Pulls {
    pub(crate) fn queue(&self) -> Queue {
        let (status, now) = (self.manager.status(), Instant::now());
        Queue {
            pulls: status.pulls.into_iter().map(|pull| pull_row(pull, now)).collect(),
            held_back: held_back_rows(&status.held_back),
            registries: status.open_circuits.into_iter().map(open_circuit_row).collect(),
        }
    }
}

pub(crate) fn held_back_of(queue: &Queue, names: &[String]) -> Vec<HeldBackRow> {
    queue.held_back.iter().filter(|held| is_named(&held.image, names)).cloned().collect()
}

pub(crate) fn pulls_of(queue: &Queue, names: &[String]) -> Vec<PullRow> {
    queue.pulls.iter().filter(|pull| is_named(&pull.image, names)).cloned().collect()
}

fn is_named(image: &str, names: &[String]) -> bool {
    let name = image.parse::<Reference>().map(|name| name.canonical().to_string());
    names.iter().any(|known| known == image || name.as_ref().is_ok_and(|name| name == known))
}

fn pull_row(pull: PullStatus, now: Instant) -> PullRow {
    PullRow {
        progress: pull.line(true, now),
        image: pull.image,
        state: pull.turn.state.name().into(),
        position: pull.turn.place.map(|place| place.position),
        priority: pull.priority,
        for_ms: milliseconds_of(now.saturating_duration_since(pull.turn.since)),
        askers: pull.clients.len(),
        waits: pull.progress.awaited(true).unwrap_or_default(),
    }
}

/// One row for each image and failure. The row with the earliest next attempt comes first.
fn held_back_rows(all: &[HeldBack]) -> Vec<HeldBackRow> {
    let mut groups: BTreeMap<(&str, &str), (Duration, BTreeSet<&str>)> = BTreeMap::new();
    for held in all {
        let group = groups.entry((&held.image, &held.failure)).or_insert((held.remaining, BTreeSet::new()));
        group.0 = group.0.min(held.remaining);
        group.1.insert(&held.pod_uid);
    }
    let row = |((image, failure), (remaining, pods)): ((&str, &str), (Duration, BTreeSet<&str>))| HeldBackRow {
        image: image.to_owned(),
        remaining_ms: milliseconds_of(remaining),
        failure: failure.to_owned(),
        pods: pods.len(),
    };
    let mut rows: Vec<_> = groups.into_iter().map(row).collect();
    // The sort is stable, so rows with the same time stay sorted by name.
    rows.sort_by_key(|row| row.remaining_ms);
    rows
}

fn open_circuit_row(open: OpenCircuit) -> OpenCircuitRow {
    OpenCircuitRow {
        registry: open.registry,
        pulls: open.scope.name().into(),
        class: open.class.name().into(),
        failures: open.failures,
        next_attempt_at: moment(SystemTime::now() + open.remaining),
        remaining_seconds: open.remaining.as_secs(),
    }
}

impl ImportStatus {
    pub async fn of(images: &ImportingImages) -> Self {
        Self {
            recent: images.recent_routes().iter().map(PullRouteRow::of).collect(),
            ..Self::standing(&images.standing().await)
        }
    }

    fn standing(standing: &ImportHealth) -> Self {
        let decision = match (&standing.obstacle, standing.mode) {
            (None, _) => "import",
            (Some(_), ImportMode::Require) => "refuse",
            (Some(_), _) => "forward",
        };
        let mut status = Self {
            mode: standing.mode.name().into(),
            decision: decision.into(),
            code: standing.obstacle.as_ref().map(|reason| reason.code().into()),
            reason: standing.obstacle.as_ref().map(ToString::to_string),
            ..Self::default()
        };
        if let Ok(runtime) = &standing.runtime {
            status.runtime = Some(format!("{} {}", runtime.name, runtime.version));
            status.snapshotter = runtime.snapshotter().map(str::to_owned);
            if let Some(place) = runtime.place() {
                status.root = Some(place.root.display().to_string());
                status.staging = Some(place.staging().display().to_string());
            }
            if let RegistrySettings::Reported { folders, .. } = &runtime.configuration.registries {
                status.registry_folders = Some(folders.iter().map(|folder| folder.display().to_string()).collect());
            }
        }
        status
    }
}

impl PullRouteRow {
    fn of(taken: &RouteTaken) -> Self {
        Self {
            at: moment(taken.at),
            image: taken.image.clone(),
            way: taken.route.code().into(),
            code: taken.route.reason_code().map(str::to_owned),
            reason: if taken.failure.is_some() { taken.route.of_failed() } else { taken.route.to_string() },
            took_ms: milliseconds_of(taken.took),
            failure: taken.failure.clone(),
        }
    }
}

/// The phase of a pull, as in `docs/events.md`. `is_silent`: the pull runs in a runtime, which reports no progress.
fn phase(progress: &PullProgress, is_silent: bool) -> &'static str {
    match (&progress.times.end, &progress.route) {
        (Some((_, PullEnd::Pulled)), _) => "done",
        (Some((_, PullEnd::Failed(_))), _) => "failed",
        (Some((_, PullEnd::Cancelled)), _) => "given-up",
        _ if progress.times.committing.is_some() => "committing",
        _ if progress.times.resolved.is_some() => "fetching",
        (None, Some(PullRoute::Imported)) => "asking",
        (None, Some(PullRoute::Forwarded(_) | PullRoute::ForwardedArtifact(_))) => "pulling",
        (None, None) if is_silent => "pulling",
        (None, None) => "asking",
    }
}

pub(crate) fn progress_row(pull: PullStatus, is_silent: bool, now: Instant) -> PullProgressRow {
    let image = shown_name(&pull.image).into_owned();
    let progress = pull.progress;
    let Some(began) = progress.times.began.filter(|_| pull.turn.state == PullState::Running) else {
        let elapsed_ms = milliseconds_of(now.saturating_duration_since(pull.turn.since));
        let (phase, position) = ("waiting".into(), pull.turn.place.map(|place| place.position));
        return PullProgressRow { image, phase, elapsed_ms, position, ..PullProgressRow::default() };
    };
    let ((received, total), speed) = (progress.bytes(), progress.speed(now));
    let ended = progress.times.end.as_ref().map_or(now, |(at, _)| *at);
    let layers = progress.layers.iter().take(LAYERS_MAX).map(|layer| LayerProgress {
        digest: layer.digest.to_string(),
        state: match layer.state {
            None => "waiting",
            Some(LayerState::Present) => "present",
            Some(LayerState::Fetching { .. }) => "fetching",
            Some(LayerState::Done) => "done",
        }
        .into(),
        size: layer.size.0,
        received: layer.received(),
    });
    PullProgressRow {
        pull: pull.number,
        image,
        namespace: pull.pod.namespace.to_string(),
        pod: pull.pod.name.to_string(),
        phase: phase(&progress, is_silent).into(),
        manifest: progress.times.resolved.as_ref().map(|(_, manifest)| manifest.to_string()).unwrap_or_default(),
        bytes_total: (!progress.layers.is_empty()).then_some(total),
        bytes_received: received,
        bytes_per_second: speed,
        remaining_ms: speed.filter(|speed| *speed > 0).map(|speed| (total - received).saturating_mul(1000) / speed),
        elapsed_ms: milliseconds_of(ended.saturating_duration_since(began)),
        bytes_estimated: None,
        position: None,
        retry: progress.waits.retry.as_ref().and_then(PullRetry::of),
        waits: progress.awaited(true).unwrap_or_default(),
        failure: match &progress.times.end {
            Some((_, PullEnd::Failed(error))) => error.chain(),
            _ => String::new(),
        },
        removed: progress.removed.iter().cloned().map(Into::into).collect(),
        layers: layers.collect(),
        layers_hidden: progress.layers.len().saturating_sub(LAYERS_MAX) as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use imagelet_core::{
        error::RuntimeError,
        events::PodIdentity,
        image::{ByteSize, Digest},
        manager::{PullTurn, QueuePlace},
        ports::{ForwardReason, PullEvent, RemovedImage},
    };

    use imagelet_runtime::cri::{RuntimeConfiguration, RuntimeInfo, SnapshotterPlace};

    use super::*;

    const MEGABYTE: u64 = 1_000_000;

    fn running(image: &str, mut progress: PullProgress) -> PullStatus {
        progress.times.began = Some(Instant::now());
        PullStatus {
            number: 1,
            image: image.into(),
            pod: PodIdentity::default(),
            turn: PullTurn { state: PullState::Running, since: Instant::now(), place: None },
            clients: Vec::new(),
            priority: 0,
            progress,
        }
    }

    fn row(progress: &PullProgress, is_silent: bool) -> PullProgressRow {
        progress_row(running("app:v1", progress.clone()), is_silent, Instant::now())
    }

    fn resolved(layers: usize) -> PullEvent {
        let layers = (0..layers).map(|number| (Digest::of(number.to_string().as_bytes()), ByteSize(MEGABYTE)));
        PullEvent::Resolved { manifest: Digest::of(b"m"), layers: layers.collect() }
    }

    #[test]
    fn a_pull_has_the_phase_of_its_last_event() {
        let mut progress = PullProgress::default();
        assert_eq!(["asking", "pulling"], [false, true].map(|is_silent| row(&progress, is_silent).phase));
        let forwarded = PullRoute::Forwarded(ForwardReason::SwitchedOff);
        for (event, phase, total) in [
            (PullEvent::Route(PullRoute::Imported), "asking", None),
            (resolved(2), "fetching", Some(2 * MEGABYTE)),
            (PullEvent::Committing, "committing", Some(2 * MEGABYTE)),
            (PullEvent::Route(forwarded), "pulling", None),
        ] {
            progress.apply(event, Instant::now());
            let row = row(&progress, true);
            assert_eq!((row.phase.as_str(), row.bytes_total), (phase, total));
        }
        for (end, phase, failure) in [
            (PullEnd::Pulled, "done", ""),
            (PullEnd::Failed(Arc::new(RuntimeError::other("no"))), "failed", "no"),
            (PullEnd::Cancelled, "given-up", ""),
        ] {
            progress.finish(end, Instant::now());
            let row = row(&progress, true);
            assert_eq!((row.phase.as_str(), row.failure.as_str()), (phase, failure));
        }
    }

    #[test]
    fn a_waiting_pull_has_its_place_and_no_number() {
        let place = Some(QueuePlace { position: 3, behind: 4 });
        let turn = PullTurn { state: PullState::WaitingForSlot, since: Instant::now(), place };
        let waiting = PullStatus { turn, ..running("a", PullProgress::default()) };
        let row = progress_row(waiting, false, Instant::now());
        assert_eq!((row.phase.as_str(), row.position, row.pull), ("waiting", Some(3), 0));
    }

    #[test]
    fn a_password_in_a_name_is_not_shown() {
        let pull = running("https://user:hunter2@reg.test/app", PullProgress::default());
        assert_eq!(progress_row(pull, false, Instant::now()).image, "https://[redacted]@reg.test/app");
    }

    #[test]
    fn a_pull_names_what_was_removed_for_it_and_hides_layers_beyond_a_bound() {
        let mut progress = PullProgress::default();
        let removed = RemovedImage { names: vec!["old:v1".into()], bytes: ByteSize(20 * MEGABYTE) };
        progress.apply(PullEvent::Removed(removed), Instant::now());
        progress.apply(resolved(LAYERS_MAX + 7), Instant::now());
        let row = row(&progress, false);
        assert_eq!((row.layers.len(), row.layers_hidden), (LAYERS_MAX, 7));
        let shown = serde_json::to_value(&row).expect("JSON");
        assert_eq!(shown["removed"], serde_json::json!([{ "names": ["old:v1"], "bytes": 20 * MEGABYTE }]), "{shown}");
    }

    #[test]
    fn pods_that_wait_for_one_image_after_one_failure_are_one_row() {
        let held = |image: &str, pod: &str, seconds, failure: &str| HeldBack {
            image: image.into(),
            pod_uid: pod.into(),
            remaining: Duration::from_secs(seconds),
            failure: failure.into(),
        };
        let (away, denied) = ("no such host", "access denied");
        let rows = held_back_rows(&[
            held("b:v1", "uid-1", 20, away),
            held("a:v1", "uid-1", 9, away),
            held("b:v1", "uid-2", 5, away),
            // The same pod with another secret.
            held("b:v1", "uid-2", 30, away),
            held("b:v1", "uid-3", 40, denied),
        ]);
        let shown: Vec<_> =
            rows.iter().map(|row| (row.image.as_str(), row.remaining_ms, row.failure.as_str(), row.pods)).collect();
        assert_eq!(shown, [("b:v1", 5_000, away, 2), ("a:v1", 9_000, away, 1), ("b:v1", 40_000, denied, 1)]);
    }

    #[test]
    fn a_runtime_is_shown_with_what_speaks_against_imports() {
        let place = SnapshotterPlace { root: "/var/lib/containerd".into(), snapshotter: "overlayfs".into() };
        let runtime = RuntimeInfo {
            name: "containerd".into(),
            version: "1.6.20".into(),
            places: vec![place],
            configuration: RuntimeConfiguration::default(),
        };
        let obstacle = Some(ForwardReason::Staging("it is on another mount".into()));
        let standing = ImportHealth { mode: ImportMode::Auto, runtime: Ok(runtime), obstacle };
        let status = ImportStatus::standing(&standing);
        assert_eq!((status.decision.as_str(), status.code.as_deref()), ("forward", Some("staging")));
        assert_eq!(status.runtime.as_deref(), Some("containerd 1.6.20"));
        assert_eq!(status.staging.as_deref(), Some("/var/lib/containerd/imagelet-staging"));
        assert_eq!(status.registry_folders, None, "a runtime that reports none");
        let required = ImportStatus::standing(&ImportHealth { mode: ImportMode::Require, ..standing.clone() });
        assert_eq!(required.decision, "refuse");
        let free = ImportStatus::standing(&ImportHealth { obstacle: None, ..standing });
        assert_eq!((free.decision.as_str(), free.code), ("import", None));
    }
}
