//! The words of a story: what can happen, what has happened before it, and how large it may become.

use std::fmt;

use super::world::{Mutation, Use};

/// A possible act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    /// A pod takes its next step: request, answer, container start, exit, deletion.
    Pod(usize),
    /// A collection of everything unused starts or continues.
    Collect,
    /// A pass of the inventory starts or continues.
    Observe,
    /// A requested removal starts or continues.
    Remove,
    /// imagelet crashes and restarts.
    Crash,
    /// The runtime restarts and lists no earlier container for now.
    Restart,
    /// The same, omitting one container.
    RestartHalf,
    /// The runtime lists all containers again.
    Recover,
    /// A container or sandbox of the first name starts or ends without imagelet.
    Beside,
    /// The first name is pinned.
    Pin,
    /// The first name is unpinned.
    Unpin,
    /// The next call of the runtime is refused.
    Refuse,
    /// The next call of the runtime is done, and its answer is lost.
    Lose,
    /// The first name moves to another image, which a client other than imagelet pulls.
    Move,
    Tick,
}

/// An act before the start of a story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// A pod requested its image and got it.
    Leased(usize),
    /// A pod requested its image and has its container.
    Runs(usize),
    /// A whole pass of the inventory.
    Passed,
    Did(Act),
}

/// The bounds of a story.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a test")]
pub(super) struct Size {
    pub(super) pods: usize,
    pub(super) images: usize,
    pub(super) collections: usize,
    pub(super) passes: usize,
    pub(super) orders: usize,
    pub(super) crashes: usize,
    pub(super) restarts: usize,
    pub(super) pins: usize,
    pub(super) besides: usize,
    pub(super) failures: usize,
    pub(super) moves: usize,
    pub(super) ticks: usize,
    /// Pods repeat their request after the end.
    pub(super) is_endless: bool,
    pub(super) is_stocked: bool,
    /// Each answer of the runtime takes a separate step.
    pub(super) is_fine: bool,
    /// Processes exit before their containers are deleted.
    pub(super) exits: bool,
    /// How pods hold their images: in containers of them, or as volumes of others.
    pub(super) pods_hold: Use,
    /// What starts without imagelet.
    pub(super) besides_hold: Use,
    /// The acts before the start.
    pub(super) before: &'static [Before],
    pub(super) flaw: Option<Mutation>,
}

impl Size {
    /// Pods and images only.
    pub(super) fn of(pods: usize, images: usize) -> Self {
        Self {
            pods,
            images,
            collections: 0,
            passes: 0,
            orders: 0,
            crashes: 0,
            restarts: 0,
            pins: 0,
            besides: 0,
            failures: 0,
            moves: 0,
            ticks: 0,
            is_endless: false,
            is_stocked: false,
            is_fine: false,
            exits: false,
            pods_hold: Use::Container,
            besides_hold: Use::Container,
            before: &[],
            flaw: None,
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

pub(super) fn joined(story: &[Act]) -> String {
    story.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
