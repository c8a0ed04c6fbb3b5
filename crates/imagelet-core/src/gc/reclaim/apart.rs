//! Images that share nothing: what each frees does not depend on the others, so a good set is found at one look at each.

use std::cmp::Ordering;

use super::{
    greedy::{self, Moves},
    problem::{self, Problem, Weight},
};
use crate::{image::ByteSize, runtime::Freed};

/// With more candidates than these the best walk through them is all: what an exchange would win is nothing in the
/// whole, and takes milliseconds.
const CANDIDATES_FEW: usize = 1_000;
/// How many of the best are put in order at first; four times as many where they are not enough.
const FIRST: usize = 128;
/// From so many of the last ones on it is tried whether one other image ends it more cheaply.
const ENDS: usize = 8;

/// An image that shares nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gc) struct Apart {
    /// What it is expected to cost that it went.
    pub(in crate::gc) cost: u64,
    /// What its removal frees.
    pub(in crate::gc) frees: ByteSize,
}

/// Chooses by what each frees. Answers their places, in the order in which they should go; all of them where all are not
/// enough. What no size tells, inodes, is never enough.
pub(in crate::gc) fn choose_apart(candidates: &[Apart], wanted: Freed) -> Vec<usize> {
    if wanted == Freed::default() {
        return Vec::new();
    }
    let all: u128 = candidates.iter().map(|it| u128::from(it.frees.0)).sum();
    if wanted.inodes > 0 || all < u128::from(wanted.bytes.0) {
        return (0..candidates.len()).collect();
    }
    if candidates.len() > CANDIDATES_FEW {
        return walk(candidates, wanted.bytes.0.into());
    }
    let problem = Problem::apart(candidates);
    let target = Weight::of(wanted);
    let moves = Moves::new(&problem);
    let mut best = greedy::choose(&moves, target);
    super::exact::improve(&problem, target, &mut best, super::exact::NODES_MAX);
    greedy::order(&moves, &best).into_iter().map(problem::place).collect()
}

/// What frees most for its cost goes first, until it is enough; the end is the cheapest of the ways to end it.
///
/// It costs at most one image more than the best set: without its last image it is the cheapest way to what it frees.
fn walk(candidates: &[Apart], target: u128) -> Vec<usize> {
    let ranked = |(place, it): (usize, &Apart)| Ranked { ratio: it.frees.0 as f64 / it.cost.max(1) as f64, place };
    let by_ratio = |one: &Ranked, other: &Ranked| other.ratio.total_cmp(&one.ratio).then(one.place.cmp(&other.place));
    let mut row: Vec<Ranked> = candidates.iter().enumerate().map(ranked).filter(|it| it.ratio > 0.0).collect();
    let gain = |place: usize| u128::from(candidates[place].frees.0);
    let cost = |place: usize| u128::from(candidates[place].cost);
    // As many in order as are needed, and no more.
    let (mut first, mut gone) = (0, 0_u128);
    let mut count = 0;
    while gone < target && first < row.len() {
        let more = (4 * first).max(FIRST).min(row.len());
        if more < row.len() {
            row[first..].select_nth_unstable_by(more - first, by_ratio);
        }
        row[first..more].sort_unstable_by(by_ratio);
        first = more;
        while gone < target && count < first {
            gone += gain(row[count].place);
            count += 1;
        }
    }

    // From each of the last ones on: what is missing without them, and what they cost.
    let begins = count.saturating_sub(ENDS)..count;
    let (mut missing, mut spared) = (0, 0);
    let mut ends: Vec<(usize, u128, u128)> = Vec::with_capacity(ENDS);
    for begin in begins.rev() {
        let place = row[begin].place;
        missing = if ends.is_empty() { (target + gain(place)).saturating_sub(gone) } else { missing + gain(place) };
        spared += cost(place);
        ends.push((begin, missing, spared));
    }
    // One that frees less than the least that is missing, or costs more than all of them, ends nothing.
    let (least, most) = (ends[0].1, spared);
    let may_end = |it: &Ranked| gain(it.place) >= least && cost(it.place) < most;
    let first_begin = ends[ends.len() - 1].0;
    let able: Vec<(usize, usize)> =
        (first_begin..).zip(&row[first_begin..]).filter(|(_, it)| may_end(it)).map(|(at, it)| (at, it.place)).collect();
    let mut best: Option<(u128, usize, usize)> = None;
    for (begin, missing, spared) in ends {
        let enough = able.iter().filter(|(at, place)| *at >= begin && gain(*place) >= missing && cost(*place) < spared);
        if let Some(place) = enough.map(|(_, place)| *place).min_by(|one, other| end_order(candidates, *one, *other)) {
            let saved = spared - cost(place);
            if best.is_none_or(|(most, ..)| saved > most) {
                best = Some((saved, begin, place));
            }
        }
    }
    let mut chosen: Vec<usize> = row[..count].iter().map(|it| it.place).collect();
    if let Some((_, begin, place)) = best {
        chosen.truncate(begin);
        chosen.push(place);
    }
    leave_out(candidates, target, &mut chosen);
    chosen
}

/// A candidate with what it frees for its cost.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    ratio: f64,
    place: usize,
}

/// The cheaper first; of equals the one that frees less, then the one that comes first.
fn end_order(candidates: &[Apart], one: usize, other: usize) -> Ordering {
    let key = |place: usize| (candidates[place].cost, candidates[place].frees, place);
    key(one).cmp(&key(other))
}

/// Leaves out what is not needed, the dearest for what it frees first.
fn leave_out(candidates: &[Apart], target: u128, chosen: &mut Vec<usize>) {
    let mut over = chosen.iter().map(|place| u128::from(candidates[*place].frees.0)).sum::<u128>() - target;
    for at in (0..chosen.len()).rev() {
        let frees = u128::from(candidates[chosen[at]].frees.0);
        if frees <= over {
            over -= frees;
            chosen.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that repeat.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % end
        }
    }

    fn node(dice: &mut Dice, images: usize) -> Vec<Apart> {
        let image = |dice: &mut Dice| {
            let bytes = match dice.below(3) {
                0 => 1 + dice.below(1 << 20),
                1 => (20 + dice.below(900)) << 20,
                _ => (1 + dice.below(64)) << 26,
            };
            let magnitude = 4 + dice.below(24);
            let cost = 1 + dice.below(1 << magnitude);
            Apart { cost, frees: ByteSize(bytes) }
        };
        (0..images).map(|_| image(dice)).collect()
    }

    fn sums(candidates: &[Apart], chosen: &[usize]) -> (u128, u128) {
        let sum = |of: fn(&Apart) -> u64| chosen.iter().map(|place| u128::from(of(&candidates[*place]))).sum();
        (sum(|it| it.cost), sum(|it| it.frees.0))
    }

    /// What it costs where parts of images could go: nothing costs less.
    fn bound(candidates: &[Apart], target: u128) -> f64 {
        let mut row: Vec<&Apart> = candidates.iter().collect();
        row.sort_by(|one, other| {
            (u128::from(other.frees.0) * u128::from(one.cost)).cmp(&(u128::from(one.frees.0) * u128::from(other.cost)))
        });
        let (mut missing, mut cost) = (target as f64, 0.0);
        for image in row {
            let part = (missing / image.frees.0 as f64).min(1.0);
            cost += part * image.cost as f64;
            missing -= part * image.frees.0 as f64;
        }
        cost
    }

    #[test]
    fn among_many_the_choice_gives_enough_and_costs_hardly_more_than_parts_of_images_would() {
        let mut dice = Dice(0x1d87_2b41_a5f3_9c6d);
        for round in 0..60 {
            let candidates = node(&mut dice, 1_200 + 100 * round);
            let all: u128 = sums(&candidates, &(0..candidates.len()).collect::<Vec<_>>()).1;
            // From a whole node to a single image.
            let target = all * u128::from(1 + dice.below(999)) / 1000 / [1, 10, 1000][round % 3];
            let wanted = Freed { bytes: ByteSize(u64::try_from(target).unwrap()), inodes: 0 };
            let chosen = choose_apart(&candidates, wanted);
            let (cost, frees) = sums(&candidates, &chosen);
            let bound = bound(&candidates, target);
            assert!(frees >= target, "round {round}: {frees} of {target}");
            // Of few images a part of one is far less than one.
            assert!(
                chosen.len() < 40 || cost as f64 <= bound * 1.05,
                "round {round}: {cost} where parts would cost {bound}, {} images",
                chosen.len()
            );
            let mut places = chosen.clone();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), chosen.len(), "each once");
            for place in &chosen {
                assert!(frees - u128::from(candidates[*place].frees.0) < target, "none of them in vain");
            }
        }
    }

    #[test]
    fn among_many_the_choice_is_as_good_as_that_of_the_exchanges() {
        let mut dice = Dice(0x51af_27c3_88b1_0e95);
        for round in 0..20 {
            let candidates = node(&mut dice, 1_100);
            let target = u128::from((1 + dice.below(300)) << 28);
            let problem = Problem::apart(&candidates);
            let wanted = Freed { bytes: ByteSize(u64::try_from(target).unwrap()), inodes: 0 };
            let moves = Moves::new(&problem);
            let exchanged: Vec<usize> =
                greedy::choose(&moves, Weight::of(wanted)).into_iter().map(problem::place).collect();
            let (ours, theirs) = (sums(&candidates, &walk(&candidates, target)).0, sums(&candidates, &exchanged).0);
            assert!(ours as f64 <= theirs as f64 * 1.05 + 1.0, "round {round}: {ours} and {theirs}");
        }
    }

    #[test]
    fn what_cannot_be_reached_takes_all_and_nothing_wanted_takes_none() {
        let candidates = [Apart { cost: 1, frees: ByteSize(10) }, Apart { cost: 2, frees: ByteSize(20) }];
        let wanted = |bytes, inodes| Freed { bytes: ByteSize(bytes), inodes };
        assert_eq!(choose_apart(&candidates, wanted(0, 0)), [0_usize; 0]);
        assert_eq!(choose_apart(&candidates, wanted(31, 0)), [0, 1]);
        assert_eq!(choose_apart(&candidates, wanted(1, 1)), [0, 1], "nobody knows what inodes come free");
        assert_eq!(choose_apart(&candidates, wanted(15, 0)), [1]);
    }

    #[test]
    fn equal_images_go_in_their_order() {
        let candidates = vec![Apart { cost: 7, frees: ByteSize(100) }; 5_000];
        let chosen = choose_apart(&candidates, Freed { bytes: ByteSize(950), inodes: 0 });
        assert_eq!(chosen, (0..10).collect::<Vec<_>>());
    }
}
