//! The status of a manager: its pulls, back-offs and open circuits.

use std::time::Duration;

use tokio::time::Instant;

use super::puller::circuit_breaker::OpenCircuit;

/// The status of a manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerStatus {
    /// Running and waiting pulls, oldest first.
    pub pulls: Vec<PullStatus>,
    /// Images in back-off, the soonest next attempt first.
    pub held_back: Vec<HeldBack>,
    /// Registries with an open circuit.
    pub open_circuits: Vec<OpenCircuit>,
}

impl ManagerStatus {
    /// The number of running pulls.
    pub fn running(&self) -> usize {
        self.pulls.iter().filter(|pull| pull.state == PullState::Running).count()
    }

    /// The number of waiting pulls.
    pub fn waiting(&self) -> usize {
        self.pulls.len() - self.running()
    }
}

/// A running or waiting pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullStatus {
    /// The image with its default tag.
    pub image: String,
    /// Waiting or running.
    pub state: PullState,
    /// The start of its waiting or running.
    pub since: Instant,
    /// The number of requests for it; zero in its grace.
    pub clients: usize,
    /// Its place in the queue, from one on; `None` once it runs.
    pub position: Option<usize>,
    /// The highest priority of its requests.
    pub priority: i32,
}

/// The state of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullState {
    /// Waits for a free slot.
    WaitingForSlot,
    /// Waits for the rate limit.
    WaitingForRate,
    /// Runs.
    Running,
}

impl PullState {
    /// The word for machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::WaitingForSlot => "waiting-for-slot",
            Self::WaitingForRate => "waiting-for-rate",
            Self::Running => "running",
        }
    }
}

/// An image in back-off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// The image as the pod spelled it.
    pub image: String,
    /// The pod's uid.
    pub pod_uid: String,
    /// The time until the next attempt.
    pub remaining: Duration,
    /// The last error.
    pub failure: String,
}
