//! A collector that knows which image starts when: no bound, but near to the least that can be fetched again.

use std::collections::{BTreeMap, BTreeSet};

use super::histories::{History, Start};

/// When each image starts from here on.
#[derive(Debug)]
pub(crate) struct Foresight(BTreeMap<usize, Vec<u64>>);

impl Foresight {
    pub(crate) fn of(starts: &[Start]) -> Self {
        let mut by_image: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for start in starts {
            by_image.entry(start.image).or_default().push(start.at);
        }
        Self(by_image)
    }

    /// Which of those that are here go, so that so many bytes come free: the one that starts last before the others, and
    /// none that need not.
    pub(crate) fn choose(
        &self,
        history: &History,
        present: &BTreeSet<usize>,
        used: &BTreeSet<usize>,
        wanted: u64,
        now: u64,
    ) -> Vec<usize> {
        let next = |image: usize| {
            let starts = self.0.get(&image).map(Vec::as_slice).unwrap_or_default();
            starts.get(starts.partition_point(|at| *at < now)).copied().unwrap_or(u64::MAX)
        };
        let mut holders: BTreeMap<usize, usize> = BTreeMap::new();
        for layer in present.iter().flat_map(|image| &history.images[*image].layers) {
            *holders.entry(*layer).or_default() += 1;
        }
        let mut free: Vec<usize> = present.difference(used).copied().collect();
        free.sort_by_key(|image| (next(*image), *image));
        let (mut freed, mut gone) = (0, Vec::new());
        while let Some(image) = free.pop().filter(|_| freed < wanted) {
            for layer in &history.images[image].layers {
                let left = holders.entry(*layer).or_default();
                *left -= 1;
                freed += if *left == 0 { history.layers[*layer] } else { 0 };
            }
            gone.push(image);
        }
        // The sooner one starts the more it is missed: what can stay after all does, in that order.
        for image in gone.clone().into_iter().rev() {
            let layers = &history.images[image].layers;
            let back: u64 =
                layers.iter().filter(|layer| holders[*layer] == 0).map(|layer| history.layers[*layer]).sum();
            if next(image) < u64::MAX && freed >= wanted + back {
                freed -= back;
                for layer in layers {
                    *holders.entry(*layer).or_default() += 1;
                }
                gone.retain(|other| *other != image);
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::{super::histories::Made, *};

    #[test]
    fn the_one_that_starts_last_goes_first_and_what_need_not_go_stays() {
        let made = |name: &str, layers: &[usize]| Made { name: name.to_owned(), layers: layers.to_vec() };
        let history = History {
            name: "made up",
            disk: 1_000,
            layers: vec![100, 10, 50],
            images: vec![made("a", &[0, 1]), made("b", &[0]), made("c", &[2])],
            starts: [(0, 30), (2, 20), (2, 90)].map(|(image, at)| Start { at, image, lasts: 1 }).into(),
        };
        let ahead = Foresight::of(&history.starts);
        let choose = |used: &[usize], wanted, now| {
            ahead.choose(&history, &(0..3).collect(), &used.iter().copied().collect(), wanted, now)
        };
        assert!(choose(&[], 0, 25).is_empty());
        assert_eq!(choose(&[], 40, 25), [1, 2], "b never starts again; a, with its base, is next");
        assert_eq!(choose(&[], 10, 15), [1, 0], "c is next");
        assert_eq!(choose(&[0], 60, 25), [1, 2], "what runs stays");
        assert_eq!(choose(&[], 160, 25), [1, 2, 0]);
    }
}
