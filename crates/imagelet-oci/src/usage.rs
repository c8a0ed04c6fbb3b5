//! What images take on the disk, alone and shared, and what is known of one.

use std::collections::HashMap;

use imagelet_core::{
    image::{ByteSize, Digest, ImageId},
    runtime::RuntimeError,
};
use serde::Serialize;

use crate::store::{LayerEntry, Store, storage_error};

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
pub struct ImageDetails {
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
    let images: Vec<_> = store.images().into_iter().map(|(record, _)| (record.diff_ids(), record)).collect();
    let mut users: HashMap<&Digest, usize> = HashMap::new();
    for (diff_ids, _) in &images {
        let mut once = diff_ids.iter().collect::<Vec<_>>();
        once.sort();
        once.dedup();
        for layer in once {
            *users.entry(layer).or_default() += 1;
        }
    }
    let mut report = Vec::new();
    for (diff_ids, record) in &images {
        let mut once = diff_ids.iter().collect::<Vec<_>>();
        once.sort();
        once.dedup();
        let (mut unique, mut shared) = (record.metadata_size, 0);
        for layer in once {
            let size = layers.get(layer).copied().unwrap_or_default();
            if users.get(layer).copied().unwrap_or_default() > 1 { shared += size } else { unique += size }
        }
        report.push(ImageUsage {
            id: record.image_id(),
            size: ByteSize(unique + shared),
            unique: ByteSize(unique),
            shared: ByteSize(shared),
        });
    }
    let documents: u64 = images.iter().map(|(_, record)| record.metadata_size).sum();
    StoreUsage { total: ByteSize(layers.values().sum::<u64>() + documents), layers: layers.len(), images: report }
}

pub(crate) fn details(store: &Store, id: &ImageId) -> Result<Option<ImageDetails>, RuntimeError> {
    let Some((record, _)) = store.image(id) else { return Ok(None) };
    let bytes = store
        .image_file(id, "config.json")
        .map_err(|error| storage_error(format!("could not read the configuration of `{id}`"), error))?;
    let config = serde_json::from_slice(&bytes)
        .map_err(|error| storage_error(format!("could not read the configuration of `{id}`"), error.into()))?;
    Ok(Some(ImageDetails {
        id: record.id,
        manifest: record.manifest,
        platform: record.platform,
        layers: record.layers,
        pulled_at: record.pulled_at,
        config,
    }))
}
