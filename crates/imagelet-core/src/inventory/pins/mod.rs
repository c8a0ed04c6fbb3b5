//! Pin patterns of an operator: references, globs and ids.

pub(crate) mod change;
pub(crate) mod set_pins;

use std::str::FromStr;

use crate::image::{GLOB_LENGTH_MAX, Glob, Image, Reference};
use crate::inventory::reference_match::{bare_id, is_id_prefix};

/// The maximum number of patterns. Each pass compares all patterns with the images.
pub(crate) const PATTERNS_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    #[error("a pattern of `*` alone would pin every image")]
    Everything,
    #[error("the pattern is too long, or there are too many patterns")]
    TooMuch,
    #[error(transparent)]
    Glob(crate::text::PlainError),
    #[error("neither a reference nor an id of 12 digits or more nor a glob")]
    NoName(#[from] crate::image::ReferenceError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinPattern {
    text: String,
    pub(super) form: Form,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Glob(Glob),
    /// A prefix of an id or digest. If the text is also a valid name, the second field is that name.
    Digits(String, Option<String>),
    /// The digest of a reference `REPOSITORY@DIGEST`. It matches an image with this digest under any name.
    Content(String),
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
            Form::Glob(Glob::new(text).map_err(PinError::Glob)?)
        } else {
            let name = text.parse::<Reference>();
            let canonical = |name: Reference| name.canonical().to_string();
            match bare_id(text) {
                bare if is_id_prefix(bare) => Form::Digits(bare.to_owned(), name.ok().map(canonical)),
                _ => {
                    let name = name?;
                    match name.digest().map(ToString::to_string) {
                        Some(digest) => Form::Content(bare_id(&digest).to_owned()),
                        None => Form::Name(canonical(name)),
                    }
                }
            }
        };
        Ok(Self { text: text.to_owned(), form })
    }
}

impl PinPattern {
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn matches(&self, image: &Image) -> bool {
        self.covers(image.id.as_str(), &image.tags, &image.digests)
    }

    pub fn covers(&self, id: &str, tags: &[String], digests: &[String]) -> bool {
        let mut names = tags.iter().chain(digests);
        match &self.form {
            Form::Glob(glob) => names.any(|name| glob.matches_name(name)) || glob.matches(id),
            Form::Digits(digits, name) => {
                bare_id(id).starts_with(digits)
                    || digests.iter().filter_map(|it| digest_of(it)).any(|it| it.starts_with(digits.as_str()))
                    || name.as_deref().is_some_and(|wanted| names.any(|it| is_called(it, wanted)))
            }
            Form::Content(digits) => {
                bare_id(id) == digits || digests.iter().filter_map(|it| digest_of(it)).any(|it| it == digits)
            }
            Form::Name(wanted) => names.any(|name| is_called(name, wanted)),
        }
    }
}

pub(super) fn digest_of(name: &str) -> Option<&str> {
    name.split_once('@').map(|(_, digest)| bare_id(digest))
}

/// Whether a listed name equals `wanted`, which is normalised. Most listed names are, too, so few are parsed.
fn is_called(name: &str, wanted: &str) -> bool {
    if name == wanted {
        return true;
    }
    // Normalisation changes the part after the last slash of a name only by adding `:latest`.
    let tail = wanted.rsplit('/').next().unwrap_or(wanted);
    let may_be = name.ends_with(tail) || tail.strip_suffix(":latest").is_some_and(|tail| name.ends_with(tail));
    may_be && name.parse::<Reference>().is_ok_and(|it| it.canonical().to_string() == wanted)
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
            artifact: None,
        }
    }

    #[test]
    fn a_pattern_pins_what_it_names_and_nothing_else() {
        let digest = format!("ghcr.io/team/app@sha256:{}", "cd".repeat(32));
        let tagged = format!("ghcr.io/team/app:v7@sha256:{}", "cd".repeat(32));
        let elsewhere = format!("mirror.example/app@sha256:{}", "cd".repeat(32));
        let another = format!("ghcr.io/team/app@sha256:{}", "ce".repeat(32));
        let by_id = format!("ghcr.io/team/app@sha256:{}", "ab".repeat(32));
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
            (elsewhere.as_str(), true),
            (another.as_str(), false),
            (by_id.as_str(), true),
        ] {
            let pattern: PinPattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(&image()), pins, "{}", pattern.text());
        }
    }

    #[test]
    fn a_listed_name_need_not_be_written_in_full() {
        for (listed, pattern, pins) in [
            ("busybox", "busybox", true),
            ("busybox", "docker.io/library/busybox:latest", true),
            ("library/busybox:1", "busybox:1", true),
            ("docker.io/busybox:1", "busybox:1", true),
            ("index.docker.io/library/busybox:1", "busybox:1", true),
            ("localhost/busybox:1", "busybox:1", false),
            ("busybox:latest1", "busybox:latest", false),
            ("team/busybox", "team/busybox", true),
            ("reg:5000/busybox", "reg:5000/busybox:latest", true),
            ("", "busybox", false),
        ] {
            let pattern: PinPattern = pattern.parse().unwrap();
            assert_eq!(pattern.covers("", &[listed.to_owned()], &[]), pins, "{listed} by {}", pattern.text());
        }
    }

    #[test]
    fn a_tag_that_moves_takes_its_pin_along_and_a_digest_does_not() {
        let digest = format!("ghcr.io/team/app@sha256:{}", "cd".repeat(32));
        let (by_tag, by_digest): (PinPattern, PinPattern) =
            ("ghcr.io/team/app:v1".parse().unwrap(), digest.parse().unwrap());
        let mut moved = image();
        moved.tags.retain(|tag| !tag.ends_with("app:v1"));
        assert!(by_tag.matches(&image()) && !by_tag.matches(&moved));
        assert!(by_digest.matches(&image()) && by_digest.matches(&moved));
    }

    #[test]
    fn what_would_pin_everything_or_nothing_is_refused() {
        for text in ["*", "**", "", "UPPER", "a b"] {
            assert!(text.parse::<PinPattern>().is_err(), "{text}");
        }
        assert!("sha256:abcdef".parse::<PinPattern>().is_ok(), "a tag of a repository called sha256");
    }
}
