//! The pulls of a manager as `status` shows them: running ones, and the reasons why others wait.

use std::time::{Duration, SystemTime};

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
            held_back: status.held_back.into_iter().map(held_back_row).collect(),
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
        status.held_back.iter().filter(is_named).cloned().map(held_back_row).collect()
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

fn held_back_row(held: HeldBack) -> HeldBackRow {
    HeldBackRow { image: held.image, remaining_ms: milliseconds(held.remaining), failure: held.failure }
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
