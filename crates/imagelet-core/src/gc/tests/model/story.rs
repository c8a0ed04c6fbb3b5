//! The words of a story: what can happen, what has happened before it, and how large it may become.

use std::fmt;

use crate::inventory::Mutation;

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    /// A pod goes on: asks, hears the answer, starts its container, whose process exits, and which is deleted.
    Pod(usize),
    /// A collection of everything unused begins or goes on.
    Collect,
    /// A pass of the inventory begins or goes on.
    Observe,
    /// A person's removal begins or goes on.
    Remove,
    /// Somebody begins to read an image, goes on, or is done.
    Work,
    /// Imagelet ends the hard way, and starts again.
    Crash,
    /// The runtime restarts, and lists no container of before for now.
    Restart,
    /// The same, listing all but one.
    RestartHalf,
    /// It lists them all again.
    Recover,
    /// A pod starts a container from the first image past imagelet, or ends it.
    Beside,
    /// A person pins the first image.
    Pin,
    /// And takes that back.
    Unpin,
    /// Time passes.
    Tick,
}

/// What has happened before a story begins, as one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// A pod asked and was told.
    Told(usize),
    /// A pod asked, was told, and has its container.
    Runs(usize),
    /// A pass of the inventory, from its beginning to its end.
    Passed,
    /// One act.
    Did(Act),
}

/// How large a story may become.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a test")]
pub(super) struct Size {
    pub(super) pods: usize,
    pub(super) images: usize,
    pub(super) collections: usize,
    pub(super) passes: usize,
    pub(super) orders: usize,
    pub(super) works: usize,
    pub(super) crashes: usize,
    pub(super) restarts: usize,
    pub(super) pins: usize,
    pub(super) besides: usize,
    pub(super) ticks: usize,
    /// Pods ask once more when they are done.
    pub(super) is_endless: bool,
    /// The images are there from the start.
    pub(super) is_stocked: bool,
    /// Each answer of the runtime takes a step of its own.
    pub(super) is_fine: bool,
    /// Processes exit before their containers are deleted.
    pub(super) exits: bool,
    /// Where the story begins.
    pub(super) before: &'static [Before],
    pub(super) flaw: Option<Mutation>,
}

impl Size {
    /// Pods and images, and nothing else happens.
    pub(super) fn of(pods: usize, images: usize) -> Self {
        Self {
            pods,
            images,
            collections: 0,
            passes: 0,
            orders: 0,
            works: 0,
            crashes: 0,
            restarts: 0,
            pins: 0,
            besides: 0,
            ticks: 0,
            is_endless: false,
            is_stocked: false,
            is_fine: false,
            exits: false,
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

/// A story, for who reads of it.
pub(super) fn told(story: &[Act]) -> String {
    story.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
