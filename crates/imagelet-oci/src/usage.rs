//! What images take on the disk, alone and shared, and what is known of one.

use std::collections::HashMap;

use imagelet_core::{
    image::{ByteSize, ImageId},
    runtime::RuntimeError,
};
use serde_json::value::RawValue;

use crate::store::{Held, ImageRecord, LayerEntry, Store, storage_error};

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
    /// When it was pulled, in seconds since 1970.
    pub pulled_at: u64,
    /// The configuration as it came.
    pub config: Box<RawValue>,
}

pub(crate) fn usage(store: &Store) -> StoreUsage {
    let (images, layers) = store.look(|held| (shares(held), held.layers.len()));
    StoreUsage { total: occupied(store), layers, images }
}

fn shares(held: Held<'_>) -> Vec<ImageUsage> {
    let layers: HashMap<&str, u64> = held.layers.iter().map(|(id, layer)| (id.as_str(), layer.disk_bytes)).collect();
    let blobs: HashMap<&str, u64> =
        held.blobs.iter().map(|(blob, size)| (blob.as_str(), held.blob_takes(*size))).collect();
    let contents: Vec<Vec<Content<'_>>> =
        held.images.values().map(|record| content(record, !blobs.is_empty())).collect();
    let mut users: HashMap<Content<'_>, u32> = HashMap::with_capacity(contents.len());
    for part in contents.iter().flatten() {
        *users.entry(*part).or_default() += 1;
    }
    let image = |((id, record), content): ((&ImageId, &ImageRecord), &Vec<Content<'_>>)| {
        let (mut unique, mut shared) = (record.takes(), 0);
        for part in content {
            let size = match part {
                Content::Layer(layer) => layers.get(layer),
                Content::Blob(blob) => blobs.get(blob),
            };
            let size = size.copied().unwrap_or_default();
            if users.get(part).copied().unwrap_or_default() > 1 { shared += size } else { unique += size }
        }
        let (size, unique, shared) = (ByteSize(unique + shared), ByteSize(unique), ByteSize(shared));
        ImageUsage { id: id.clone(), size, unique, shared }
    };
    held.images.iter().zip(&contents).map(image).collect()
}

/// What everything takes.
pub(crate) fn occupied(store: &Store) -> ByteSize {
    ByteSize(store.takes().bytes + store.partial_bytes())
}

/// What images may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Content<'a> {
    Layer(&'a str),
    /// Where it is kept.
    Blob(&'a str),
}

/// What an image has, each once.
fn content(record: &ImageRecord, blobs_are_kept: bool) -> Vec<Content<'_>> {
    let blobs = record.layers.iter().filter(|_| blobs_are_kept).map(|layer| Content::Blob(&layer.blob));
    let mut content: Vec<_> = record.layers.iter().map(|layer| Content::Layer(&layer.diff_id)).chain(blobs).collect();
    content.sort_unstable();
    content.dedup();
    content
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
