//! What images share, block for block: layers, kept blobs and each image's own folder.

use std::collections::{BTreeSet, HashMap};

use imagelet_core::{
    image::{ByteSize, Digest, ImageId},
    runtime::{Certainty, LayerFacts, LayerGraph},
};

use crate::store::{
    Store,
    record::disk_usage::{DiskUsage, in_blocks},
};

impl Store {
    /// The graph of all images. The parts of `in_use` images, such as mounted ones, stay after a removal.
    pub(crate) fn graph(&self, in_use: &BTreeSet<ImageId>) -> LayerGraph {
        let mut parts = Parts::default();
        let mut graph = LayerGraph::default();
        {
            let index = self.index();
            let block = index.block();
            for (id, record) in &index.images {
                let is_held = in_use.contains(id);
                let mut own = Vec::with_capacity(record.layers.len() + 1);
                for entry in &record.layers {
                    own.extend(parts.part(&entry.diff_id, is_held, |diff_id| {
                        let diff_id: Digest = diff_id.parse().ok()?;
                        let layer = index.layers.get(&diff_id)?;
                        Some((layer.takes(), index.leases.contains_key(&diff_id)))
                    }));
                    if index.blobs.is_empty() {
                        continue;
                    }
                    own.extend(parts.part(&format!("blob:{}", entry.blob), is_held, |_| {
                        let blob: Digest = entry.blob.parse().ok()?;
                        let size = index.blobs.get(&blob)?;
                        let allocated = DiskUsage { bytes: in_blocks(*size, block), inodes: 1 };
                        Some((allocated, index.written.contains(&blob)))
                    }));
                }
                own.extend(parts.part(&format!("image:{id}"), is_held, |_| Some((record.takes(), false))));
                own.sort_unstable();
                own.dedup();
                graph.images.insert(id.clone(), own);
            }
            // The whole parts of a damaged image stay for its repair.
            for (id, image) in &index.damaged {
                let own = image.layers.iter().filter_map(|layer| parts.places.get(layer.as_str()).copied()).collect();
                graph.images.entry(id.clone()).or_insert(own);
            }
        }
        LayerGraph { layers: parts.all, certainty: Certainty::Exact, ..graph }
    }
}

#[derive(Default)]
struct Parts {
    places: HashMap<String, u32>,
    all: Vec<LayerFacts>,
}

impl Parts {
    /// The index of a part, added at its first use. `None`: the part is absent.
    fn part(
        &mut self,
        id: &str,
        is_held: bool,
        look_up: impl FnOnce(&str) -> Option<(DiskUsage, bool)>,
    ) -> Option<u32> {
        if let Some(place) = self.places.get(id) {
            if is_held && let Some(facts) = self.all.get_mut(usize::try_from(*place).ok()?) {
                facts.held = true;
            }
            return Some(*place);
        }
        let (allocated, is_leased) = look_up(id)?;
        let place = u32::try_from(self.all.len()).ok()?;
        let facts = LayerFacts {
            id: id.into(),
            bytes: ByteSize(allocated.bytes),
            inodes: Some(allocated.inodes),
            held: is_held || is_leased,
        };
        self.all.push(facts);
        self.places.insert(id.to_owned(), place);
        Some(place)
    }
}
