//! The image list, built once after each change and returned until the next.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, MutexGuard},
};

use imagelet_core::{
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser, split_names},
    runtime::Listing,
};

use super::Index;
use crate::store::{
    Store,
    record::{
        ImageRecord,
        disk_usage::{DiskUsage, in_blocks},
    },
};

/// The index, and the list made from it since the last change.
pub(crate) struct CachedIndex {
    index: Index,
    /// Sorted by id. `None`: the index may have changed.
    list: Option<Listing>,
}

/// The locked index. A mutable borrow invalidates the list.
pub(crate) struct Locked<'a>(MutexGuard<'a, CachedIndex>);

impl CachedIndex {
    pub(crate) fn new(index: Index) -> Self {
        Self { index, list: None }
    }
}

impl<'a> Locked<'a> {
    pub(crate) fn new(guard: MutexGuard<'a, CachedIndex>) -> Self {
        Self(guard)
    }
}

impl Deref for Locked<'_> {
    type Target = Index;

    fn deref(&self) -> &Index {
        &self.0.index
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Index {
        self.0.list = None;
        &mut self.0.index
    }
}

impl Store {
    pub(crate) fn listed(&self) -> Listing {
        let mut locked = self.index();
        if let Some(list) = &locked.0.list {
            return list.clone();
        }
        let list = Listing::from(locked.listed());
        locked.0.list = Some(list.clone());
        list
    }

    pub(crate) fn listed_image(&self, id: &ImageId) -> Option<Arc<Image>> {
        let list = self.listed();
        list.binary_search_by(|image| image.id.cmp(id)).ok().map(|at| Arc::clone(&list[at]))
    }

    pub(crate) fn takes(&self) -> DiskUsage {
        let index = self.index();
        let blobs = index.blobs.values().map(|size| DiskUsage { bytes: in_blocks(*size, index.block), inodes: 1 });
        let layers = index.layers.values().map(|layer| layer.allocated);
        let images = index.images.values().map(|image| image.allocated);
        layers.chain(images).chain(blobs).fold(DiskUsage::default(), |sum, one| DiskUsage {
            bytes: sum.bytes + one.bytes,
            inodes: sum.inodes + one.inodes,
        })
    }
}

impl Index {
    fn listed(&self) -> Vec<Arc<Image>> {
        let mut names = self.names_by_image();
        let image = |(id, record): (&ImageId, &ImageRecord)| {
            let (tags, digests) = split_names(names.remove(id).unwrap_or_default());
            Arc::new(Image {
                id: id.clone(),
                tags,
                digests,
                size: self.parts(id, record).iter().map(|part| ByteSize(part.usage.bytes)).sum(),
                user: ImageUser::of_config(&record.user),
                spec: ImageSpec::default(),
                pinned: false,
            })
        };
        self.images.iter().map(image).collect()
    }
}
