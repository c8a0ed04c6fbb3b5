//! What images take on the disk, alone and shared, and what is known of one.

use std::collections::{BTreeSet, HashMap};

use imagelet_core::{
    image::{ByteSize, ImageId},
    runtime::RuntimeError,
};
use serde_json::value::RawValue;

use crate::store::{LayerEntry, Store, storage_error};

/// Disk usage of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUsage {
    /// Total bytes.
    pub total: ByteSize,
    /// Number of layers.
    pub layers: usize,
    /// Each image.
    pub images: Vec<ImageUsage>,
}

/// Disk usage of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageUsage {
    /// The image's id.
    pub id: ImageId,
    /// Bytes of layers and documents.
    pub size: ByteSize,
    /// Bytes that its removal alone would free.
    pub unique: ByteSize,
    /// Bytes shared with other images.
    pub shared: ByteSize,
}

/// The store's record of one image.
#[derive(Clone, Debug)]
pub struct StoredImage {
    /// Digest of the configuration.
    pub id: String,
    /// Digest of the manifest.
    pub manifest: String,
    /// `OS/ARCHITECTURE`
    pub platform: String,
    /// Lowest first.
    pub layers: Vec<LayerEntry>,
    /// Time of the pull, in seconds since 1970.
    pub pulled_at: u64,
    /// The configuration, unchanged.
    pub config: Box<RawValue>,
}

pub(crate) fn usage(store: &Store) -> StoreUsage {
    let graph = store.graph(&BTreeSet::new());
    let mut users: HashMap<&str, u32> = HashMap::new();
    for part in graph.images.keys().filter_map(|id| graph.parts(id)).flatten() {
        *users.entry(&part.id).or_default() += 1;
    }
    let image = |id: &ImageId| {
        let (mut unique, mut shared) = (0, 0);
        for part in graph.parts(id).into_iter().flatten() {
            if users.get(&*part.id).is_some_and(|users| *users > 1) {
                shared += part.bytes.0;
            } else {
                unique += part.bytes.0;
            }
        }
        let (size, unique, shared) = (ByteSize(unique + shared), ByteSize(unique), ByteSize(shared));
        ImageUsage { id: id.clone(), size, unique, shared }
    };
    let images = graph.images.keys().map(image).collect();
    StoreUsage { total: occupied(store), layers: store.layer_count(), images }
}

pub(crate) fn occupied(store: &Store) -> ByteSize {
    ByteSize(store.takes().bytes + store.partial_bytes())
}

pub(crate) fn stored(store: &Store, id: &ImageId) -> Result<Option<StoredImage>, RuntimeError> {
    let Some((record, _)) = store.image(id) else { return Ok(None) };
    let bytes = store
        .image_file(id, "config.json")
        .map_err(|error| storage_error(format!("could not read the configuration of `{id}`"), error))?;
    let config = serde_json::from_slice(&bytes)
        .map_err(|error| storage_error(format!("could not read the configuration of `{id}`"), error.into()))?;
    Ok(Some(StoredImage {
        id: record.id.to_string(),
        manifest: record.manifest.to_string(),
        platform: record.platform,
        layers: record.layers,
        pulled_at: record.pulled_at,
        config,
    }))
}
