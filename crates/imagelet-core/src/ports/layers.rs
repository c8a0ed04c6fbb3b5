//! The parts that images share, and the disk space of each part.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;

use crate::error::RuntimeError;
use crate::image::{Artifact, ByteSize, ImageId, counted};

/// Reads the layers and artifacts of a runtime, which its [`super::ImageService`] cannot report over CRI.
#[async_trait]
pub trait LayerSource: Send + Sync + fmt::Debug {
    /// The parts of all images. `None`: the runtime does not report parts and their sizes.
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError>;

    /// Finds the artifacts among listed images. After a failure, returns only the artifacts that were found earlier.
    async fn artifacts(&self, _listed: &[&ImageId]) -> HashMap<ImageId, Arc<Artifact>> {
        HashMap::new()
    }
}

/// The parts of each image. A part is an unpacked layer, a stored blob, or the documents of one image. A part is
/// removed as a whole, with its last image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerGraph {
    /// The parts. Images refer to a part by its index.
    pub layers: Vec<LayerFacts>,
    /// The parts of each image, each part once. An image that is not in the map is unknown.
    pub images: BTreeMap<ImageId, Vec<u32>>,
    pub certainty: Certainty,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerFacts {
    pub id: Arc<str>,
    /// The allocated bytes that the part's removal frees.
    pub bytes: ByteSize,
    /// The inodes that the part's removal frees. `None`: unknown.
    pub inodes: Option<u64>,
    /// `true`: no removal of images frees the part, because for example a running pull or a mount uses it.
    pub held: bool,
    /// The folder of the part, if the part may be on another file system than other parts.
    pub folder: Option<Arc<Path>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Certainty {
    /// Every block was counted when the parts were written.
    Exact,
    /// Some parts were measured. The size of the other parts is unknown or partly known.
    Partial { measured: u32, layers: u32 },
    /// The runtime reports the sizes. They may be compressed, or may include shared bytes several times.
    #[default]
    Claimed,
}

impl LayerGraph {
    pub fn parts(&self, image: &ImageId) -> Option<impl Iterator<Item = &LayerFacts>> {
        let parts = self.images.get(image)?;
        Some(parts.iter().filter_map(|part| self.part(*part)))
    }

    pub fn freed_by<'a>(&self, images: impl IntoIterator<Item = &'a ImageId>) -> Freed {
        let images: Vec<_> = images.into_iter().map(Some).collect();
        self.freed_in_order(&images).into_iter().fold(Freed::default(), Freed::plus)
    }

    /// For each image, the disk space that its removal frees after the removals before it. `None` frees nothing.
    pub(crate) fn freed_in_order(&self, images: &[Option<&ImageId>]) -> Vec<Freed> {
        let mut users = self.users();
        let mut removed = BTreeSet::new();
        let mut frees = Vec::with_capacity(images.len());
        for image in images {
            let image = image.filter(|image| removed.insert(*image));
            let mut freed = Freed::default();
            for part in image.and_then(|image| self.images.get(image)).into_iter().flatten() {
                let Some((layer, users)) = self.part(*part).zip(users.get_mut(*part as usize)) else { continue };
                *users -= 1;
                if *users == 0 && !layer.held {
                    freed = freed.plus(Freed { bytes: layer.bytes, inodes: layer.inodes_expected() });
                }
            }
            frees.push(freed);
        }
        frees
    }

    pub(crate) fn folders(&self) -> BTreeSet<Arc<Path>> {
        self.layers.iter().filter_map(|layer| layer.folder.clone()).collect()
    }

    /// The graph of one file system. The parts in `elsewhere`, the folders on other file systems, count as empty.
    #[must_use]
    pub(crate) fn without(mut self, elsewhere: &BTreeSet<Arc<Path>>) -> Self {
        let is_elsewhere = |layer: &LayerFacts| layer.folder.as_ref().is_some_and(|folder| elsewhere.contains(folder));
        for layer in self.layers.iter_mut().filter(|layer| is_elsewhere(layer)) {
            (layer.bytes, layer.inodes) = (ByteSize::ZERO, Some(0));
        }
        self
    }

    /// The unique and shared bytes of each image. A part is shared if several images have it. Pulls and mounts do not
    /// count.
    pub fn shares(&self) -> BTreeMap<&ImageId, LayerShare> {
        let users = self.users();
        let share = |parts: &Vec<u32>| {
            let mut share = LayerShare::default();
            for (layer, users) in parts.iter().filter_map(|part| self.part(*part).zip(users.get(*part as usize))) {
                let sum = if *users > 1 { &mut share.shared } else { &mut share.unique };
                *sum = *sum + layer.bytes;
            }
            share
        };
        self.images.iter().map(|(id, parts)| (id, share(parts))).collect()
    }

    pub fn total(&self) -> ByteSize {
        self.total_of(self.images.keys())
    }

    /// The bytes of these images, each part once.
    pub fn total_of<'a>(&self, images: impl IntoIterator<Item = &'a ImageId>) -> ByteSize {
        let mut seen = vec![false; self.layers.len()];
        let parts = images.into_iter().filter_map(|image| self.images.get(image)).flatten();
        let new = parts.filter(|part| seen.get_mut(**part as usize).is_some_and(|seen| !std::mem::replace(seen, true)));
        new.filter_map(|part| self.part(*part)).map(|layer| layer.bytes).sum()
    }

    fn part(&self, part: u32) -> Option<&LayerFacts> {
        self.layers.get(part as usize)
    }

    fn users(&self) -> Vec<u32> {
        let mut users = vec![0_u32; self.layers.len()];
        for part in self.images.values().flatten() {
            if let Some(users) = users.get_mut(*part as usize) {
                *users += 1;
            }
        }
        users
    }
}

impl Freed {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, inodes: self.inodes.saturating_add(other.inodes) }
    }

    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), inodes: self.inodes.saturating_sub(other.inodes) }
    }

    #[must_use]
    pub(crate) fn at_most(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), inodes: self.inodes.min(other.inodes) }
    }

    pub fn meets(self, wanted: Self) -> bool {
        self.bytes >= wanted.bytes && self.inodes >= wanted.inodes
    }

    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl LayerFacts {
    /// The inodes that the part's removal frees. If unknown, one inode per 16 KiB, the usual ratio of file systems.
    pub(crate) fn inodes_expected(&self) -> u64 {
        const BYTES_PER_INODE: u64 = 16 << 10;
        self.inodes.unwrap_or((self.bytes.0 / BYTES_PER_INODE).max(1))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    pub bytes: ByteSize,
    /// Inodes, estimated if they were not counted.
    pub inodes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerShare {
    /// The bytes of the parts that no other image has.
    pub unique: ByteSize,
    pub shared: ByteSize,
}

impl Certainty {
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
            Self::Partial { measured, layers } => {
                write!(f, "partial ({measured} of {} measured)", counted(*layers, "layer"))
            }
            Self::Claimed => f.write_str("as the runtime claims"),
        }
    }
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
            folder: None,
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
        let two = ["a", "b", "unknown"].map(ImageId::new);
        assert_eq!(graph.total_of(&two), ByteSize(110), "the part of both counts once");
    }

    #[test]
    fn what_a_pull_holds_and_what_is_out_of_the_list_frees_nothing() {
        let mut graph = graph(&[100, 10], &[("a", &[0, 1, 7])]);
        graph.layers[0].held = true;
        assert_eq!(graph.freed_by(&[ImageId::new("a")]).bytes, ByteSize(10));
        assert_eq!(graph.parts(&ImageId::new("a")).map(Iterator::count), Some(2));
        assert!(graph.parts(&ImageId::new("b")).is_none());
    }
}
