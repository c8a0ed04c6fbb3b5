//! The words everything else is said in: references, ids, keys, sizes, images.

mod digest;
mod glob;
mod id;
mod measure;
mod platform;
mod reference;

pub use digest::{Digest, DigestAlgorithm, DigestError};
pub use glob::{GLOB_LENGTH_MAX, Glob, GlobError};
pub use id::{ImageId, ImageKey};
pub use measure::{ByteSize, Percent, PercentError};
pub use platform::{Platform, PlatformError};
pub use reference::{Reference, ReferenceError, default_tag, shown_name, trim_tag_and_digest};

/// What names an image in a request to a runtime, and what a runtime says it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImageSpec {
    /// A reference or an id, depending on the call.
    pub image: String,
    /// Whose store to use; empty means the default handler.
    pub runtime_handler: String,
    /// Hints to the runtime, sorted by name.
    pub annotations: Vec<(String, String)>,
}

impl ImageSpec {
    /// A spec that is a name alone.
    pub fn new(image: impl Into<String>) -> Self {
        Self { image: image.into(), ..Self::default() }
    }
}

/// The user an image's configuration asks to run as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageUser {
    /// The configuration names nobody, or a number out of range.
    #[default]
    Unset,
    /// A numeric user id.
    Uid(i64),
    /// A user name, to be looked up inside the image.
    Name(String),
}

/// An image as its store lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Unique on the node; the digest of the image's configuration where the store is ours or containerd's.
    pub id: ImageId,
    /// Full names with tag.
    pub tags: Vec<String>,
    /// Full names with digest.
    pub digests: Vec<String>,
    /// What the store says it occupies; shared layers are counted in each image.
    pub size: ByteSize,
    /// The user its configuration asks for.
    pub user: ImageUser,
    /// Annotations and handler it was stored under.
    pub spec: ImageSpec,
    /// The store asks that no collection take it.
    pub pinned: bool,
}

impl Image {
    /// The key under which an inventory keeps this image.
    pub fn key(&self) -> ImageKey {
        ImageKey::new(self.id.clone(), self.spec.runtime_handler.clone())
    }
}
