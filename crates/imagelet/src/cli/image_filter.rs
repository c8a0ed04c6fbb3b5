//! The filters of a list of images, with docker's names.

use std::{mem::discriminant, str::FromStr};

use imagelet_core::{image::Reference, inventory::PinPattern};

use imagelet_node::api::ImageRow;

const KNOWN: &str = "`reference=GLOB`, `dangling=`, `unused=` and `pinned=` with `true` or `false`";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageFilter {
    /// Passes images that match the pattern, or that have a name in the repository, which is set for a name without tag
    /// and digest. Outer `None`: passes each image with a name.
    Reference(Option<(Box<PinPattern>, Option<String>)>),
    Dangling(bool),
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
            "reference" if !value.is_empty() && value.bytes().all(|byte| byte == b'*') => Ok(Self::Reference(None)),
            "reference" => {
                let pattern: PinPattern = value.parse().map_err(|error| format!("`{value}`: {error}"))?;
                // The parser of patterns adds a tag to a name without one, so the tag is searched for in `value`.
                let last = value.rsplit('/').next().unwrap_or_default();
                let is_repository = !value.contains(['*', '@']) && !last.contains(':');
                let repository = is_repository.then(|| value.parse::<Reference>().ok()).flatten();
                let repository = repository.map(|name| name.repository().to_owned());
                Ok(Self::Reference(Some((Box::new(pattern), repository))))
            }
            "dangling" => switch().map(Self::Dangling),
            "unused" => switch().map(Self::Unused),
            "pinned" => switch().map(Self::Pinned),
            _ => Err(format!("there is no filter `{name}`; there are {KNOWN}")),
        }
    }
}

impl ImageFilter {
    /// Whether an image passes the filters. Of several filters with one name, it must match at least one.
    pub(crate) fn all_pass(filters: &[Self], image: &ImageRow) -> bool {
        filters.iter().all(|filter| {
            let mut alike = filters.iter().filter(|other| discriminant(*other) == discriminant(filter));
            alike.any(|filter| filter.matches(image))
        })
    }

    fn matches(&self, image: &ImageRow) -> bool {
        match self {
            Self::Reference(None) => !(image.names.is_empty() && image.digests.is_empty()),
            Self::Reference(Some((pattern, repository))) => {
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
        let id = format!("sha256:{}", "ab".repeat(32));
        let names = ["docker.io/library/busybox:1.36", "ghcr.io/team/app:v1"].map(str::to_owned).to_vec();
        let image = ImageRow { id: id.clone(), names, pinned_by: vec!["a".to_owned()], ..ImageRow::default() };
        for (filters, passes) in [
            (&[][..], true),
            (&["reference=busybox"], true),
            (&["reference=busybox:1.36"], true),
            (&["reference=busybox:1.37"], false),
            (&["reference=ghcr.io/team/*"], true),
            (&["reference=abababababab"], true),
            (&["reference=*"], true),
            (&["reference=**"], true),
            (&["reference=*", "pinned=false"], false),
            (&["reference=alpine", "reference=busybox"], true),
            (&["reference=alpine", "pinned=true"], false),
            (&["dangling=true"], false),
            (&["dangling=false", "unused=1", "pinned=true"], true),
            (&["unused=false"], false),
        ] {
            let parsed: Vec<ImageFilter> = filters.iter().map(|text| text.parse().expect(text)).collect();
            assert_eq!(ImageFilter::all_pass(&parsed, &image), passes, "{filters:?}");
        }
        let nameless = ImageRow { id, ..ImageRow::default() };
        assert!(!ImageFilter::all_pass(&["reference=*".parse().expect("a filter")], &nameless));
        for text in ["busybox", "dangling=maybe", "label=x", "reference="] {
            assert!(text.parse::<ImageFilter>().is_err(), "{text}");
        }
    }
}
