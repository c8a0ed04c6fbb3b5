//! Sharing of layers: which present ones a pull need not fetch, and what is recorded of those.

use std::sync::Arc;

use imagelet_core::image::{Digest, Reference};

use super::Engine;
use crate::{
    manifest::{Descriptor, Manifest},
    store::{LayerEntry, StagedLayer},
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
    /// The only repository whose layers, spares and partial blobs a pull may use; `None`: all.
    pub(super) fn only_from(self, pulled: &Reference) -> Option<&str> {
        (self == Self::Repository).then(|| pulled.repository())
    }
}

impl Engine {
    /// The layers of an artifact are named by its manifest alone, which proves nothing: they are shared in a repository
    /// only.
    pub(super) fn sharing(&self, manifest: &Manifest) -> LayerSharing {
        if manifest.artifact_kind().is_some() { LayerSharing::Repository } else { self.config.sharing }
    }

    pub(super) fn may_share(&self, only_from: Option<&str>, layer: &Digest) -> bool {
        only_from.is_none_or(|repository| self.store.has_layer_of(repository, layer))
    }

    /// The recorded blob of each layer, from this pull or an earlier one. What a manifest claims of an unfetched layer
    /// is not recorded, since it is unverified.
    pub(super) fn entries(
        &self,
        layers: &[Descriptor],
        diff_ids: &[Digest],
        staged: &[Arc<StagedLayer>],
    ) -> Vec<LayerEntry> {
        let mut known = self.store.entries_of(layers.iter().zip(diff_ids));
        known.extend(staged.iter().map(|layer| (layer.entry().diff_id.clone(), layer.entry().clone())));
        let entry = |(layer, diff_id): (&Descriptor, &Digest)| {
            known.get(diff_id).cloned().unwrap_or_else(|| LayerEntry {
                blob: None,
                size: 0,
                diff_id: diff_id.clone(),
                media_type: layer.media_type.clone(),
            })
        };
        layers.iter().zip(diff_ids).map(entry).collect()
    }
}
