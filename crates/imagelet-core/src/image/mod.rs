//! The basic types of all other rooms: references, ids, keys, sizes, images.

mod artifact;
mod digest;
mod docker_hub;
mod glob;
mod id;
mod lookup;
mod measure;
mod pinned;
mod platform;
mod reference;

use std::{cmp::Ordering, sync::Arc};

pub use artifact::{ARTIFACT_TYPE_LABEL, Artifact};
pub use digest::{Digest, DigestAlgorithm};
pub use docker_hub::DOCKER_HUB_NAMES;
pub use docker_hub::{DOCKER_HUB, DOCKER_HUB_HOST, is_docker_hub};
pub use glob::Glob;
pub(crate) use glob::{GLOB_LENGTH_MAX, glob_matches};
pub use id::{ImageId, ImageKey};
pub use lookup::{ImageNames, LookupError, look_up, split_names};
pub use measure::{ByteSize, Percent, counted};
pub use pinned::PinnedNames;
pub use platform::Platform;
pub use reference::{Reference, ReferenceError, default_tag, shown_name, trim_tag_and_digest};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImageSpec {
    /// A reference or an id; the call decides which.
    pub image: String,
    /// The handler whose store is used; empty for the default handler.
    pub runtime_handler: String,
    /// Hints to the runtime, sorted by name.
    pub annotations: Vec<(String, String)>,
}

impl ImageSpec {
    pub fn new(image: impl Into<String>) -> Self {
        Self { image: image.into(), ..Self::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageUser {
    #[default]
    Unset,
    Uid(i64),
    /// A user name, which the runtime looks up in the image.
    Name(String),
}

/// The maximum length of a user name in bytes. No system has longer user names.
const USER_LENGTH_MAX: usize = 256;

impl ImageUser {
    /// Parses `USER`, `UID` or `USER:GROUP`. A number of 64 bits is a uid, even if no system permits that uid. Any
    /// other text is a name. If a pod must not run as root, the kubelet rejects a name (`docs/spec/cri.md §5.4`).
    pub fn of_config(text: &str) -> Self {
        let name = text.split(':').next().unwrap_or_default();
        if name.is_empty() {
            return Self::Unset;
        }
        if let Ok(uid) = name.parse::<i64>() {
            return Self::Uid(uid);
        }
        // Shortened, because every image list repeats the name.
        Self::Name(name[..name.ceil_char_boundary(USER_LENGTH_MAX)].to_owned())
    }

    pub fn is_out_of_range(&self) -> bool {
        matches!(self, Self::Uid(uid) if u32::try_from(*uid).is_err())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub id: ImageId,
    /// The full names of the image that have a tag.
    pub tags: Vec<String>,
    /// The full names of the image that have a digest.
    pub digests: Vec<String>,
    /// The size that the store reports. The size of a shared layer is included in each image.
    pub size: ByteSize,
    pub user: ImageUser,
    /// Annotations and handler of the stored image.
    pub spec: ImageSpec,
    /// `true`: the store excludes the image from collections.
    pub pinned: bool,
    /// The artifact that the image was made of. CRI does not report it; [`crate::ports::RuntimeManager::list`] adds it.
    pub artifact: Option<Arc<Artifact>>,
}

impl Image {
    pub fn key(&self) -> ImageKey {
        ImageKey::new(self.id.clone(), self.spec.runtime_handler.clone())
    }

    /// The reported names: the names with a tag, else the names with a digest.
    pub fn names(&self) -> &[String] {
        if self.tags.is_empty() { &self.digests } else { &self.tags }
    }

    pub(crate) fn cmp_key(&self, key: &ImageKey) -> Ordering {
        self.id.cmp(key.id()).then_with(|| self.spec.runtime_handler.as_str().cmp(key.handler()))
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn users_read_as_the_vectors_say() {
        let cases = vectors("cri-image-user.json");
        assert_eq!(cases.len(), 10);
        for case in cases {
            let text = case["input"]["config_user"].as_str().unwrap();
            let (uid, name) = match ImageUser::of_config(text) {
                ImageUser::Unset => (None, String::new()),
                ImageUser::Uid(uid) => (Some(uid), String::new()),
                ImageUser::Name(name) => (None, name),
            };
            let expected = &case["expected"];
            assert_eq!((uid, Some(name.as_str())), (expected["uid"].as_i64(), expected["username"].as_str()), "{text}");
        }
    }

    #[test]
    fn a_user_without_end_is_cut_and_a_uid_without_range_is_known_as_such() {
        let ImageUser::Name(name) = ImageUser::of_config(&"ä".repeat(1000)) else { panic!("a name") };
        assert_eq!(name.len(), USER_LENGTH_MAX);
        for (text, out) in [("-1", true), ("4294967296", true), ("4294967295", false), ("root", false), ("", false)] {
            assert_eq!(ImageUser::of_config(text).is_out_of_range(), out, "{text}");
        }
    }
}
