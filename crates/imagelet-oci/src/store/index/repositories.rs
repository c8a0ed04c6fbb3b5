//! The present layers of one repository, and the blobs that the layers were unpacked from.

use std::{
    collections::{HashMap, HashSet},
    ops::Bound,
};

use imagelet_core::{
    image::{Digest, ImageId},
    ports::PulledLayer,
};

use super::Index;
use crate::manifest::Descriptor;
use crate::store::Store;

impl Store {
    pub(crate) fn is_named_in(&self, id: &ImageId, repository: &str) -> bool {
        let index = self.index();
        index.images.contains_key(id) && index.images_of(repository).any(|named| named == id)
    }

    pub(crate) fn has_layer_of(&self, repository: &str, layer: &Digest) -> bool {
        let index = self.index();
        index.images_of(repository).any(|id| {
            index.images.get(id).is_some_and(|image| image.diff_ids().any(|other| other == layer))
                || index.damaged.get(id).is_some_and(|image| image.layers.contains(layer))
        })
    }

    pub(crate) fn unpacked_blobs(&self, blobs: &HashSet<&Digest>) -> HashSet<Digest> {
        let index = self.index();
        let entries = index.images.values().flat_map(|image| &image.pulled.layers);
        let present = entries.filter(|entry| index.layers.contains_key(&entry.diff_id));
        present.filter_map(|entry| entry.blob.as_ref().filter(|blob| blobs.contains(*blob))).cloned().collect()
    }

    /// The image records' entries of layers, by diff-id. An entry with the descriptor's blob takes precedence.
    pub(crate) fn entries_of<'a>(
        &self,
        layers: impl Iterator<Item = (&'a Descriptor, &'a Digest)>,
    ) -> HashMap<Digest, PulledLayer> {
        let wanted: HashMap<&Digest, &Digest> = layers.map(|(layer, diff_id)| (diff_id, &layer.digest)).collect();
        let mut found: HashMap<Digest, PulledLayer> = HashMap::new();
        for entry in self.index().images.values().flat_map(|image| &image.pulled.layers) {
            let Some((blob, wanted)) = entry.blob.as_ref().zip(wanted.get(&entry.diff_id)) else { continue };
            if blob == *wanted || !found.contains_key(&entry.diff_id) {
                found.insert(entry.diff_id.clone(), entry.clone());
            }
        }
        found
    }
}

impl Index {
    fn images_of(&self, repository: &str) -> impl Iterator<Item = &ImageId> {
        let from = self.names.range::<str, _>((Bound::Included(repository), Bound::Unbounded));
        let names = from.map_while(move |(name, id)| Some((name.strip_prefix(repository)?, id)));
        names.filter(|(rest, _)| rest.starts_with([':', '@'])).map(|(_, id)| id)
    }
}
