//! What images share, block for block: layers, kept blobs and each image's own folder.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
};

use imagelet_core::{
    image::{ByteSize, Digest, ImageId},
    runtime::{Certainty, LayerFacts, LayerGraph},
};

use super::{Store, allocated};
use crate::store::allocated::{Allocated, in_blocks};

/// Folders that an older version wrote without measuring them, and what they were found to take since.
pub(super) type Measured = HashMap<PathBuf, Allocated>;

/// What the index knows of a part: its size, or the folder to measure.
enum Known {
    Allocated(Allocated),
    Folder(PathBuf),
}

impl Store {
    /// The graph of all images; `in_use`: ids whose parts stay whatever goes, as those of mounted images do.
    ///
    /// Measures what an older version left unmeasured, once; blocks on the disk only for that.
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
                        let known = layer
                            .allocated
                            .map_or_else(|| Known::Folder(self.layer_folder(&diff_id)), Known::Allocated);
                        Some((known, index.leases.contains_key(&diff_id)))
                    }));
                    if index.blobs.is_empty() {
                        continue;
                    }
                    own.extend(parts.part(&format!("blob:{}", entry.blob), is_held, |_| {
                        let blob: Digest = entry.blob.parse().ok()?;
                        let size = index.blobs.get(&blob)?;
                        let allocated = Allocated { bytes: in_blocks(*size, block), inodes: 1 };
                        Some((Known::Allocated(allocated), index.written.contains(&blob)))
                    }));
                }
                own.extend(parts.part(&format!("image:{id}"), is_held, |_| {
                    let known = record.allocated.map_or_else(|| Known::Folder(self.image_folder(id)), Known::Allocated);
                    Some((known, false))
                }));
                own.sort_unstable();
                own.dedup();
                graph.images.insert(id.clone(), own);
            }
            // What is whole of a damaged image stays for its repair.
            for (id, image) in &index.damaged {
                let own = image.layers.iter().filter_map(|layer| parts.places.get(layer.as_str()).copied()).collect();
                graph.images.entry(id.clone()).or_insert(own);
            }
        }
        (graph.layers, graph.certainty) = self.measured(parts.all);
        graph
    }

    /// Looks at the folders that nobody has measured yet.
    fn measured(&self, parts: Vec<(LayerFacts, Option<PathBuf>)>) -> (Vec<LayerFacts>, Certainty) {
        let mut known = self.measured.lock().expect("nobody panics while holding it");
        let all = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let mut unknown = 0;
        let mut seen = Measured::new();
        let mut layers = Vec::with_capacity(parts.len());
        for (mut facts, folder) in parts {
            if let Some(folder) = folder {
                let found = known.get(&folder).copied().map_or_else(|| allocated::measure(&folder), Ok);
                match found {
                    Ok(found) => {
                        (facts.bytes, facts.inodes) = (ByteSize(found.bytes), Some(found.inodes));
                        seen.insert(folder, found);
                    }
                    Err(error) => {
                        tracing::warn!(path = %folder.display(), %error, "could not measure what a folder takes");
                        unknown += 1;
                    }
                }
            }
            layers.push(facts);
        }
        // What is gone is forgotten.
        *known = seen;
        let certainty = match unknown {
            0 => Certainty::Exact,
            unknown => Certainty::Partial { measured: all.saturating_sub(unknown), layers: all },
        };
        (layers, certainty)
    }
}

/// The parts found so far.
#[derive(Default)]
struct Parts {
    places: HashMap<String, u32>,
    all: Vec<(LayerFacts, Option<PathBuf>)>,
}

impl Parts {
    /// The place of a part, which is looked up when it is named first. `None`: it is not here.
    fn part(&mut self, id: &str, is_held: bool, look_up: impl FnOnce(&str) -> Option<(Known, bool)>) -> Option<u32> {
        if let Some(place) = self.places.get(id) {
            if is_held && let Some((facts, _)) = self.all.get_mut(usize::try_from(*place).ok()?) {
                facts.held = true;
            }
            return Some(*place);
        }
        let (known, is_leased) = look_up(id)?;
        let (allocated, folder) = match known {
            Known::Allocated(allocated) => (allocated, None),
            Known::Folder(folder) => (Allocated::default(), Some(folder)),
        };
        let place = u32::try_from(self.all.len()).ok()?;
        let facts = LayerFacts {
            id: id.into(),
            bytes: ByteSize(allocated.bytes),
            inodes: Some(allocated.inodes),
            held: is_held || is_leased,
        };
        self.all.push((facts, folder));
        self.places.insert(id.to_owned(), place);
        Some(place)
    }
}
