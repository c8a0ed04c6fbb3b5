//! What a story of chance led to.

/// What was seen, so that the test knows it saw something.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) used: usize,
    pub(super) used_preloaded: usize,
    pub(super) pulled: usize,
    pub(super) refused: usize,
    pub(super) never: usize,
    pub(super) ends: usize,
    pub(super) write_failures: usize,
    pub(super) given_up: usize,
    pub(super) together: usize,
    pub(super) pruned: usize,
}

impl Seen {
    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.all().into_iter().zip(other.numbers()) {
            *mine += theirs;
        }
    }

    pub(super) fn all(&mut self) -> [&mut usize; 10] {
        let Self { used, used_preloaded, pulled, refused, never, ends, write_failures, given_up, together, pruned } =
            self;
        [used, used_preloaded, pulled, refused, never, ends, write_failures, given_up, together, pruned]
    }

    pub(super) fn numbers(&self) -> [usize; 10] {
        let Self { used, used_preloaded, pulled, refused, never, ends, write_failures, given_up, together, pruned } =
            *self;
        [used, used_preloaded, pulled, refused, never, ends, write_failures, given_up, together, pruned]
    }
}
