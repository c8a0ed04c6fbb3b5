//! Sharing of layers: the present layers that a pull need not fetch, and the record of these layers.

use std::sync::Arc;

use imagelet_core::{
    image::{Digest, Reference},
    ports::PulledLayer,
};

use super::Engine;
use crate::{
    manifest::{Descriptor, Manifest},
    store::StagedLayer,
};

/// The only repository whose layers, spares and partial blobs a pull may use. `None` permits all repositories: the
/// verified configuration of an image names its layers by content. An artifact's layers are named only by its manifest,
/// which proves no access.
pub(super) fn only_from<'a>(manifest: &Manifest, pulled: &'a Reference) -> Option<&'a str> {
    manifest.artifact_kind().map(|_| pulled.repository())
}

impl Engine {
    pub(super) fn may_share(&self, only_from: Option<&str>, layer: &Digest) -> bool {
        only_from.is_none_or(|repository| self.store.has_layer_of(repository, layer))
    }

    /// The layers for the image record. The manifest's data of an unfetched layer is unverified, and so not recorded.
    pub(super) fn entries(
        &self,
        layers: &[Descriptor],
        diff_ids: &[Digest],
        staged: &[Arc<StagedLayer>],
    ) -> Vec<PulledLayer> {
        let mut known = self.store.entries_of(layers.iter().zip(diff_ids));
        let fetched = staged.iter().map(|layer| &layer.unpacked.origin.entry);
        known.extend(fetched.map(|entry| (entry.diff_id.clone(), entry.clone())));
        let entry = |(layer, diff_id): (&Descriptor, &Digest)| {
            known.get(diff_id).cloned().unwrap_or_else(|| PulledLayer {
                blob: None,
                size: 0,
                diff_id: diff_id.clone(),
                media_type: layer.media_type.clone(),
            })
        };
        layers.iter().zip(diff_ids).map(entry).collect()
    }
}
