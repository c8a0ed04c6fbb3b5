//! Names of a listed image for whoever keeps them beside the list: shared with it, as a node has very many.

use std::{fmt, ops::Deref, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Image;

/// Some names of an image. Cheap to clone.
#[derive(Clone)]
pub struct SharedNames(Form);

#[derive(Clone)]
enum Form {
    Own(Arc<[String]>),
    TagsOf(Arc<Image>),
    DigestsOf(Arc<Image>),
}

impl SharedNames {
    /// Its names with tag.
    pub fn tags_of(image: &Arc<Image>) -> Self {
        Self(Form::TagsOf(Arc::clone(image)))
    }

    /// Its names with digest.
    pub fn digests_of(image: &Arc<Image>) -> Self {
        Self(Form::DigestsOf(Arc::clone(image)))
    }
}

impl Deref for SharedNames {
    type Target = [String];

    fn deref(&self) -> &[String] {
        match &self.0 {
            Form::Own(names) => names,
            Form::TagsOf(image) => &image.tags,
            Form::DigestsOf(image) => &image.digests,
        }
    }
}

impl Default for SharedNames {
    fn default() -> Self {
        Self(Form::Own(Arc::default()))
    }
}

impl From<Vec<String>> for SharedNames {
    fn from(names: Vec<String>) -> Self {
        Self(Form::Own(names.into()))
    }
}

impl FromIterator<String> for SharedNames {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Self(Form::Own(names.into_iter().collect()))
    }
}

/// The names alone count, not whose list they are in.
impl PartialEq for SharedNames {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SharedNames {}

impl fmt::Debug for SharedNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Serialize for SharedNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SharedNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}
