//! Seeded changes to bytes that know no format.

use super::INPUT_MAX;

/// Most changes in one mutation.
const CHANGES_MAX: usize = 4;
/// Longest range that is moved at once.
const RANGE_MAX: usize = 1024;
/// Bytes that parsers treat in a way of their own.
const NOTABLE: &[u8] = b"\0\x01\x7f\x80\xff 0179/.:;,=@[]{}\"\\-_+\n\r\t";

/// A sequence of numbers that a seed decides.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// SplitMix64.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 where there is none.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).expect("a length fits in 64 bits");
        usize::try_from(self.roll() % end).expect("is below a length")
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.roll().to_le_bytes()[0]
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Changes bytes here and there. `words` are worth inserting.
pub(crate) fn change(bytes: &mut Vec<u8>, dice: &mut Dice, words: &[&[u8]]) {
    for _ in 0..=dice.below(CHANGES_MAX) {
        change_once(bytes, dice, words);
    }
}

fn change_once(bytes: &mut Vec<u8>, dice: &mut Dice, words: &[&[u8]]) {
    let at = dice.below(bytes.len());
    let range = at..(at + 1 + dice.below(RANGE_MAX)).min(bytes.len());
    let kind = if bytes.is_empty() { 0 } else { dice.below(9) };
    match kind {
        0 if words.is_empty() => bytes.insert(at, dice.byte()),
        0 => insert(bytes, at, dice.pick(words)),
        1 => bytes[at] ^= 1 << dice.below(8),
        2 => bytes[at] = NOTABLE[dice.below(NOTABLE.len())],
        3 => bytes[at] = dice.byte(),
        4 => drop(bytes.drain(range)),
        5 => {
            let copy = bytes[range].to_vec();
            let to = dice.below(bytes.len());
            insert(bytes, to, &copy);
        }
        6 => {
            let copy = bytes[range].to_vec();
            let to = dice.below(bytes.len() - copy.len() + 1);
            bytes[to..to + copy.len()].copy_from_slice(&copy);
        }
        7 => bytes.truncate(at),
        _ => {
            let word = if words.is_empty() { &b"0"[..] } else { dice.pick(words) };
            let end = (at + word.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&word[..end - at]);
        }
    }
}

/// Inserts as long as the input does not grow too long.
pub(crate) fn insert(bytes: &mut Vec<u8>, at: usize, more: &[u8]) {
    if bytes.len() + more.len() <= INPUT_MAX {
        bytes.splice(at..at, more.iter().copied());
    }
}
