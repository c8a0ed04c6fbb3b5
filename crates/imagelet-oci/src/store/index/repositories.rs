//! What is here of one repository, and from which blobs the layers that are here came.

use std::{
    collections::{HashMap, HashSet},
    ops::Bound,
};

use imagelet_core::image::{Digest, ImageId};

use super::Index;
use crate::manifest::Descriptor;
use crate::store::{LayerEntry, Store};

impl Store {
    /// Whether an image is present and has a name in a repository, `HOST/PATH`.
    pub(crate) fn is_named_in(&self, id: &ImageId, repository: &str) -> bool {
        let index = self.index();
        index.images.contains_key(id) && index.images_of(repository).any(|named| named == id)
    }

    /// Whether any image with a name in a repository, damaged or not, has a layer.
    pub(crate) fn has_layer_of(&self, repository: &str, layer: &Digest) -> bool {
        self.index().has_layer_of(repository, layer.as_str())
    }

    /// The blobs whose layers are present, by the records of the images; with `repository`, for pulls from there.
    pub(crate) fn unpacked_blobs(&self, blobs: &HashSet<&Digest>, repository: Option<&str>) -> HashSet<Digest> {
        let wanted: HashSet<&str> = blobs.iter().map(|blob| blob.as_str()).collect();
        let index = self.index();
        let entries = index.images.values().flat_map(|image| &image.layers);
        let here = entries
            .filter(|entry| wanted.contains(entry.blob.as_str()))
            .filter(|entry| entry.diff_id.parse().is_ok_and(|diff_id: Digest| index.layers.contains_key(&diff_id)))
            .filter(|entry| repository.is_none_or(|repository| index.has_layer_of(repository, &entry.diff_id)));
        here.filter_map(|entry| entry.blob.parse().ok()).collect()
    }

    /// The recorded entries of some layers, by diff-id: the descriptor's blob where it is verified, else another blob.
    pub(crate) fn entries_of<'a>(
        &self,
        layers: impl Iterator<Item = (&'a Descriptor, &'a Digest)>,
    ) -> HashMap<Digest, LayerEntry> {
        let wanted: HashMap<&str, (&Digest, &str)> =
            layers.map(|(layer, diff_id)| (diff_id.as_str(), (diff_id, layer.digest.as_str()))).collect();
        let mut found: HashMap<Digest, LayerEntry> = HashMap::new();
        if wanted.is_empty() {
            return found;
        }
        let index = self.index();
        for entry in index.images.values().flat_map(|image| &image.layers).filter(|entry| entry.is_verified()) {
            let Some((diff_id, blob)) = wanted.get(entry.diff_id.as_str()) else { continue };
            if entry.blob == *blob || !found.contains_key(*diff_id) {
                found.insert((*diff_id).clone(), entry.clone());
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

    fn has_layer_of(&self, repository: &str, layer: &str) -> bool {
        self.images_of(repository).any(|id| {
            let whole =
                self.images.get(id).is_some_and(|image| image.layers.iter().any(|entry| entry.diff_id == layer));
            whole || self.damaged.get(id).is_some_and(|image| image.layers.iter().any(|other| other.as_str() == layer))
        })
    }
}
