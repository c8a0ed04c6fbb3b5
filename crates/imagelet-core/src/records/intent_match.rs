//! Decides whether an open intent may have pulled a present image; pure functions.

use std::collections::BTreeSet;

use super::file::PullIntent;
use crate::image::{Image, Reference};

/// All names under which a present image may have been pulled.
#[derive(Debug)]
pub(super) struct PullNames<'a> {
    id: &'a str,
    /// Empty: no name is requested.
    asked: &'a str,
    references: Vec<Reference>,
    /// Repositories in which the image has a digest but no tag, because the tag has moved to a newer image.
    tag_lost: BTreeSet<String>,
}

impl<'a> PullNames<'a> {
    pub(super) fn new(image: &'a Image, asked: &'a str) -> Self {
        let parsed = |names: &[String]| names.iter().filter_map(|name| name.parse().ok()).collect::<Vec<Reference>>();
        let (tags, digests) = (parsed(&image.tags), parsed(&image.digests));
        let tagged: BTreeSet<&str> = tags.iter().map(Reference::repository).collect();
        let tag_lost = digests.iter().map(Reference::repository).filter(|it| !tagged.contains(it)).map(str::to_owned);
        let tag_lost = tag_lost.collect();
        let references = tags.into_iter().chain(digests).chain(asked.parse().ok()).collect();
        Self { id: image.id.as_str(), asked, references, tag_lost }
    }

    /// Whether the pull with this intent may have fetched the image. Returns true in doubt.
    pub(super) fn include(&self, begun: &PullIntent) -> bool {
        if begun.image == self.asked || begun.image == self.id {
            return true;
        }
        let Some(reference) = &begun.reference else { return false };
        self.tag_lost.contains(reference.repository()) || self.references.iter().any(|name| is_same(name, reference))
    }
}

fn is_same(left: &Reference, right: &Reference) -> bool {
    left.repository() == right.repository()
        && match (left.digest(), right.digest()) {
            (Some(left), Some(right)) => left == right,
            _ => left.tag().is_some() && left.tag() == right.tag(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ByteSize, ImageId, ImageSpec, ImageUser};

    #[test]
    fn a_pull_is_known_by_each_spelling_of_what_it_brought() {
        const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        let image = Image {
            id: ImageId::new("sha256:1"),
            tags: vec!["docker.io/library/busybox:1".into(), "reg.io/a:latest".into()],
            digests: vec![format!("reg.io/a@{DIGEST}"), format!("reg.io/moved@{DIGEST}")],
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        };
        let includes = |asked: &str, begun: &str| PullNames::new(&image, asked).include(&PullIntent::new(begun));
        for begun in [
            "busybox:1",
            "library/busybox:1",
            "docker.io/busybox:1",
            "reg.io/a",
            "reg.io/a:latest",
            &format!("reg.io/a@{DIGEST}"),
            &format!("reg.io/a:any@{DIGEST}"),
            "reg.io/moved:v1",
            "sha256:1",
        ] {
            assert!(includes("", begun), "{begun}");
        }
        let other = DIGEST.replace('a', "b");
        for begun in ["busybox", "reg.io/a:v1", "reg.io/b", &format!("reg.io/a:latest@{other}"), "sha256:2", "Bad"] {
            assert!(!includes("", begun), "{begun}");
        }
        assert!(includes("Bad", "Bad"));
        assert!(includes("reg.io/c", "reg.io/c:latest"));
    }
}
