//! The list of images, built once after each change, and the parts that images share: layers, kept blobs, own folders.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, MutexGuard},
};

use imagelet_core::{
    image::{ByteSize, Digest, Image, ImageId, ImageSpec, ImageUser, split_names},
    ports::{Certainty, LayerFacts, LayerGraph, Listing, PulledLayer},
};

use super::Index;
use crate::{
    store::{
        Store,
        record::{ImageRecord, folder_usage::in_blocks},
    },
    unpack::DiskUsage,
};

/// The locked index. A mutable borrow invalidates the cached list of images.
pub(crate) struct Locked<'a>(pub(crate) MutexGuard<'a, Index>);

impl Deref for Locked<'_> {
    type Target = Index;

    fn deref(&self) -> &Index {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Index {
        self.0.list = None;
        &mut self.0
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

    pub(crate) fn graph(&self, in_use: &BTreeSet<ImageId>) -> LayerGraph {
        let index = self.index();
        let mut graph = LayerGraph { certainty: Certainty::Exact, ..LayerGraph::default() };
        let mut places: HashMap<PartKey<'_>, usize> = HashMap::new();
        let number = |place: usize| u32::try_from(place).expect("fewer parts than 2^32");
        for (id, record) in &index.images {
            let mut own = Vec::with_capacity(record.pulled.layers.len() + 1);
            for (key, usage) in index.parts(id, record) {
                let place = *places.entry(key).or_insert_with(|| {
                    graph.layers.push(LayerFacts {
                        id: key.to_string().into(),
                        bytes: ByteSize(usage.bytes),
                        inodes: Some(usage.inodes),
                        held: matches!(key, PartKey::Layer(layer) if index.unfinished.leases.contains_key(layer)),
                        folder: None,
                    });
                    graph.layers.len() - 1
                });
                graph.layers[place].held |= in_use.contains(id);
                own.push(number(place));
            }
            own.sort_unstable();
            graph.images.insert(id.clone(), own);
        }
        // A damaged image has a place in the graph, because the store keeps its undamaged layers for a repair.
        for (id, image) in &index.damaged {
            let places = image.layers.iter().filter_map(|layer| places.get(&PartKey::Layer(layer)));
            graph.images.entry(id.clone()).or_insert_with(|| places.map(|place| number(*place)).collect());
        }
        graph
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
                size: self.parts(id, record).iter().map(|(_, usage)| ByteSize(usage.bytes)).sum(),
                user: ImageUser::of_config(&record.user),
                spec: ImageSpec::default(),
                pinned: false,
                artifact: record.artifact().map(Arc::new),
            })
        };
        self.images.iter().map(image).collect()
    }

    fn parts<'a>(&'a self, id: &'a ImageId, record: &'a ImageRecord) -> Vec<(PartKey<'a>, DiskUsage)> {
        let mut parts = Vec::with_capacity(record.pulled.layers.len() + 1);
        parts.push((PartKey::Image(id), record.allocated));
        for PulledLayer { diff_id, blob, .. } in &record.pulled.layers {
            parts.extend(self.layers.get(diff_id).map(|layer| (PartKey::Layer(diff_id), layer.allocated)));
            let blob = blob.as_ref().and_then(|blob| Some((blob, *self.blobs.get(blob)?)));
            let usage = |size| DiskUsage { bytes: in_blocks(size, self.block), inodes: 1 };
            parts.extend(blob.map(|(blob, size)| (PartKey::Blob(blob), usage(size))));
        }
        parts.sort_unstable_by_key(|(key, _)| *key);
        parts.dedup_by_key(|(key, _)| *key);
        parts
    }
}

/// The key of a layer, of a kept blob, or of an image's own folder: each is removed as a unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PartKey<'a> {
    Layer(&'a Digest),
    Blob(&'a Digest),
    Image(&'a ImageId),
}

impl fmt::Display for PartKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(diff_id) => write!(f, "{diff_id}"),
            Self::Blob(digest) => write!(f, "blob:{digest}"),
            Self::Image(id) => write!(f, "image:{id}"),
        }
    }
}
