//! The image names that a configuration pins, in containerd's notation and in CRI-O's (`docs/spec/cri.md §5.8`).

use super::{Glob, Image, Reference};
use crate::text::PlainError;

/// Pinned names. A name pins the image that it currently refers to.
///
/// ```
/// use imagelet_core::image::PinnedNames;
///
/// let pinned = PinnedNames::patterns(["registry.k8s.io/pause:3.10", "ghcr.io/team/*", "*proxy*"])?;
/// assert!(pinned.pins("ghcr.io/team/app:v1") && pinned.pins("quay.io/kube-proxy:v1"));
/// assert!(!pinned.pins("mirror.example/ghcr.io/team/app:v1"));
/// # Ok::<(), imagelet_core::text::PlainError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedNames(Vec<Pattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    glob: Glob,
    /// `true`: the glob is in lower case and matches names in any case. `false`: the glob matches only its exact case.
    is_caseless: bool,
}

impl PinnedNames {
    /// Reads containerd's notation: whole names, compared after normalisation.
    pub fn exactly<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut pinned = Self::default();
        names.into_iter().filter(|name| !name.contains('*')).for_each(|name| pinned.add(name, false));
        pinned
    }

    /// Adds a pattern as written, and its normalised form, in which a name without a tag has the tag `latest`.
    fn add(&mut self, text: &str, is_caseless: bool) {
        let full = text.parse::<Reference>().ok().map(|name| name.canonical().to_string());
        let globs = [Some(text), full.as_deref()].into_iter().flatten().filter_map(|text| Glob::new(text).ok());
        self.0.extend(globs.map(|glob| Pattern { glob, is_caseless }));
    }

    /// Reads CRI-O's notation: whole names, `BEGINNING*` and `*WORD*`, case-insensitive. `BEGINNING*` matches only at
    /// the start of a name with its domain. In CRI-O it also matches inside a name.
    pub fn patterns<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, PlainError> {
        let mut pinned = Self::default();
        for text in texts {
            let small = text.trim().to_ascii_lowercase();
            let refused = |why: &str| Err(PlainError(why.to_owned()));
            if small.is_empty() {
                return refused("an empty pattern pins no image");
            }
            if small.bytes().all(|byte| byte == b'*') {
                return refused("a pattern of `*` alone would pin every image");
            }
            let (front, rest) = small.strip_prefix('*').map_or((false, small.as_str()), |rest| (true, rest));
            let (middle, end) = rest.strip_suffix('*').map_or((rest, false), |middle| (middle, true));
            if middle.contains('*') || (front && !end) {
                return refused(&format!("`{text}`: a `*` stands at the end, or at both ends"));
            }
            pinned.add(&small, true);
        }
        Ok(pinned)
    }

    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a full name with its tag or digest is pinned.
    pub fn pins(&self, name: &str) -> bool {
        let small = name.to_ascii_lowercase();
        self.0.iter().any(|pattern| pattern.glob.matches(if pattern.is_caseless { &small } else { name }))
    }

    pub fn marks(&self, image: &Image) -> bool {
        let is_named = || image.tags.iter().chain(&image.digests).any(|name| self.pins(name));
        !image.pinned && !self.is_empty() && is_named()
    }

    pub fn mark(&self, image: &mut Image) {
        image.pinned |= self.marks(image);
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::VectorRun;
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_pinned_as_the_vectors_say() {
        // The vector's rule of snapshotters belongs to the code that chooses a handler.
        let mut run = VectorRun::once("cri-pinning-and-handler.json", |input| input["rule"] != "snapshotter");
        while let Some(case) = run.next_case() {
            let input = &case.input;
            let pinned = if let Some(pattern) = input["pattern"].as_str() {
                PinnedNames::patterns([pattern])
            } else {
                let configured = input["pinned_images"].as_object().unwrap().values();
                Ok(PinnedNames::exactly(configured.map(|name| name.as_str().unwrap())))
            };
            let found = match pinned {
                Ok(pinned) => json!({"pinned": pinned.pins(input["reference"].as_str().unwrap())}),
                Err(error) => json!({"refused": error.to_string() == "a pattern of `*` alone would pin every image"}),
            };
            run.compare(&case, &found);
        }
        run.end();
    }

    #[test]
    fn patterns_that_mean_nothing_are_refused() {
        for text in ["", " ", "*", "**", "*a", "a*b", "a**", "*a*b*"] {
            assert!(PinnedNames::patterns([text]).is_err(), "{text}");
        }
        let pinned = PinnedNames::patterns(["busybox"]).unwrap();
        assert!(pinned.pins("docker.io/library/busybox:latest") && !pinned.pins("docker.io/library/busybox:1"));
        assert!(PinnedNames::default().is_empty() && !PinnedNames::default().pins("a"));
    }
}
