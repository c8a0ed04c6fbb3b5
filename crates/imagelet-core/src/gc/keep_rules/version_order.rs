//! The order of a repository's tags: versions by number, other tags by the first sight of their image.

use std::{cmp::Reverse, time::SystemTime};

#[derive(Clone, Copy, Debug)]
pub(super) struct Tag<'a> {
    pub(super) text: &'a str,
    pub(super) first_seen: SystemTime,
    pub(super) image: usize,
}

/// The `count` latest images by tags that are versions, and the `count` latest images by all other tags. An image is
/// the number in `Tag::image`.
pub(super) fn last(tags: Vec<Tag<'_>>, count: usize) -> Vec<usize> {
    let (mut versions, mut others) = (Vec::new(), Vec::new());
    for Tag { text, first_seen, image } in tags {
        // The latest first sight is first. If two are equal, the tag with the larger text is first.
        let sight = (Reverse((first_seen, parts(text), text)), image);
        match version(text) {
            Some(version) => versions.push((Reverse(version), sight)),
            None => others.push(sight),
        }
    }
    versions.sort();
    others.sort();
    let mut kept = first_images(versions.iter().map(|(_, (_, image))| *image), count);
    kept.extend(first_images(others.iter().map(|(_, image)| *image), count));
    kept
}

fn first_images(images: impl Iterator<Item = usize>, count: usize) -> Vec<usize> {
    let mut found = Vec::new();
    for image in images {
        if found.len() < count && !found.contains(&image) {
            found.push(image);
        }
    }
    found
}

/// The numbers between the dots; `false` for a pre-release, which is before the release; the parts of the pre-release.
type Version<'a> = (Vec<Number<'a>>, bool, Vec<Part<'a>>);

/// Parses an optional `v`, numbers with dots, and an optional pre-release after `-`. A single number is a version only
/// after a `v`, because a bare number may be a year, a build, or the digits of a commit.
fn version(text: &str) -> Option<Version<'_>> {
    let bare = text.strip_prefix(['v', 'V']);
    let text = bare.unwrap_or(text);
    let (core, pre) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
    let numbers: Vec<Number<'_>> = core.split('.').map(number).collect::<Option<_>>()?;
    let is_version = numbers.len() > 1 || bare.is_some();
    is_version.then(|| (numbers, pre.is_none(), pre.into_iter().flat_map(|pre| pre.split('.')).map(part).collect()))
}

/// A number of any length: the count of its digits and the digits. The order is the order of the values.
type Number<'a> = (usize, &'a str);

fn number(text: &str) -> Option<Number<'_>> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let digits = text.trim_start_matches('0');
    is_number.then_some((digits.len(), digits))
}

/// A part of a tag: `false` and a number, or `true` and a word. So numbers are before words.
type Part<'a> = (bool, Option<Number<'a>>, &'a str);

fn part(text: &str) -> Part<'_> {
    number(text).map_or((true, None, text), |number| (false, Some(number), ""))
}

/// Splits a text into numbers and words, so that `build-10` is larger than `build-9`.
fn parts(text: &str) -> Vec<Part<'_>> {
    // The text is cut only beside a digit, which is one byte, so each cut is a character boundary.
    let runs = text.as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    runs.filter_map(|run| str::from_utf8(run).ok()).map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// The kept tags, each on a separate image, first seen in this order.
    fn kept<'a>(tags: &[&'a str], count: usize) -> Vec<&'a str> {
        let seen = tags.iter().enumerate().map(|(index, text)| text_at(text, index as u64, index));
        last(seen.collect(), count).into_iter().map(|image| tags[image]).collect()
    }

    fn text_at(text: &str, seconds: u64, image: usize) -> Tag<'_> {
        Tag { text, first_seen: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), image }
    }

    #[test]
    fn versions_come_by_version_and_not_by_when_they_were_seen() {
        for (tags, count, expected) in [
            (vec!["1.10.0", "1.9.0", "1.2.0"], 2, vec!["1.10.0", "1.9.0"]),
            (vec!["2.0.0", "2.0.0-rc.1", "1.9.9"], 2, vec!["2.0.0", "2.0.0-rc.1"]),
            (vec!["2.0.0-rc.2", "2.0.0-rc.10", "2.0.0-alpha"], 2, vec!["2.0.0-rc.10", "2.0.0-rc.2"]),
            (vec!["v3", "v2", "v10"], 1, vec!["v10"]),
            (vec!["1.25", "1.25-alpine", "1.24"], 2, vec!["1.25", "1.25-alpine"]),
            (
                vec!["1.99999999999999999999999.0", "1.100000000000000000000000.0"],
                1,
                vec!["1.100000000000000000000000.0"],
            ),
            (vec!["1.02.0", "1.1.9"], 1, vec!["1.02.0"]),
            (vec!["1.2", "1.2.0"], 1, vec!["1.2.0"]),
        ] {
            assert_eq!(kept(&tags, count), expected, "{tags:?}");
        }
    }

    #[test]
    fn other_tags_come_by_when_they_were_seen_and_do_not_push_versions_out() {
        let tags = ["latest", "main-9", "main-10", "1.0", "2.0", "main-8", "2024", "canary"];
        assert_eq!(kept(&tags, 2), ["2.0", "1.0", "canary", "2024"]);
        let at_once: Vec<Tag<'_>> = ["build-9", "build-10", "build-1"]
            .into_iter()
            .enumerate()
            .map(|(image, text)| text_at(text, 7, image))
            .collect();
        assert_eq!(last(at_once, 2), [1, 0]);
    }

    #[test]
    fn tags_of_one_image_count_once() {
        let tags = vec![
            text_at("1.4.2", 0, 0),
            text_at("1.4", 0, 0),
            text_at("1.3.9", 0, 1),
            text_at("1.2.0", 0, 2),
            text_at("latest", 0, 0),
        ];
        assert_eq!(last(tags, 2), [0, 1, 0]);
    }

    #[test]
    fn what_only_looks_like_a_version_is_none() {
        for text in ["latest", "2024", "1.x", "1.2.3alpine", "v", "1.", ".1", "1..2", "-1.2", "1.2_3", "vv1", "é.1"] {
            assert_eq!(version(text), None, "{text}");
        }
        for text in ["1.2", "v1", "V1.2.3", "1.2.3-", "1.2-é", "0.0"] {
            assert!(version(text).is_some(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_order_of_the_tags_given_does_not_matter(
            texts in proptest::collection::btree_set("(v?[0-2](\\.[0-2]){0,2}(-[a-b0-2.]{0,3})?|[a-cé0-9-]{0,4})", 0..12),
            turn in 0usize..12,
            count in 1usize..4,
        ) {
            let tags = |texts: &[(usize, String)]| {
                let tags = texts.iter().map(|(image, text)| text_at(text, *image as u64 % 3, *image)).collect();
                let mut images = last(tags, count);
                images.sort_unstable();
                images
            };
            let mut texts: Vec<(usize, String)> = texts.into_iter().enumerate().collect();
            let before = tags(&texts);
            let turn = turn % texts.len().max(1);
            texts.rotate_left(turn);
            texts.reverse();
            prop_assert_eq!(tags(&texts), before);
        }
    }
}
