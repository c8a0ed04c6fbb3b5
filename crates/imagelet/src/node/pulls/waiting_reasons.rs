//! The pulls of a manager as `status` shows them: running ones, and the reasons why others wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use imagelet_core::{
    image::Reference,
    manager::{HeldBack, ManagerStatus, OpenCircuit, PullStatus},
};
use tokio::time::Instant;

use crate::api::{HeldBackRow, OpenCircuitRow, PullRow, moment};

pub(crate) struct WaitingRows {
    pub(crate) pulls: Vec<PullRow>,
    pub(crate) held_back: Vec<HeldBackRow>,
    pub(crate) registries: Vec<OpenCircuitRow>,
}

impl WaitingRows {
    pub(crate) fn from_status(status: ManagerStatus) -> Self {
        let now = Instant::now();
        Self {
            pulls: status.pulls.into_iter().map(|pull| pull_row(pull, now)).collect(),
            held_back: held_back_rows(&status.held_back),
            registries: status.open_circuits.into_iter().map(open_circuit_row).collect(),
        }
    }
}

impl WaitingRows {
    pub(crate) fn held_back(status: &ManagerStatus, names: &[String]) -> Vec<HeldBackRow> {
        let is_named = |held: &&HeldBack| {
            let name = held.image.parse::<Reference>().map(|name| name.canonical().to_string());
            names.contains(&held.image) || name.is_ok_and(|name| names.contains(&name))
        };
        held_back_rows(status.held_back.iter().filter(is_named))
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn pull_row(pull: PullStatus, now: Instant) -> PullRow {
    PullRow {
        image: pull.image,
        state: pull.state.name().into(),
        position: pull.position,
        priority: pull.priority,
        for_ms: milliseconds(now.saturating_duration_since(pull.since)),
        askers: pull.clients,
    }
}

/// One row per image and failure, the next attempt first.
fn held_back_rows<'a>(all: impl IntoIterator<Item = &'a HeldBack>) -> Vec<HeldBackRow> {
    let mut groups: BTreeMap<(&str, &str), (Duration, BTreeSet<&str>)> = BTreeMap::new();
    for held in all {
        let group = groups.entry((&held.image, &held.failure)).or_insert((held.remaining, BTreeSet::new()));
        group.0 = group.0.min(held.remaining);
        group.1.insert(&held.pod_uid);
    }
    let row = |((image, failure), (remaining, pods)): ((&str, &str), (Duration, BTreeSet<&str>))| HeldBackRow {
        image: image.to_owned(),
        remaining_ms: milliseconds(remaining),
        failure: failure.to_owned(),
        pods: pods.len(),
    };
    let mut rows: Vec<_> = groups.into_iter().map(row).collect();
    // Stable: by name within one moment.
    rows.sort_by_key(|row| row.remaining_ms);
    rows
}

fn open_circuit_row(open: OpenCircuit) -> OpenCircuitRow {
    OpenCircuitRow {
        registry: open.registry,
        pulls: open.scope.name().into(),
        class: open.class.word().into(),
        failures: open.failures,
        next_attempt_at: moment(SystemTime::now() + open.remaining),
        remaining_seconds: open.remaining.as_secs(),
    }
}

#[cfg(test)]
mod tests {
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
}
