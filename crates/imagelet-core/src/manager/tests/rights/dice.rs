//! Chance, the same for the same seed, and what it led to.

/// A small generator (SplitMix64); the same seed is the same history.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    pub(super) fn one_in(&mut self, chance: usize) -> bool {
        self.below(chance) == 0
    }

    pub(super) fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.below(among.len())]
    }
}

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
