//! The rows of pulls in `status` and `why`: running and waiting pulls, and the route of pulls into a runtime.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    image::Reference,
    manager::{HeldBack, ManagerStatus, OpenCircuit, PullStatus},
};
use imagelet_runtime::cri::RegistrySettings;
use imagelet_runtime::{ImportHealth, ImportMode, ImportingImages, RouteTaken};
use tokio::time::Instant;

use super::Pulls;
use crate::{
    api::{
        HeldBackRow, ImportStatus, OpenCircuitRow, PullRouteRow, PullRow, PullsRequest, Queue, QueueRequest,
        RunningPulls, Steps, milliseconds_of, moment,
    },
    failure::Failure,
    node::Command,
};

#[async_trait]
impl Command for PullsRequest {
    const NAME: &'static str = "pulls";
    type Service = Pulls;
    type Answer = RunningPulls;

    async fn run(self, pulls: &Pulls, _steps: Steps) -> Result<RunningPulls, Failure> {
        Ok(RunningPulls { pulls: pulls.since(0).1 })
    }
}

#[async_trait]
impl Command for QueueRequest {
    const NAME: &'static str = "queue";
    type Service = Pulls;
    type Answer = Queue;

    async fn run(self, pulls: &Pulls, _steps: Steps) -> Result<Queue, Failure> {
        Ok(queue(pulls.manager.status()))
    }
}

pub(crate) fn queue(status: ManagerStatus) -> Queue {
    let now = Instant::now();
    Queue {
        pulls: status.pulls.into_iter().map(|pull| pull_row(pull, now)).collect(),
        held_back: held_back_rows(&status.held_back),
        registries: status.open_circuits.into_iter().map(open_circuit_row).collect(),
    }
}

pub(crate) fn held_back(status: &ManagerStatus, names: &[String]) -> Vec<HeldBackRow> {
    held_back_rows(status.held_back.iter().filter(|held| is_named(&held.image, names)))
}

pub(crate) fn pulls_of(pulls: &[PullRow], names: &[String]) -> Vec<PullRow> {
    pulls.iter().filter(|pull| is_named(&pull.image, names)).cloned().collect()
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
fn held_back_rows<'a>(all: impl IntoIterator<Item = &'a HeldBack>) -> Vec<HeldBackRow> {
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

#[cfg(test)]
mod tests {
    use imagelet_runtime::cri::{RuntimeConfiguration, RuntimeInfo, SnapshotterPlace};

    use imagelet_core::ports::ForwardReason;

    use super::*;

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
