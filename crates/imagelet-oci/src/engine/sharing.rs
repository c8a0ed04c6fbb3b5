//! Sharing of layers: which present ones a pull need not fetch, and what is recorded of those.

use std::{collections::HashMap, sync::Arc};

use imagelet_core::image::{Digest, Reference};

use super::Engine;
use crate::{
    manifest::{Descriptor, Manifest},
    store::{LayerEnd, LayerEntry, PartialKey, SpareWanted, StagedLayer},
};

/// Which present layers a pull need not fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerSharing {
    /// All: the verified configuration of an image names them by content.
    #[default]
    Node,
    /// Those of images with a name in the same repository. The registry sends the others, so that only a pull with read
    /// access gets them.
    Repository,
}

impl LayerSharing {
    /// The pulls that may wait for one fetch of a layer: all, or those from a repository.
    pub(super) fn sharers(self, repository: &Reference) -> String {
        match self {
            Self::Node => String::new(),
            Self::Repository => repository.repository().to_owned(),
        }
    }

    /// The spare layer that a pull from a repository may use: as with present layers, one of any repository, or of its
    /// own.
    pub(super) fn spare_wanted<'a>(
        self,
        repository: &'a Reference,
        diff_id: &'a Digest,
        end: LayerEnd,
    ) -> SpareWanted<'a> {
        let repository = (self == LayerSharing::Repository).then(|| repository.repository());
        SpareWanted { diff_id, repository, end }
    }

    /// The partial blob that a pull from a repository may continue.
    pub(super) fn partial_key(self, repository: &Reference, blob: &Digest) -> PartialKey {
        PartialKey::new(blob, (self == LayerSharing::Repository).then(|| repository.repository()))
    }
}

impl Engine {
    /// The layers of an artifact are named by its manifest alone, which proves nothing: they are shared in a repository
    /// only.
    pub(super) fn sharing(&self, manifest: &Manifest) -> LayerSharing {
        if manifest.artifact_kind().is_some() { LayerSharing::Repository } else { self.config.sharing }
    }

    pub(super) fn may_share(&self, sharing: LayerSharing, repository: &Reference, layer: &Digest) -> bool {
        match sharing {
            LayerSharing::Node => true,
            LayerSharing::Repository => self.store.has_layer_of(repository.repository(), layer),
        }
    }

    /// The recorded blob of each layer, from this pull or an earlier one. What a manifest claims of an unfetched layer
    /// is not recorded, since it is unverified.
    pub(super) fn entries(
        &self,
        layers: &[Descriptor],
        diff_ids: &[Digest],
        staged: &[Arc<StagedLayer>],
    ) -> Vec<LayerEntry> {
        let fetched: HashMap<&Digest, &LayerEntry> =
            staged.iter().map(|layer| (&layer.entry().diff_id, layer.entry())).collect();
        let missing = layers.iter().zip(diff_ids).filter(|(_, diff_id)| !fetched.contains_key(diff_id));
        let known = self.store.entries_of(missing);
        let entry = |(layer, diff_id): (&Descriptor, &Digest)| {
            let entry = fetched.get(diff_id).copied().or_else(|| known.get(diff_id)).cloned();
            entry.unwrap_or_else(|| LayerEntry {
                blob: None,
                size: 0,
                diff_id: diff_id.clone(),
                media_type: layer.media_type.clone(),
            })
        };
        layers.iter().zip(diff_ids).map(entry).collect()
    }
}
