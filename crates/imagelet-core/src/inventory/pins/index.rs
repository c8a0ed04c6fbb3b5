//! An index of many patterns. It finds the patterns that match an image without comparing each pattern.

use std::collections::{HashMap, HashSet};

use super::{Form, PinPattern, digest_of};
use crate::image::{Image, Reference};
use crate::inventory::reference_match::{bare_id, tail};

/// Patterns with their values. Names and digests are looked up; globs and digit prefixes are compared one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PatternIndex<T> {
    patterns: Vec<(PinPattern, T)>,
    /// Normalised name → indices of the patterns with this name.
    by_name: HashMap<String, Vec<usize>>,
    /// The digits of a digest → indices of the patterns with this digest.
    by_digest: HashMap<String, Vec<usize>>,
    /// For each name in `by_name`: the part after the last slash, with and without `:latest`.
    tails: HashSet<String>,
    one_by_one: Vec<usize>,
}

impl<T> Default for PatternIndex<T> {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl<T> PatternIndex<T> {
    pub(crate) fn of(patterns: Vec<(PinPattern, T)>) -> Self {
        let (mut by_name, mut by_digest): (HashMap<_, Vec<_>>, HashMap<_, Vec<_>>) = Default::default();
        let (mut tails, mut one_by_one) = (HashSet::new(), Vec::new());
        for (index, (pattern, _)) in patterns.iter().enumerate() {
            match &pattern.form {
                Form::Name(name) => {
                    // Normalisation changes the part after the last slash of a name only by adding `:latest`.
                    let tail = tail(name);
                    tails.extend([Some(tail), tail.strip_suffix(":latest")].into_iter().flatten().map(str::to_owned));
                    by_name.entry(name.clone()).or_default().push(index);
                }
                Form::Content(digits) => by_digest.entry(digits.clone()).or_default().push(index),
                Form::Glob(_) | Form::Digits(..) => one_by_one.push(index),
            }
        }
        Self { patterns, by_name, by_digest, tails, one_by_one }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The values of the patterns that match an image, in the order in which `of` got the patterns.
    pub(crate) fn find(&self, image: &Image) -> Vec<&T> {
        if self.is_empty() {
            return Vec::new();
        }
        let digests = image.digests.iter().filter_map(|name| digest_of(name));
        let digests = digests.chain([bare_id(image.id.as_str())]);
        let by_digest = digests.filter_map(|digits| self.by_digest.get(digits));
        let by_name = image.tags.iter().chain(&image.digests).filter_map(|name| self.called(name));
        let one_by_one = self.one_by_one.iter().filter(|index| self.patterns[**index].0.matches(image));
        let mut found: Vec<usize> = by_digest.chain(by_name).flatten().chain(one_by_one).copied().collect();
        found.sort_unstable();
        found.dedup();
        found.into_iter().map(|index| &self.patterns[index].1).collect()
    }

    /// The patterns that match a listed name. Most listed names are already normalised, so few are parsed.
    fn called(&self, name: &str) -> Option<&Vec<usize>> {
        self.by_name.get(name).or_else(|| {
            let parsed = self.tails.contains(tail(name)).then(|| name.parse::<Reference>())?;
            self.by_name.get(&parsed.ok()?.canonical().to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::image::{ByteSize, ImageId, ImageSpec, ImageUser};

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            "(docker.io/|index.docker.io/|r:5/)?(library/|t/)?[ab](:1|:latest)?",
            "(r:5/)?[ab](:1)?@sha256:(0{64}|1{64})",
            "(sha256:)?(0{12}|0{64}|01{11}|0{66})",
        ]
    }

    fn pattern() -> impl Strategy<Value = String> {
        prop_oneof![4 => name(), 1 => "[ab]\\*|\\*/[ab]:1"]
    }

    proptest! {
        #[test]
        fn what_the_index_finds_is_what_matches(
            id in prop_oneof!["sha256:0{64}", "sha256:01{63}", "0{66}", "x"],
            names in proptest::collection::vec(name(), 0..4),
            patterns in proptest::collection::vec(pattern(), 0..8),
        ) {
            let (digests, tags) = names.into_iter().partition(|name| name.contains('@'));
            let image = Image {
                id: ImageId::new(id),
                tags,
                digests,
                size: ByteSize(1),
                user: ImageUser::Unset,
                spec: ImageSpec::default(),
                pinned: false,
                artifact: None,
            };
            let patterns: Vec<(PinPattern, usize)> =
                patterns.iter().filter_map(|text| text.parse().ok()).enumerate().map(|(at, it)| (it, at)).collect();
            let matching: Vec<usize> =
                patterns.iter().filter(|(pattern, _)| pattern.matches(&image)).map(|(_, at)| *at).collect();
            let index = PatternIndex::of(patterns);
            prop_assert_eq!(index.find(&image).into_iter().copied().collect::<Vec<_>>(), matching);
        }
    }
}
