//! The status of a manager: its pulls, back-offs and open circuits.

use std::time::Duration;

use tokio::time::Instant;

use super::puller::circuit_breaker::OpenCircuit;
use crate::{events::PodIdentity, ports::PullProgress};

#[derive(Clone, Debug, Default)]
pub struct ManagerStatus {
    /// Running and waiting pulls, oldest first.
    pub pulls: Vec<PullStatus>,
    /// Images in back-off. The image with the earliest next attempt is first.
    pub held_back: Vec<HeldBack>,
    pub open_circuits: Vec<OpenCircuit>,
}

#[derive(Clone, Debug)]
pub struct PullStatus {
    /// Unique in this process; numbers start at 1.
    pub number: u64,
    pub image: String,
    /// The pod of its first client.
    pub pod: PodIdentity,
    pub state: PullState,
    pub since: Instant,
    /// The number of requests that share the pull; zero during the grace.
    pub clients: usize,
    /// The position in the queue, from 1; `None`: the pull runs.
    pub position: Option<usize>,
    pub priority: i32,
    pub progress: PullProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullState {
    WaitingForSlot,
    WaitingForRate,
    Running,
}

impl PullState {
    pub fn name(self) -> &'static str {
        match self {
            Self::WaitingForSlot => "waiting-for-slot",
            Self::WaitingForRate => "waiting-for-rate",
            Self::Running => "running",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// The image as the pod spelled it.
    pub image: String,
    pub pod_uid: String,
    pub remaining: Duration,
    pub failure: String,
}
