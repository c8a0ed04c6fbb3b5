//! What images take on the disk, alone and shared, and what is known of one.

use std::collections::{BTreeSet, HashMap};

use imagelet_core::{
    image::{ByteSize, Digest, ImageId},
    runtime::RuntimeError,
};
use serde::Serialize;

use crate::store::{ImageRecord, LayerEntry, Store, storage_error};

/// What a store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of everything.
    pub total: ByteSize,
    /// Layers.
    pub layers: usize,
    /// Each image.
    pub images: Vec<ImageUsage>,
}

/// What an image takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageUsage {
    /// Which.
    pub id: ImageId,
    /// Its layers and documents.
    pub size: ByteSize,
    /// What its removal alone would free.
    pub unique: ByteSize,
    /// What other images need as well.
    pub shared: ByteSize,
}

/// Everything the store knows of one image.
#[derive(Clone, Debug, Serialize)]
pub struct StoredImage {
    /// Digest of the configuration.
    pub id: String,
    /// Digest of the manifest.
    pub manifest: String,
    /// `OS/ARCHITECTURE`
    pub platform: String,
    /// Lowest first.
    pub layers: Vec<LayerEntry>,
    /// When it was pulled, in seconds since 1970.
    pub pulled_at: u64,
    /// The configuration as it came.
    pub config: serde_json::Value,
}

pub(crate) fn usage(store: &Store) -> StoreUsage {
    let layers: HashMap<Digest, u64> =
        store.layers().into_iter().filter_map(|layer| Some((layer.diff_id.parse().ok()?, layer.disk_bytes))).collect();
    let blobs: HashMap<Digest, u64> = store.blobs().into_iter().collect();
    let images: Vec<_> = store.images().into_iter().map(|(record, _)| (content(&record), record)).collect();
    let mut users: HashMap<&Content, usize> = HashMap::new();
    for content in images.iter().flat_map(|(content, _)| content) {
        *users.entry(content).or_default() += 1;
    }
    let mut report = Vec::new();
    for (content, record) in &images {
        let (mut unique, mut shared) = (record.metadata_size, 0);
        for part in content {
            let size = match part {
                Content::Layer(layer) => layers.get(layer),
                Content::Blob(blob) => blobs.get(blob),
            };
            let size = size.copied().unwrap_or_default();
            if users.get(part).copied().unwrap_or_default() > 1 { shared += size } else { unique += size }
        }
        report.push(ImageUsage {
            id: record.image_id(),
            size: ByteSize(unique + shared),
            unique: ByteSize(unique),
            shared: ByteSize(shared),
        });
    }
    StoreUsage { total: occupied(store), layers: layers.len(), images: report }
}

/// What everything takes.
pub(crate) fn occupied(store: &Store) -> ByteSize {
    ByteSize(store.takes().bytes + store.partial_bytes())
}

/// What images may share.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Content {
    Layer(Digest),
    /// Where it is kept.
    Blob(Digest),
}

/// What an image has, each once.
fn content(record: &ImageRecord) -> BTreeSet<Content> {
    let blobs = record.layers.iter().filter_map(|layer| layer.blob.parse().ok());
    record.diff_ids().into_iter().map(Content::Layer).chain(blobs.map(Content::Blob)).collect()
}

pub(crate) fn stored(store: &Store, id: &ImageId) -> Result<Option<StoredImage>, RuntimeError> {
    let Some((record, _)) = store.image(id) else { return Ok(None) };
    let bytes = store
        .image_file(id, "config.json")
        .map_err(|error| storage_error(format!("could not read the configuration of `{id}`"), error))?;
    let config = serde_json::from_slice(&bytes)
        .map_err(|error| storage_error(format!("could not read the configuration of `{id}`"), error.into()))?;
    Ok(Some(StoredImage {
        id: record.id,
        manifest: record.manifest,
        platform: record.platform,
        layers: record.layers,
        pulled_at: record.pulled_at,
        config,
    }))
}
