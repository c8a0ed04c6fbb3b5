//! The filters of a list of images, in docker's words.

use std::{mem::discriminant, str::FromStr};

use imagelet_core::{image::Reference, inventory::PinPattern};

use crate::api::ImageRow;

const KNOWN: &str = "`reference=GLOB`, `dangling=`, `unused=` and `pinned=` with `true` or `false`";

/// One `--filter NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageFilter {
    /// A name, an id or a glob. The repository of a name without tag and digest, which matches all its tags.
    Reference(Box<PinPattern>, Option<String>),
    /// It has no tag.
    Dangling(bool),
    /// No container uses it.
    Unused(bool),
    Pinned(bool),
}

impl FromStr for ImageFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is no filter; there are {KNOWN}"))?;
        let switch = || match value {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(format!("`{name}` is `true` or `false`")),
        };
        match name {
            "reference" => {
                let pattern: PinPattern = value.parse().map_err(|error| format!("`{value}`: {error}"))?;
                let name = (!value.contains('*')).then(|| value.parse::<Reference>().ok()).flatten();
                let repository = name.filter(|name| name.tag().is_none() && name.digest().is_none());
                Ok(Self::Reference(Box::new(pattern), repository.map(|name| name.repository().to_owned())))
            }
            "dangling" => switch().map(Self::Dangling),
            "unused" => switch().map(Self::Unused),
            "pinned" => switch().map(Self::Pinned),
            _ => Err(format!("there is no filter `{name}`; there are {KNOWN}")),
        }
    }
}

impl ImageFilter {
    /// Whether an image passes: one filter of each name has to match it.
    pub(crate) fn all_pass(filters: &[Self], image: &ImageRow) -> bool {
        filters.iter().all(|filter| {
            let mut alike = filters.iter().filter(|other| discriminant(*other) == discriminant(filter));
            alike.any(|filter| filter.matches(image))
        })
    }

    fn matches(&self, image: &ImageRow) -> bool {
        match self {
            Self::Reference(pattern, repository) => {
                let is_of = |name: &String| {
                    name.parse::<Reference>().is_ok_and(|name| Some(name.repository()) == repository.as_deref())
                };
                let by_repository = repository.is_some() && image.names.iter().chain(&image.digests).any(is_of);
                by_repository || pattern.covers(&image.id, &image.names, &image.digests)
            }
            Self::Dangling(wanted) => image.names.is_empty() == *wanted,
            Self::Unused(wanted) => image.in_use_by.is_empty() == *wanted,
            Self::Pinned(wanted) => image.pinned_by.is_empty() != *wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_passes_when_one_filter_of_each_name_matches() {
        let image = ImageRow {
            id: format!("sha256:{}", "ab".repeat(32)),
            names: vec!["docker.io/library/busybox:1.36".into(), "ghcr.io/team/app:v1".into()],
            pinned_by: vec!["busybox".into()],
            ..ImageRow::default()
        };
        for (filters, passes) in [
            (&[][..], true),
            (&["reference=busybox"], true),
            (&["reference=busybox:1.36"], true),
            (&["reference=busybox:1.37"], false),
            (&["reference=ghcr.io/team/*"], true),
            (&["reference=abababababab"], true),
            (&["reference=alpine", "reference=busybox"], true),
            (&["reference=alpine", "pinned=true"], false),
            (&["dangling=true"], false),
            (&["dangling=false", "unused=1", "pinned=true"], true),
            (&["unused=false"], false),
        ] {
            let parsed: Vec<ImageFilter> = filters.iter().map(|text| text.parse().expect(text)).collect();
            assert_eq!(ImageFilter::all_pass(&parsed, &image), passes, "{filters:?}");
        }
        for text in ["busybox", "dangling=maybe", "label=x", "reference="] {
            assert!(text.parse::<ImageFilter>().is_err(), "{text}");
        }
    }
}
