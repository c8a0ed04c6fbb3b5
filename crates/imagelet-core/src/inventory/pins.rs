//! Which images an operator wants kept: references, globs, ids.

use std::str::FromStr;

use super::detect::{bare_id, is_id_prefix};
use crate::image::{GLOB_LENGTH_MAX, Glob, Image, Reference};

/// Most patterns kept; far above what a person writes, and each refresh looks at each.
pub(super) const PATTERNS_MAX: usize = 10_000;

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// It would keep everything.
    #[error("a pattern of `*` alone would pin every image")]
    Everything,
    /// Longer than any name, or there are too many already.
    #[error("the pattern is too long, or there are too many patterns")]
    TooMuch,
    /// A glob that covers no name.
    #[error(transparent)]
    Glob(#[from] crate::image::GlobError),
    /// Neither a glob nor an id nor a reference.
    #[error("neither a reference nor an id of 12 digits or more nor a glob: {0}")]
    NoName(#[from] crate::image::ReferenceError),
}

/// One pattern, as written and as understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinPattern {
    text: String,
    form: Form,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// With `*`, each for any characters, against whole names.
    Glob(Glob),
    /// First digits of an id or digest, and, where it could be one, a name.
    Digits(String, Option<String>),
    /// A normalised name.
    Name(String),
}

impl FromStr for PinPattern {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let text = text.trim();
        if text.len() > GLOB_LENGTH_MAX {
            return Err(PinError::TooMuch);
        }
        let form = if text.contains('*') {
            if text.bytes().all(|byte| byte == b'*') {
                return Err(PinError::Everything);
            }
            Form::Glob(Glob::new(text)?)
        } else {
            let name = text.parse::<Reference>().map(|reference| reference.canonical().to_string());
            match bare_id(text) {
                bare if is_id_prefix(bare) => Form::Digits(bare.to_owned(), name.ok()),
                _ => Form::Name(name?),
            }
        };
        Ok(Self { text: text.to_owned(), form })
    }
}

impl PinPattern {
    /// As written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it keeps this image.
    pub fn matches(&self, image: &Image) -> bool {
        let mut names = image.tags.iter().chain(&image.digests);
        let is = |wanted: &str, name: &str| {
            name == wanted || name.parse::<Reference>().is_ok_and(|it| it.canonical().to_string() == wanted)
        };
        match &self.form {
            Form::Glob(glob) => names.any(|name| glob.matches_name(name)) || glob.matches(image.id.as_str()),
            Form::Digits(digits, name) => {
                let digest_of = |name: &str| name.split_once('@').map(|(_, digest)| bare_id(digest).to_owned());
                bare_id(image.id.as_str()).starts_with(digits)
                    || image.digests.iter().filter_map(|it| digest_of(it)).any(|it| it.starts_with(digits))
                    || name.as_deref().is_some_and(|wanted| names.any(|it| is(wanted, it)))
            }
            Form::Name(wanted) => names.any(|name| is(wanted, name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ByteSize, ImageId, ImageSpec, ImageUser};

    fn image() -> Image {
        Image {
            id: ImageId::new(format!("sha256:{}", "ab".repeat(32))),
            tags: vec!["docker.io/library/busybox:1.36".to_owned(), "ghcr.io/team/app:v1".to_owned()],
            digests: vec![format!("ghcr.io/team/app@sha256:{}", "cd".repeat(32))],
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
        }
    }

    #[test]
    fn a_pattern_pins_what_it_names_and_nothing_else() {
        let digest = format!("ghcr.io/team/app@sha256:{}", "cd".repeat(32));
        let tagged = format!("ghcr.io/team/app:v7@sha256:{}", "cd".repeat(32));
        for (pattern, pins) in [
            ("busybox:1.36", true),
            ("docker.io/library/busybox:1.36", true),
            ("busybox", false),
            ("ghcr.io/team/app:v1", true),
            (digest.as_str(), true),
            (tagged.as_str(), true),
            ("busybox*", true),
            ("docker.io/*/busybox:*", true),
            ("ghcr.io/team/*", true),
            ("ghcr.io/tea", false),
            ("*app", false),
            ("*app:v1", true),
            ("*/team/*:v1", true),
            ("abababababab", true),
            ("sha256:abababababab", true),
            ("sha256:cdcdcdcdcdcdcd", true),
            ("abababababac", false),
        ] {
            let pattern: PinPattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(&image()), pins, "{}", pattern.text());
        }
    }

    #[test]
    fn what_would_pin_everything_or_nothing_is_refused() {
        for text in ["*", "**", "", "UPPER", "a b"] {
            assert!(text.parse::<PinPattern>().is_err(), "{text}");
        }
        assert!("sha256:abcdef".parse::<PinPattern>().is_ok(), "a tag of a repository called sha256");
    }
}
