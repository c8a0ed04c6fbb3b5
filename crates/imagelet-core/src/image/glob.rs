//! Globs for names. `*` matches any number of characters, also slashes. Every other character matches itself.

use std::fmt;

use crate::text::PlainError;

/// The maximum length of a pattern in bytes. No image name is longer.
pub(crate) const GLOB_LENGTH_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob(String);

impl Glob {
    pub fn new(text: &str) -> Result<Self, PlainError> {
        if text.is_empty() {
            Err(PlainError::new("an empty pattern covers nothing"))
        } else if text.len() > GLOB_LENGTH_MAX {
            Err(PlainError::new("the pattern is longer than 1024 bytes"))
        } else if text.chars().any(|found| found.is_whitespace() || found.is_control()) {
            Err(PlainError::new("the pattern has blanks or control characters in it"))
        } else {
            Ok(Self(text.to_owned()))
        }
    }

    pub fn matches(&self, text: &str) -> bool {
        glob_matches(&self.0, text)
    }

    /// Whether the pattern matches the full form or a short form of an image or repository name.
    pub(crate) fn matches_name(&self, name: &str) -> bool {
        spellings(name).any(|spelling| self.matches(spelling))
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The full form of a name and its short forms: `docker.io/library/a`, `library/a`, `a`.
fn spellings(name: &str) -> impl Iterator<Item = &str> {
    let hub = name.strip_prefix("docker.io/");
    let library = hub.and_then(|rest| rest.strip_prefix("library/"));
    [Some(name), hub, library].into_iter().flatten()
}

pub(crate) fn glob_matches(pattern: &str, text: &str) -> bool {
    let Some((first, behind)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let (middle, last) = behind.rsplit_once('*').unwrap_or(("", behind));
    // The earliest match of each piece leaves the most text for the other pieces.
    for piece in middle.split('*').filter(|piece| !piece.is_empty()) {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_and_the_rest_for_itself() {
        for (pattern, text, covers) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*", "a/b:c", true),
            ("a*", "a", true),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a**b", "ab", true),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1c2b", false),
            ("*ab*", "xaab", true),
            ("a*bc*c", "abc", false),
            ("a*bc*c", "abcc", true),
            ("a.c", "abc", false),
            ("a?c", "abc", false),
            ("é*", "éa", true),
        ] {
            assert_eq!(Glob::new(pattern).unwrap().matches(text), covers, "{pattern} over {text}");
        }
    }

    #[test]
    fn a_name_of_the_hub_is_covered_as_people_shorten_it() {
        let name = "docker.io/library/busybox";
        for (pattern, covers) in [("busybox", true), ("library/*", true), ("docker.io/*", true), ("box", false)] {
            assert_eq!(Glob::new(pattern).unwrap().matches_name(name), covers, "{pattern}");
        }
        assert!(!Glob::new("library/*").unwrap().matches_name("ghcr.io/library/x"));
    }

    #[test]
    fn what_covers_no_name_is_refused() {
        let long = "a".repeat(GLOB_LENGTH_MAX + 1);
        for text in ["", " a", "a b", "a\nb", "a\u{7}", &long] {
            assert!(Glob::new(text).is_err(), "{text:?}");
        }
    }
}
