//! Why images stay, by their place among all: most of a node's images stay for one and the same reason.

use serde::{Deserialize, Serialize};

use super::Reason;

/// Which images stay, and why. Places are those of the images that were decided about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// By place: the number of a reason, or [`GOES`].
    of: Vec<u32>,
    reasons: Vec<Reason>,
}

/// Stands for an image that goes.
const GOES: u32 = u32::MAX;

impl Kept {
    /// All of so many images stay, for this reason.
    pub(super) fn all(images: usize, reason: Reason) -> Self {
        Self { of: vec![0; images], reasons: vec![reason] }
    }

    /// The one at this place stays for this reason.
    pub(super) fn keep(&mut self, place: usize, reason: Reason) {
        // Equal ones mostly follow one another, or are the first.
        let known =
            [self.reasons.len().saturating_sub(1), 0].into_iter().find(|at| self.reasons.get(*at) == Some(&reason));
        let number = known.unwrap_or_else(|| {
            self.reasons.push(reason);
            self.reasons.len() - 1
        });
        self.of[place] = u32::try_from(number).unwrap_or(GOES - 1);
    }

    /// The one at this place goes.
    pub(super) fn goes(&mut self, place: usize) {
        self.of[place] = GOES;
    }

    /// Why the one at this place stays; `None`: it goes.
    pub fn at(&self, place: usize) -> Option<&Reason> {
        let number = self.of.get(place).filter(|number| **number != GOES)?;
        usize::try_from(*number).ok().and_then(|number| self.reasons.get(number))
    }

    /// The places of those that stay, rising, with the reasons.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Reason)> {
        (0..self.of.len()).filter_map(|place| Some((place, self.at(place)?)))
    }

    /// Whether any of them stays for a reason like this.
    pub(super) fn any(&self, is: impl Fn(&Reason) -> bool) -> bool {
        self.reasons.iter().any(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stays_for_its_own_reason_and_equal_ones_are_kept_once() {
        let mut kept = Kept::all(6, Reason::NotNeeded);
        let users = |name: &str| Reason::InUse { by: vec![name.to_owned()] };
        kept.keep(1, users("a"));
        kept.keep(2, users("a"));
        kept.keep(3, users("b"));
        kept.keep(5, Reason::NotNeeded);
        kept.goes(4);
        let told: Vec<(usize, &Reason)> = kept.iter().collect();
        let (a, b) = (users("a"), users("b"));
        assert_eq!(
            told,
            [(0, &Reason::NotNeeded), (1, &a), (2, &a), (3, &b), (5, &Reason::NotNeeded)],
            "the fifth goes"
        );
        assert_eq!((kept.reasons.len(), kept.at(4), kept.at(6)), (3, None, None));
    }
}
