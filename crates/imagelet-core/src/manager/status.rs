//! What a manager is doing: its pulls, what is held back, and the registries it does not ask.

use std::time::Duration;

use tokio::time::Instant;

use super::puller::circuit_breaker::OpenCircuit;

/// What a manager is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerStatus {
    /// Pulls that run or wait for their turn, oldest first.
    pub pulls: Vec<PullStatus>,
    /// Images held back because they failed, the soonest next attempt first.
    pub held_back: Vec<HeldBack>,
    /// Registries that are not asked at present.
    pub open_circuits: Vec<OpenCircuit>,
}

impl ManagerStatus {
    /// How many pulls run.
    pub fn running(&self) -> usize {
        self.pulls.iter().filter(|pull| pull.state == PullState::Running).count()
    }

    /// How many wait for their turn.
    pub fn waiting(&self) -> usize {
        self.pulls.len() - self.running()
    }
}

/// A pull that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullStatus {
    /// The image with its default tag.
    pub image: String,
    /// Whether it has its turn.
    pub state: PullState,
    /// Since when it waits, or runs.
    pub since: Instant,
    /// How many requests wait for it; none in its grace.
    pub clients: usize,
    /// Its place in the queue, from one on; `None` once it runs.
    pub position: Option<usize>,
    /// The highest priority of those requests.
    pub priority: i32,
}

/// Whether a pull has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullState {
    /// No: the slots are taken.
    WaitingForSlot,
    /// No: as many as the rate allows have begun.
    WaitingForRate,
    /// Yes.
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

/// An image that is not attempted for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// The image as the pod spelled it.
    pub image: String,
    /// The pod's uid.
    pub pod_uid: String,
    /// Until it may be attempted again.
    pub remaining: Duration,
    /// Why it failed.
    pub failure: String,
}
