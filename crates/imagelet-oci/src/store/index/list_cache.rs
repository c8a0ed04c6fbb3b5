//! The image list, built once after each change and returned until the next.

use std::{
    collections::{BTreeSet, HashMap},
    ops::{Deref, DerefMut},
    sync::{Arc, MutexGuard},
};

use imagelet_core::{
    image::{ByteSize, Digest, Image, ImageId, ImageSpec, ImageUser, split_names},
    runtime::Listing,
};

use super::Index;
use crate::store::{
    Store,
    record::{
        ImageRecord, LayerRecord,
        disk_usage::{DiskUsage, in_blocks},
    },
};

/// The index and the values derived from it since the last change.
#[derive(Debug)]
pub(crate) struct CachedIndex {
    index: Index,
    /// Sorted by id. `None`: the index may have changed.
    list: Option<Listing>,
    /// Disk usage of the whole store; `None` as above.
    takes: Option<DiskUsage>,
    block: u64,
}

/// The locked index. A mutable borrow invalidates the derived values.
pub(crate) struct Locked<'a>(MutexGuard<'a, CachedIndex>);

impl CachedIndex {
    pub(crate) fn new(index: Index, block: u64) -> Self {
        Self { index, list: None, takes: None, block }
    }
}

impl<'a> Locked<'a> {
    pub(crate) fn new(guard: MutexGuard<'a, CachedIndex>) -> Self {
        Self(guard)
    }

    pub(crate) fn block(&self) -> u64 {
        self.0.block
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
        (self.0.list, self.0.takes) = (None, None);
        &mut self.0.index
    }
}

impl Store {
    pub(crate) fn listed(&self) -> Listing {
        let mut locked = self.index();
        if let Some(list) = &locked.0.list {
            return list.clone();
        }
        let list = Listing::from(locked.listed(locked.block()));
        locked.0.list = Some(list.clone());
        list
    }

    pub(crate) fn listed_image(&self, id: &ImageId) -> Option<Arc<Image>> {
        let locked = self.index();
        match &locked.0.list {
            Some(list) => list.binary_search_by(|image| image.id.cmp(id)).ok().map(|at| Arc::clone(&list[at])),
            // A single lookup is cheaper than building the list.
            None => locked
                .images
                .get(id)
                .map(|record| Arc::new(locked.image(id, record, &locked.names_of(id), locked.block()))),
        }
    }

    pub(crate) fn takes(&self) -> DiskUsage {
        let mut locked = self.index();
        if let Some(takes) = locked.0.takes {
            return takes;
        }
        let takes = Index::takes(&locked, locked.block());
        locked.0.takes = Some(takes);
        takes
    }
}

impl Index {
    fn listed(&self, block: u64) -> Vec<Arc<Image>> {
        let mut names: HashMap<&ImageId, Vec<&str>> = HashMap::with_capacity(self.images.len());
        for (name, id) in &self.names {
            names.entry(id).or_default().push(name);
        }
        let images = self.images.iter();
        let image = |(id, record): (&ImageId, &ImageRecord)| {
            Arc::new(self.image(id, record, &names.remove(id).unwrap_or_default(), block))
        };
        images.map(image).collect()
    }

    fn image<N: AsRef<str>>(&self, id: &ImageId, record: &ImageRecord, names: &[N], block: u64) -> Image {
        let layers = record.layers.iter().filter_map(|layer| self.layers.get(&layer.diff_id.parse::<Digest>().ok()?));
        let layers: u64 = layers.map(|layer| layer.disk_bytes).sum();
        let (tags, digests) = split_names(names.iter().map(AsRef::as_ref));
        Image {
            id: id.clone(),
            tags,
            digests,
            size: ByteSize(layers + self.blob_bytes(record, block) + record.takes().bytes),
            user: ImageUser::of_config(&record.user),
            spec: ImageSpec::default(),
            pinned: false,
        }
    }

    fn takes(&self, block: u64) -> DiskUsage {
        let blobs = self.blobs.values().map(|size| DiskUsage { bytes: in_blocks(*size, block), inodes: 1 });
        let layers = self.layers.values().map(LayerRecord::takes);
        let images = self.images.values().map(ImageRecord::takes);
        layers.chain(images).chain(blobs).fold(DiskUsage::default(), |sum, one| DiskUsage {
            bytes: sum.bytes + one.bytes,
            inodes: sum.inodes + one.inodes,
        })
    }

    fn blob_bytes(&self, image: &ImageRecord, block: u64) -> u64 {
        if self.blobs.is_empty() {
            return 0;
        }
        let blobs: BTreeSet<Digest> = image.layers.iter().filter_map(|layer| layer.blob.parse().ok()).collect();
        blobs.iter().filter_map(|digest| self.blobs.get(digest)).map(|size| in_blocks(*size, block)).sum()
    }
}
