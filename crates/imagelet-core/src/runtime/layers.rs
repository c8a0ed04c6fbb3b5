//! What images share: the parts they are made of, and what each part takes on the disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use async_trait::async_trait;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::RuntimeError;
use crate::image::{ByteSize, ImageId};

/// Reads the layer graph of a runtime whose [`super::ImageService`] has none, as CRI has none.
#[async_trait]
pub trait LayerSource: Send + Sync + fmt::Debug {
    /// Reads which images share which parts, and the size of each part. `None`: this runtime does not offer them.
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError>;
}

/// Which image is made of which parts: a part goes with the last image that has it.
///
/// A part is whatever is freed as one: an unpacked layer, a kept blob, the documents of one image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerGraph {
    /// The parts; images name them by their place in this list.
    pub layers: Vec<LayerFacts>,
    /// The parts of each image, each once; an image that is not here is not known.
    pub images: BTreeMap<ImageId, Vec<u32>>,
    /// How far the sizes can be trusted.
    pub certainty: Certainty,
}

/// One part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerFacts {
    /// What names it in its store.
    #[serde(serialize_with = "write_text", deserialize_with = "read_text")]
    pub id: Arc<str>,
    /// What the disk has again once it is gone: allocated blocks, of all that goes with it.
    pub bytes: ByteSize,
    /// Inodes that come free with it; `None`: not known.
    pub inodes: Option<u64>,
    /// Something else than an image keeps it, as a running pull does: it stays whatever goes.
    #[serde(default)]
    pub held: bool,
}

/// How far the sizes in a graph can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// Every block was counted when the parts were written.
    Exact,
    /// Some parts were counted; the size of the others is not known, and they count as far as it is.
    Partial {
        /// Parts whose size was measured.
        measured: u32,
        /// All parts.
        layers: u32,
    },
    /// What the runtime says; it may count packed bytes, or shared ones several times.
    #[default]
    Claimed,
}

impl LayerGraph {
    /// The parts of an image that are in the list; `None`: the image is not known.
    pub fn parts(&self, image: &ImageId) -> Option<impl Iterator<Item = &LayerFacts>> {
        let parts = self.images.get(image)?;
        Some(parts.iter().filter_map(|part| self.layers.get(usize::try_from(*part).ok()?)))
    }

    /// What the disk has again when these images go together: parts that no other image has and nothing else holds.
    pub fn freed_by<'a>(&self, images: impl IntoIterator<Item = &'a ImageId>) -> Freed {
        let gone: BTreeSet<&ImageId> = images.into_iter().collect();
        let mut stays = vec![false; self.layers.len()];
        for (_, parts) in self.images.iter().filter(|(id, _)| !gone.contains(id)) {
            for part in parts {
                if let Some(stays) = usize::try_from(*part).ok().and_then(|part| stays.get_mut(part)) {
                    *stays = true;
                }
            }
        }
        let mut freed = Freed::default();
        for part in gone.iter().filter_map(|image| self.images.get(*image)).flatten() {
            let Ok(part) = usize::try_from(*part) else { continue };
            let (Some(stays), Some(facts)) = (stays.get_mut(part), self.layers.get(part)) else { continue };
            // Once counted, it does not come free again.
            if !std::mem::replace(stays, true) && !facts.held {
                freed.bytes = freed.bytes + facts.bytes;
                freed.inodes = freed.inodes.saturating_add(facts.inodes_expected());
            }
        }
        freed
    }
}

impl LayerGraph {
    /// What comes free with each image when they go one after the other; `None` frees nothing.
    pub fn freed_in_order(&self, images: &[Option<&ImageId>]) -> Vec<Freed> {
        let mut users = vec![0_u32; self.layers.len()];
        let in_list = |part: &u32| usize::try_from(*part).ok().filter(|part| *part < self.layers.len());
        for part in self.images.values().flatten().filter_map(in_list) {
            users[part] += 1;
        }
        let mut gone = BTreeSet::new();
        let mut frees = Vec::with_capacity(images.len());
        for image in images {
            let mut freed = Freed::default();
            let image = image.filter(|image| gone.insert(*image));
            for part in image.and_then(|image| self.images.get(image)).into_iter().flatten().filter_map(in_list) {
                users[part] -= 1;
                let layer = &self.layers[part];
                if users[part] == 0 && !layer.held {
                    freed = freed.plus(Freed { bytes: layer.bytes, inodes: layer.inodes_expected() });
                }
            }
            frees.push(freed);
        }
        frees
    }

    /// What each image has alone and what it shares, whatever else keeps its parts.
    pub fn shares(&self) -> BTreeMap<&ImageId, LayerShare> {
        let part = |part: &u32| usize::try_from(*part).ok();
        let mut users = vec![0_u32; self.layers.len()];
        for part in self.images.values().flatten().filter_map(part) {
            if let Some(users) = users.get_mut(part) {
                *users = users.saturating_add(1);
            }
        }
        let share = |parts: &Vec<u32>| {
            let mut share = LayerShare::default();
            for (layer, users) in parts.iter().filter_map(part).filter_map(|at| self.layers.get(at).zip(users.get(at)))
            {
                let sum = if *users > 1 { &mut share.shared } else { &mut share.unique };
                *sum = *sum + layer.bytes;
            }
            share
        };
        self.images.iter().map(|(id, parts)| (id, share(parts))).collect()
    }

    /// What all images take together, each part once.
    pub fn total(&self) -> ByteSize {
        let used: BTreeSet<usize> =
            self.images.values().flatten().filter_map(|part| usize::try_from(*part).ok()).collect();
        used.into_iter().filter_map(|part| self.layers.get(part)).map(|layer| layer.bytes).sum()
    }
}

impl Freed {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, inodes: self.inodes.saturating_add(other.inodes) }
    }

    /// What is left, or nothing.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), inodes: self.inodes.saturating_sub(other.inodes) }
    }

    /// The smaller of each.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), inodes: self.inodes.min(other.inodes) }
    }

    /// Whether this is at least as much of both.
    pub fn meets(self, wanted: Self) -> bool {
        self.bytes >= wanted.bytes && self.inodes >= wanted.inodes
    }

    /// Whether it is nothing of either.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl LayerFacts {
    /// Inodes that come free with it; where nobody counted, one for each 16 KiB, as file systems are made for.
    pub fn inodes_expected(&self) -> u64 {
        const BYTES_PER_INODE: u64 = 16 << 10;
        self.inodes.unwrap_or((self.bytes.0 / BYTES_PER_INODE).max(1))
    }
}

/// What a disk has again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freed {
    /// Bytes.
    pub bytes: ByteSize,
    /// Inodes; where nobody counted, as [`LayerFacts::inodes_expected`] expects.
    pub inodes: u64,
}

/// What one image takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerShare {
    /// Bytes of the parts that no other image has.
    pub unique: ByteSize,
    /// Bytes of the parts that other images have, too.
    pub shared: ByteSize,
}

impl Certainty {
    /// The stable word for machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Partial { .. } => "partial",
            Self::Claimed => "claimed",
        }
    }
}

impl fmt::Display for Certainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Partial { measured, layers } => write!(f, "partial ({measured} of {layers} layers measured)"),
            Self::Claimed => f.write_str("as the runtime claims"),
        }
    }
}

fn write_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn read_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    String::deserialize(deserializer).map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(sizes: &[u64], images: &[(&str, &[u32])]) -> LayerGraph {
        let facts = |(place, size): (usize, &u64)| LayerFacts {
            id: format!("layer-{place}").into(),
            bytes: ByteSize(*size),
            inodes: Some(1),
            held: false,
        };
        LayerGraph {
            layers: sizes.iter().enumerate().map(facts).collect(),
            images: images.iter().map(|(id, parts)| (ImageId::new(id), parts.to_vec())).collect(),
            certainty: Certainty::Exact,
        }
    }

    #[test]
    fn a_part_comes_free_with_the_last_image_that_has_it() {
        let graph = graph(&[100, 10, 1], &[("a", &[0]), ("b", &[0, 1]), ("c", &[0, 1, 2])]);
        let freed = |ids: &[&str]| {
            let ids: Vec<ImageId> = ids.iter().map(ImageId::new).collect();
            let freed = graph.freed_by(&ids);
            (freed.bytes.0, freed.inodes)
        };
        assert_eq!(freed(&["a"]), (0, 0));
        assert_eq!(freed(&["c"]), (1, 1));
        assert_eq!(freed(&["b", "c"]), (11, 2));
        assert_eq!(freed(&["c", "b", "a", "a", "unknown"]), (111, 3));
    }

    #[test]
    fn one_after_the_other_they_free_what_they_free_together() {
        let graph = graph(&[100, 10, 1], &[("a", &[0]), ("b", &[0, 1]), ("c", &[0, 1, 2])]);
        let ids: Vec<ImageId> = ["c", "a", "b"].iter().map(ImageId::new).collect();
        let order = [Some(&ids[0]), None, Some(&ids[1]), Some(&ids[0]), Some(&ids[2])];
        let freed: Vec<u64> = graph.freed_in_order(&order).into_iter().map(|freed| freed.bytes.0).collect();
        assert_eq!(freed, [1, 0, 0, 0, 110]);
    }

    #[test]
    fn an_image_has_parts_of_its_own_and_parts_that_it_shares() {
        let mut graph = graph(&[100, 10, 1, 7], &[("a", &[0]), ("b", &[0, 1]), ("c", &[0, 1, 2, 9])]);
        graph.layers[2].held = true;
        let shares: Vec<_> =
            graph.shares().into_iter().map(|(id, share)| (id.as_str(), share.unique.0, share.shared.0)).collect();
        assert_eq!(shares, [("a", 0, 100), ("b", 0, 110), ("c", 1, 110)]);
        assert_eq!(graph.total(), ByteSize(111), "the fourth part is of no image");
    }

    #[test]
    fn what_a_pull_holds_and_what_is_out_of_the_list_frees_nothing() {
        let mut graph = graph(&[100, 10], &[("a", &[0, 1, 7])]);
        graph.layers[0].held = true;
        assert_eq!(graph.freed_by(&[ImageId::new("a")]).bytes, ByteSize(10));
        assert_eq!(graph.parts(&ImageId::new("a")).map(Iterator::count), Some(2));
        assert!(graph.parts(&ImageId::new("b")).is_none());
    }

    #[test]
    fn a_graph_reads_back_what_it_wrote() {
        let graph = graph(&[100, 10], &[("a", &[0, 1]), ("b", &[1])]);
        let text = serde_json::to_string(&graph).expect("writes");
        assert_eq!(serde_json::from_str::<LayerGraph>(&text).expect("reads"), graph);
    }
}
