//! The image list of a store, shared between callers.

use std::{ops::Deref, sync::Arc};

use crate::image::Image;

/// All images of a store. Cheap to clone.
///
/// Until a change, a store returns the same list, or the same images in a new list. So equal lists are compared
/// quickly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing(#[expect(clippy::rc_buffer, reason = "a sole owner takes the images out")] Arc<Vec<Arc<Image>>>);

impl Listing {
    /// The images, for changes and sorting. Copies no image. For the only owner, the list is not copied either.
    pub fn into_images(self) -> Vec<Arc<Image>> {
        Arc::unwrap_or_clone(self.0)
    }
}

impl Deref for Listing {
    type Target = [Arc<Image>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl From<Vec<Arc<Image>>> for Listing {
    fn from(images: Vec<Arc<Image>>) -> Self {
        Self(Arc::new(images))
    }
}

impl FromIterator<Arc<Image>> for Listing {
    fn from_iter<I: IntoIterator<Item = Arc<Image>>>(images: I) -> Self {
        Self(Arc::new(images.into_iter().collect()))
    }
}

impl FromIterator<Image> for Listing {
    fn from_iter<I: IntoIterator<Item = Image>>(images: I) -> Self {
        images.into_iter().map(Arc::new).collect()
    }
}

impl IntoIterator for Listing {
    type Item = Arc<Image>;
    type IntoIter = std::vec::IntoIter<Arc<Image>>;

    fn into_iter(self) -> Self::IntoIter {
        self.into_images().into_iter()
    }
}

impl<'a> IntoIterator for &'a Listing {
    type Item = &'a Arc<Image>;
    type IntoIter = std::slice::Iter<'a, Arc<Image>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
